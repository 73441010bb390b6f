"""Dated backtests: one account over all days of a file, its orders and trades, and a report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenv.tasks.backtest.result import Backtest
    from vecenv.tasks.backtest.run import backtest

__all__ = ["Backtest", "backtest"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # Settings of the command line are read from here without torch.
    if name in __all__:
        return getattr(import_module(f"{__name__}.{'run' if name == 'backtest' else 'result'}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
