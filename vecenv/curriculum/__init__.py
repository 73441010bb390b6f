"""Curricula: schedulers that read who succeeded at which level, and choose the levels that follow."""

from vecenv.curriculum.levelled import Levelled, LevelSchedule, set_curriculum
from vecenv.curriculum.scheduler import Scheduler
from vecenv.curriculum.settings import CurriculumSettings

__all__ = ["CurriculumSettings", "LevelSchedule", "Levelled", "Scheduler", "set_curriculum"]
