"""Policies of other runs: the one that a training starts from, and those that it is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vecenv.learn.checkpoints import save_checkpoint, telling_what_is_kept
from vecenv.learn.domain import BEST_RULE
from vecenv.learn.learner import Learner
from vecenv.learn.policies import check_policy_of, check_same_network, start_from
from vecenv.learn.runs import Runnable
from vecenv.learn.shards import ranks
from vecenv.tasks.experiment.checkpoints import check_same_inputs, read_checkpoint
from vecenv.tasks.experiment.comparison import ENSEMBLE, TRAINED, UNTRAINED
from vecenv.tasks.experiment.run_files import checkpoint_path
from vecenv.tasks.experiment.seeds import policies_by_folder
from vecenv.tasks.experiment.settings import TrainSettings

INITIAL = "initial"
"""Name in tables and files of the policy that a run starts from."""


def initial_path(folder: Path) -> Path:
    """Return a run's own copy of the policy that it starts from."""
    return folder / f"{INITIAL}.pt"


def check_initial(settings: TrainSettings, rules: Any) -> None:  # noqa: ANN401
    """Reject an initial policy that does not fit, before the market is made; the rest is checked with the network."""
    if settings.resume is None and settings.runs.initial is not None:
        path, task = checkpoint_path(settings.runs.initial), settings.record
        state = read_checkpoint(path)
        check_policy_of(state, path, task.name, task.version)
        check_same_network(state["config"], settings.learner, path)
        try:
            check_same_inputs(state, rules)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def start_from_initial(settings: TrainSettings, learner: Runnable, folder: Path, first: Path) -> None:
    """Start a new run from its initial policy, if one is given, and keep a copy in its folder; resuming needs the copy.

    ``first`` is the folder of the first seed's run, from whose copy those of the others start.
    """
    kept = initial_path(folder)
    if settings.runs.initial is None:
        return
    if settings.resume is not None:
        if not kept.is_file():
            raise ValueError(f"{kept}: the policy that the run started from is missing")
        return
    assert isinstance(learner, Learner)
    start_from(learner, checkpoint_path(settings.runs.initial) if folder == first else initial_path(first))
    state = learner.state_dict()
    if ranks().leads:
        with telling_what_is_kept(checkpoint_path(folder), None):
            save_checkpoint(state, kept)


def policies_beside(settings: TrainSettings) -> dict[str, Path]:
    """Return the checkpoints of the runs to compare with, by the names of their folders."""
    taken = {TRAINED, ENSEMBLE, INITIAL, UNTRAINED, BEST_RULE, *settings.record.agents}
    return policies_by_folder(settings.runs.beside, taken)


def check_beside(settings: TrainSettings, rules: Any) -> None:  # noqa: ANN401
    """Reject, before the market is made, runs to compare with that are of another task or see or do something else."""
    task = settings.record
    for path in policies_beside(settings).values():
        state = read_checkpoint(path)
        check_policy_of(state, path, task.name, task.version)
        try:
            check_same_inputs(state, rules)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
