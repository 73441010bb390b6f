"""Dated backtests, one account over all days of a file, and the orders of an account on its last day."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenv.tasks.backtest.result import Backtest
    from vecenv.tasks.backtest.run import backtest
    from vecenv.tasks.backtest.todays_orders import Orders, orders

__all__ = ["Backtest", "Orders", "backtest", "orders"]

_MODULES = {"Backtest": "result", "Orders": "todays_orders", "backtest": "run", "orders": "todays_orders"}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # Settings of the command line are read from here without torch.
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
