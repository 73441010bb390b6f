"""Settings of ``vecenv sweep``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro import conf

from vecenv.system.settings import Count, CountFromZero, Settings, When


@dataclass(frozen=True, kw_only=True)
class SweepSettings(Settings):
    """Settings of ``vecenv sweep``."""

    file: conf.Positional[Path]
    """YAML file with settings of vecenv train, and under varies the values of those that vary."""
    trials: Count = 20
    """Trainings in the end, those of earlier calls included."""
    processes: Count = 1
    """Trials at a time, each in a process of one thread. The result does not depend on it."""
    delay: Count = 4
    """Trials that may run at a time. What a trial is, and whether it is pruned, follows from the trials that lie so far
    before it or further, which have ended when it starts."""
    seeds: Count | None = None
    """Trainings of a trial, one after the other, by default as in the file. It is judged by their mean."""
    random_trials: Count = 10
    """Trials with random settings at the beginning; those of later ones are Optuna's TPE's."""
    prune: bool = True
    """End a trial whose best validation is worse than the median of the earlier trials' at the same place."""
    pruned_after: Annotated[CountFromZero, When("prune")] = 5
    """Earlier trials without which none is pruned."""
    seed: CountFromZero = 0
    """Seed of what is tried; that of the trainings stands in the file."""
    folder: Path | None = None
    """Folder of the sweep, runs/sweep-FILE by default. One that holds this sweep is gone on with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes > self.delay:
            raise ValueError(
                f"{self.processes} processes need a --delay of at least {self.processes}, got {self.delay}: a trial "
                f"begins when all have ended that lie {self.delay} or more before it"
            )

    @property
    def place(self) -> Path:
        """Folder of the sweep."""
        return self.folder or Path("runs") / f"sweep-{self.file.stem}"
