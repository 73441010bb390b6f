"""Do schedulers of levels beat uniform sampling on the hardest level, at equal steps?

PPO learns a task with levels by each scheduler of `vecenv.curriculum`, by uniform sampling, and on the hardest level
alone (own), with as many steps and the same seeds. All are graded on test episodes of the hardest level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vecenv.benchmarks.result_files import StudyConfig, markdown, spelled
from vecenv.learn.intervals import jackknife_interval
from vecenv.system.settings import Count
from vecenv.tasks.experiment import plan, train_settings

OWN, UNIFORM = "own", "uniform"

SCHEDULERS = (OWN, UNIFORM, "threshold", "promotion", "adarft", "adacurl", "success_model")


@dataclass(frozen=True)
class CurriculaConfig(StudyConfig):
    """Compare schedulers with uniform sampling on the hardest level of a task."""

    task: str = "sokoban"
    """Task with levels, whose hardest one is its default."""
    preset: Path | None = None
    """Preset of the training, by default the task's own."""
    schedulers: tuple[str, ...] = SCHEDULERS
    """Schedulers; own is what the task does without one: mostly the hardest level alone, promotion on the tiers."""
    num_seeds: Count = 3
    """Runs of each scheduler, each with other weights, episodes and tests."""
    episodes: Count = 1024
    """Test episodes of a run."""
    compile: bool = True
    """Compile the step and the update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.schedulers if name not in SCHEDULERS]
        if unknown:
            raise ValueError(f"there is no scheduler {unknown[0]!r}; there are {', '.join(SCHEDULERS)}")


def main(config: CurriculaConfig) -> dict[str, Any]:
    grades: dict[str, list[float]] = {name: [] for name in config.schedulers}
    for seed in range(config.num_seeds):
        for name, own in grades.items():
            own.append(_grade(config, name, seed))
            print(f"{name}, seed {seed}: {own[-1]:.3f}", flush=True)
    told = {name: _over_seeds(own) for name, own in grades.items()}
    more = {
        name: _over_seeds([mine - other for mine, other in zip(own, grades[UNIFORM], strict=True)])
        for name, own in grades.items()
        if name != UNIFORM and UNIFORM in grades
    }
    stem = f"curricula-{config.task.replace('_', '-')}"
    return config.written(stem, page, grade=told, more_than_uniform=more, grades=grades)


def _grade(config: CurriculaConfig, scheduler: str, seed: int) -> float:
    """Train by a scheduler and return the mean grade on test episodes of the hardest level."""
    chosen = {} if scheduler == OWN else {"curriculum": scheduler}
    preset = {} if config.preset is None else {"preset": str(config.preset)}
    with TemporaryDirectory() as folder:
        settings = train_settings(
            task=config.task, seed=seed, episodes=config.episodes, compile=config.compile, folder=Path(folder) / "run",
            **preset, **chosen,
        )  # fmt: skip
        with plan(settings) as experiment:
            experiment.fit()
            evaluation = experiment.compare()
    return next(iter(evaluation.grades["trained"].values())).mean


def _over_seeds(values: Sequence[float]) -> dict[str, float]:
    interval = jackknife_interval(torch.tensor(values, dtype=torch.float64), torch.arange(len(values)))
    return {name: float(value) for name, value in interval._asdict().items()}


def page(result: Mapping[str, Any]) -> str:
    """Return the table of a result."""
    more = result["more_than_uniform"]
    rows = [
        (name, spelled(own, 1, 3), spelled(more[name], 1, 3) if name in more else "")
        for name, own in result["grade"].items()
    ]
    header = ("scheduler", "grade on the hardest level", "more than uniform sampling")
    return f"# Schedulers on {result['config']['task']}\n\n{markdown(header, rows)}\n"
