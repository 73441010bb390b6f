"""Experiments: settings, resolved once, and what becomes of them: training, comparison, files."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenv.tasks.experiment.planning import plan
    from vecenv.tasks.experiment.settings import resumed_settings, train_settings

__all__ = ["plan", "resumed_settings", "train_settings"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # Options of the command line are read from here without torch.
    if name in __all__:
        home = "planning" if name == "plan" else "settings"
        return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
