"""Policies of other runs: the one that a training starts from, and those that it is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vecenv.core.env import VecEnv
from vecenv.learn.checkpoints import save_checkpoint
from vecenv.learn.domain import BEST_RULE
from vecenv.learn.learner import Learner
from vecenv.learn.policies import check_policy_of, check_same_network, start_from
from vecenv.learn.runs import Runnable, telling_what_is_kept
from vecenv.market.tape import MarketTape
from vecenv.registry import task_named
from vecenv.tasks.commands.comparison import (
    ENSEMBLE,
    TRAINED,
    UNTRAINED,
    check_fits,
    check_same_inputs,
    trained_agent,
)
from vecenv.tasks.commands.run_folder import checkpoint_path, read_checkpoint
from vecenv.tasks.commands.seeds import policies_by_folder
from vecenv.tasks.commands.train_settings import TrainSettings

INITIAL = "initial"
"""Name in tables and files of the policy that a run starts from."""


def initial_path(folder: Path) -> Path:
    """Return a run's own copy of the policy that it starts from."""
    return folder / f"{INITIAL}.pt"


def check_initial(settings: TrainSettings) -> None:
    """Reject an initial policy that does not fit, before the market is made; the rest is checked with the network."""
    if settings.resume is None and settings.initial is not None:
        if settings.model is not None:
            raise ValueError("a language model is its own start: --initial needs a training without --model")
        path = checkpoint_path(settings.initial)
        state, task = read_checkpoint(settings.initial), task_named(settings.task)
        check_policy_of(state, path, task.name, task.version)
        check_same_network(state["config"], getattr(settings, settings.algorithm), path)
        try:
            check_same_inputs(state, settings.with_symbols(settings.env))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def start_from_initial(settings: TrainSettings, learner: Runnable, folder: Path, first: Path) -> None:
    """Start a new run from its initial policy, if one is given, and keep a copy in its folder; resuming needs the copy.

    ``first`` is the folder of the first seed's run, from whose copy those of the others start.
    """
    kept = initial_path(folder)
    if settings.initial is None:
        return
    if settings.resume is not None:
        if not kept.is_file():
            raise ValueError(f"{kept}: the policy that the run started from is missing")
        return
    assert isinstance(learner, Learner)
    start_from(learner, checkpoint_path(settings.initial) if folder == first else initial_path(first))
    with telling_what_is_kept(checkpoint_path(folder), None):
        save_checkpoint(learner.state_dict(), kept)


def policies_beside(settings: TrainSettings) -> dict[str, Path]:
    """Return the checkpoints of the runs to compare with, by the names of their folders."""
    taken = {TRAINED, ENSEMBLE, INITIAL, UNTRAINED, BEST_RULE, *task_named(settings.task).agents}
    return policies_by_folder(settings.beside, taken)


def check_beside(settings: TrainSettings) -> None:
    """Reject, before the market is made, runs to compare with that are of another task or see or do something else."""
    if settings.beside and settings.model is not None:
        raise ValueError("--beside compares policies: it needs a training without --model")
    task, config = task_named(settings.task), settings.with_symbols(settings.env)
    for path in policies_beside(settings).values():
        state = read_checkpoint(path)
        check_policy_of(state, path, task.name, task.version)
        try:
            check_same_inputs(state, config)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def check_beside_on(settings: TrainSettings, env: VecEnv, tape: MarketTape | None = None, config: Any = None) -> None:  # noqa: ANN401
    """Reject, before the training begins, runs to compare with whose policies cannot play the test ``env``."""
    for path in policies_beside(settings).values():
        if tape is not None:
            try:
                check_fits(read_checkpoint(path), tape, config)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        trained_agent(path, env)
