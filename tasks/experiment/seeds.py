"""Runs of several seeds on one market: their folders, how they go on, and what they reach together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from vecenv.learn.evaluation import Evaluation
from vecenv.learn.intervals import Interval
from vecenv.learn.settings.run import CHECKPOINT
from vecenv.tasks.experiment.checkpoints import check_resumable_folder, write_settings
from vecenv.tasks.experiment.comparison import ENSEMBLE, TRAINED
from vecenv.tasks.experiment.run_files import SEED_FOLDER, checkpoint_path
from vecenv.tasks.experiment.settings import NOT_IN_FILES, TrainSettings


@dataclass(frozen=True)
class SeedRun:
    """The run of one seed. ``resume`` of its settings is its folder if that has a checkpoint to go on from."""

    settings: TrainSettings
    folder: Path
    agent: str


def runs_of_seeds(settings: TrainSettings, folder: Path) -> list[SeedRun]:
    """Return the runs of all seeds, of a single seed the run in the folder itself."""
    if settings.runs.number == 1:
        return [SeedRun(settings, folder, TRAINED)]
    runs = []
    for seed in range(settings.seed, settings.seed + settings.runs.number):
        own = folder / SEED_FOLDER.format(seed)
        resumed = own if settings.resume is not None and checkpoint_path(own).is_file() else None
        alone = replace(settings, seed=seed, runs=settings.runs.alone(), resume=resumed)
        runs.append(SeedRun(alone, own, _agent(seed)))
    return runs


def trainings(settings: TrainSettings, folder: Path) -> list[SeedRun]:
    """Return the runs that are made one after the other: those of all seeds, or the one of an ensemble in one batch."""
    return runs_of_seeds(settings, folder) if settings.runs.ensemble is None else [SeedRun(settings, folder, ENSEMBLE)]


def policy_files(place: Path) -> dict[str, Path]:
    """Return the checkpoints in the folder of a run by the names of their agents, or the file itself."""
    return {_agent(seed): path for seed, path in _of_seeds(place).items()} or {TRAINED: checkpoint_path(place)}


def policies_by_folder(places: Sequence[Path], taken: Collection[str]) -> dict[str, Path]:
    """Return the checkpoints of runs or files by the names of their folders, with those above as far as needed.

    Raises:
        ValueError: there is no checkpoint, one is given twice, or a folder has the name of another agent.
    """
    paths = [path for place in places for path in policy_files(place).values()]
    # The folder stands for its checkpoint; another file has a name of its own.
    parts = [(path.parent if path.name == CHECKPOINT else path.with_suffix("")).resolve().parts for path in paths]
    for path, own in zip(paths, parts, strict=True):
        if parts.count(own) > 1:
            raise ValueError(f"{path} is given twice")
    depth = 1
    while len({own[-depth:] for own in parts}) < len(parts):
        depth += 1
    named = {"/".join(own[-depth:]): path for own, path in zip(parts, paths, strict=True)}
    for name in named:
        if name in taken:
            raise ValueError(f"{named[name]}: another agent of the comparison is called {name!r}; rename the folder")
    return named


def holds_run(folder: Path) -> bool:
    """Whether a folder has a checkpoint, or that of a seed."""
    return checkpoint_path(folder).exists() or bool(_of_seeds(folder))


def check_folder(settings: TrainSettings, folder: Path) -> None:
    """Reject a folder with other runs, or without whole ones to resume, before any work."""
    if settings.resume is None:
        if holds_run(folder):
            raise ValueError(
                f"{folder} already holds a run; resume it with --resume {folder}, or choose another --folder"
            )
        return
    if settings.runs.ensemble is not None:
        check_resumable_folder(folder)
        return
    begun = [run.folder for run in runs_of_seeds(settings, folder) if run.settings.resume is not None]
    if not begun:
        raise ValueError(f"{folder}: there is no checkpoint of one of the {settings.runs.seeds} seeds")
    for own in begun:
        check_resumable_folder(own)


def write_seed_settings(run: SeedRun, settings: TrainSettings, folder: Path) -> None:
    """Write the settings of a seed's run, and those of all, into their folders."""
    for place, own in {run.folder: run.settings, folder: settings}.items():
        write_settings(place, own, NOT_IN_FILES)


def keep_interrupted(console: Console, run: SeedRun, settings: TrainSettings, folder: Path, command: str) -> None:
    """Write what an interrupted run needs to be resumed, and print the command, if there is a checkpoint."""
    if checkpoint_path(run.folder).exists():
        write_seed_settings(run, settings, folder)
    if holds_run(folder):
        console.print(f"Interrupted. Resume with: {command}", soft_wrap=True)


def over_seeds(evaluation: Evaluation, runs: Sequence[SeedRun]) -> dict[str, Any]:
    """Return what the policies of several seeds reach, JSON-able; every value is a mean over test episodes.

    ``grade`` is by the task's first grader, ``excess_log_return`` where agents are compared with the reference: of
    each seed, and over seeds the ``mean``, ``lowest`` and ``highest``; and of the ``ensemble``, if there is one.
    """
    grader = next(iter(evaluation.grades[runs[0].agent]))
    means = {"grade": {name: grades[grader] for name, grades in evaluation.grades.items()}}
    means |= {name: by_agent for name, by_agent in evaluation.measures.items() if runs[0].agent in by_agent}
    return {name: _spread(by_agent, runs) for name, by_agent in means.items()}


def over_seeds_line(document: dict[str, Any]) -> str:
    """Return the sentence about what `over_seeds` found."""
    excess = "excess_log_return" in document
    told = document["excess_log_return" if excess else "grade"]
    shown = (lambda value: f"{100 * value:.2f}%") if excess else (lambda value: f"{value:.3f}")
    text = (
        f"Over {len(told['by_seed'])} seeds: {'excess' if excess else 'grade'} {shown(told['mean'])} on average, "
        f"from {shown(told['lowest'])} to {shown(told['highest'])}"
    )
    if ENSEMBLE in told:
        text += f"; their ensemble {shown(told[ENSEMBLE])}"
    if "disagreement" in document:
        text += f", whose policies differ at {document['disagreement']:.1%} of its steps"
    return text


def _spread(by_agent: dict[str, Interval], runs: Sequence[SeedRun]) -> dict[str, Any]:
    """Return the means of the runs by seed, and what they are over seeds."""
    by_seed = {str(run.settings.seed): by_agent[run.agent].mean for run in runs}
    values = list(by_seed.values())
    spread = {"mean": sum(values) / len(values), "lowest": min(values), "highest": max(values)}
    return {"by_seed": by_seed, **spread} | ({ENSEMBLE: by_agent[ENSEMBLE].mean} if ENSEMBLE in by_agent else {})


def _agent(seed: int) -> str:
    return f"{TRAINED}_{seed}"


def _of_seeds(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of the seeds in a folder, in their order."""
    paths = folder.glob(SEED_FOLDER.format("*") + f"/{CHECKPOINT}")
    numbers = {path: path.parent.name.rpartition("_")[2] for path in paths}
    return dict(sorted((int(number), path) for path, number in numbers.items() if number.isdecimal()))
