"""Policies of other runs that a training is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vecenv.core.env import VecEnv
from vecenv.learn.policies import check_policy_of
from vecenv.market.tape import MarketTape
from vecenv.registry import BEST_RULE, task_named
from vecenv.tasks.commands.comparison import (
    ENSEMBLE,
    TRAINED,
    UNTRAINED,
    check_fits,
    check_same_inputs,
    trained_agent,
)
from vecenv.tasks.commands.initial import INITIAL
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.commands.seeds import policies_by_folder
from vecenv.tasks.commands.train_settings import TrainSettings


def policies_beside(settings: TrainSettings) -> dict[str, Path]:
    """Return the checkpoints of the runs to compare with, by the names of their folders.

    Raises:
        ValueError: as `policies_by_folder`.
    """
    taken = {TRAINED, ENSEMBLE, INITIAL, UNTRAINED, BEST_RULE, *task_named(settings.task).agents}
    return policies_by_folder(settings.beside, taken)


def check_beside(settings: TrainSettings) -> None:
    """Reject runs to compare with that are of another task or see or do something else, before the market is made.

    Raises:
        ValueError: naming the checkpoint and the difference.
    """
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


def check_beside_on(settings: TrainSettings, tape: MarketTape, config: Any, env: VecEnv) -> None:  # noqa: ANN401
    """Reject runs to compare with whose policies cannot play the test, before the training begins.

    Args:
        settings: of the training.
        tape: its market.
        config: rules of its task.
        env: of the test.

    Raises:
        ValueError: naming the checkpoint and the difference.
    """
    for path in policies_beside(settings).values():
        try:
            check_fits(read_checkpoint(path), tape, config)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    check_beside_plays(settings, env)


def check_beside_plays(settings: TrainSettings, env: VecEnv) -> None:
    """Reject runs to compare with whose policies do not fit the test environment.

    Raises:
        ValueError: a policy does not fit.
    """
    for path in policies_beside(settings).values():
        trained_agent(path, env)
