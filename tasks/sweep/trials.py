"""What a process of a sweep does: trainings with their validations told, and the winner's test."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from vecenv.learn.runs import read_metrics
from vecenv.learn.settings.run import METRICS
from vecenv.tasks.experiment.experiment import Experiment
from vecenv.tasks.experiment.planning import plan
from vecenv.tasks.experiment.progress import wide_console
from vecenv.tasks.experiment.seeds import check_folder, runs_of_seeds
from vecenv.tasks.experiment.settings import TrainSettings, resumed_settings, train_settings
from vecenv.tasks.experiment.splits import Splits

LOG = "log.txt"
"""File, in the folder of a trial, of what its training says."""

OF_VALIDATION = "validation_"
"""Beginning of the names of metrics that are kept of the best validation."""


@dataclass(frozen=True)
class Order:
    """A trial: its number, its folder, the arguments of `train_settings`, and for the test the validations of all."""

    number: int
    folder: Path
    given: dict[str, Any]
    looks: int | None = None


class Pruned(Exception):
    """The trial is worse than those before it."""


class Runner:
    """Trains trials one after the other, and keeps the market for the next one where it is the same.

    Args:
        tell: is given the place of a validation, the same in all trials, and what the trial is worth so far: the mean
            over seeds of their best rewards. It returns whether the trial is to be pruned.
    """

    def __init__(self, tell: Callable[[int, float], bool]) -> None:
        self._tell = tell
        self._market: tuple[Any, Splits] | None = None

    def train(self, order: Order) -> tuple[str, dict[str, Any]]:
        """Train a trial, from its checkpoint if it has one, and return what it ended as and what came of it."""
        settings = _resumed(order.folder)
        if settings is None:
            shutil.rmtree(order.folder, ignore_errors=True)
            settings = train_settings(**order.given, folder=str(order.folder))
        _write_to(order.folder)
        told = 0

        def watch(metrics: dict[str, float] | None = None) -> None:
            nonlocal told
            if metrics is not None and math.isnan(metrics["validation_reward"]):
                return
            values = _worth(validations(settings, order.folder), settings.validation.evaluations + 1)
            for step, value in values[told:]:
                told += 1
                if self._tell(step, value):
                    raise Pruned

        state, reason = "complete", {}
        try:
            with self._planned(settings, wide_console()) as experiment:
                experiment.show()
                # Those before an interruption.
                watch()
                experiment.fit(watch)
                watch()
        except Pruned:
            state = "pruned"
        except FloatingPointError as error:
            state, reason = "failed", {"reason": str(error)}
        seeds = [_summary(rows) for rows in validations(settings, order.folder)]
        if state == "complete" and not all("reward" in seed for seed in seeds):
            state, reason = "failed", {"reason": "a seed has no validation with a reward"}
        return state, {"seeds": seeds, **reason}

    def test(self, order: Order) -> tuple[str, dict[str, Any]]:
        """Play the test with the policy of a trial that is complete; return what is told and what is written of it."""
        settings = _resumed(order.folder)
        if settings is None:
            raise ValueError(f"{order.folder}: the run of the trial is not there any more")
        _write_to(order.folder)
        with self._planned(settings, wide_console()) as experiment:
            experiment.fit()
            experiment.compare()
            said = StringIO()
            experiment.console = Console(file=said, width=150)
            document = experiment.write(order.looks)
        return said.getvalue(), document

    def _planned(self, settings: TrainSettings, console: Console) -> Experiment:
        """Return the experiment of a trial, on the market of the one before if all that makes it is the same."""
        made_by = (settings.task, settings.source, settings.env, settings.validation, settings.subsets, settings.device)
        kept = self._market[1] if self._market is not None and self._market[0] == made_by else None
        experiment = plan(settings, console, kept)
        # What is drawn anew may overwrite it.
        self._market = (made_by, experiment.splits) if settings.paths.refresh_every is None else None
        return experiment


def validations(settings: TrainSettings, folder: Path) -> list[list[dict[str, float]]]:
    """Return the logged updates with a validation, of each seed that has begun."""
    logs = [run.folder / METRICS for run in runs_of_seeds(settings, folder)]
    rows = [read_metrics(log) for log in logs if log.is_file()]
    return [[row for row in seed if not math.isnan(row["validation_reward"])] for seed in rows]


def _worth(seeds: Sequence[Sequence[dict[str, float]]], stride: int) -> list[tuple[int, float]]:
    """Return the place of each validation, and what the trial is worth by then."""
    found: list[tuple[int, float]] = []
    ended: list[float] = []
    for number, rows in enumerate(seeds):
        best = -math.inf
        for place, row in enumerate(rows):
            best = max(best, row["validation_reward"])
            found.append((number * stride + place, sum([*ended, best]) / (number + 1)))
        ended.append(best)
    return found


def _summary(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the figures of the best validation of a seed, the first one of equals, as its policy is kept."""
    if not rows:
        return {"validations": 0}
    best = max(rows, key=lambda row: row["validation_reward"])
    known = {name: value for name, value in best.items() if name.startswith(OF_VALIDATION) and math.isfinite(value)}
    figures = {name.removeprefix(OF_VALIDATION): value for name, value in known.items()}
    return {"validations": len(rows), "update": int(best["update"]), **figures}


def _resumed(folder: Path) -> TrainSettings | None:
    """Return the settings of the run in a folder, to go on with; None if there is none, or it is not whole."""
    try:
        settings = replace(resumed_settings(folder), resume=folder)
        check_folder(settings, folder)
    except ValueError:
        return None
    return settings


def _write_to(folder: Path) -> None:
    """Write what this process says into the log of a trial, from now on."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("a") as log:
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.dup2(log.fileno(), number)
