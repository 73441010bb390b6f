"""Settings of ``vecenv walk-forward``: those of a training, whose days are parted by spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from vecenv.tasks.experiment.markets import BySpans
from vecenv.tasks.experiment.settings import TrainSettings, default_settings

COMPARISON = "vecenv train, which compares on episodes"

SOME_FILE = "FILE"
"""Stands for a market of data where none is given, as there is no walk on another one."""


@dataclass(frozen=True, kw_only=True)
class WalkForwardSettings(TrainSettings):
    """Settings of ``vecenv walk-forward``. All trainings have the same, but for their days."""

    unused: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("episodes", "agents", "beside"), COMPARISON),
        **dict.fromkeys(("processes", "stall_seconds"), "vecenv train: a walk is one process"),
    }

    @classmethod
    def by_default(cls, given: Mapping[str, Any]) -> Self:
        if any(given.get(name) is not None for name in ("market", "preset", "resume")):
            return cls.of(default_settings(given, BySpans()))
        settings = default_settings({**given, "market": SOME_FILE}, BySpans())
        return cls.of(settings, source=replace(settings.source, market=""))
