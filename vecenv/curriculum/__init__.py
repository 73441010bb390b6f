"""Curricula: schedulers that read who succeeded at which level, and choose the levels that follow."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenv.curriculum.levelled import Levelled, LevelSchedule, set_curriculum
    from vecenv.curriculum.scheduler import Scheduler
    from vecenv.curriculum.settings import CurriculumSettings

__all__ = ["CurriculumSettings", "LevelSchedule", "Levelled", "Scheduler", "set_curriculum"]

_OTHERS = {"CurriculumSettings": "settings", "Scheduler": "scheduler"}
"""Modules of the names that are not of `vecenv.curriculum.levelled`."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # Settings of commands are read without PyTorch.
    if name in __all__:
        return getattr(import_module(f"vecenv.curriculum.{_OTHERS.get(name, 'levelled')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
