"""Runs of learners of any kind: one update after the other, checkpoints, a log, and how an interrupted one goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from vecenv.core.env import VecEnv
from vecenv.learn.checkpoints import load_checkpoint
from vecenv.learn.learner_config import RunConfig
from vecenv.learn.run_files import CHECKPOINT, RunFiles
from vecenv.system.interrupts import interrupts_held
from vecenv.system.write_lock import WriteLock

WEYL = 0x9E3779B9
"""2^32 over the golden ratio, odd: its multiples modulo 2^32 are all different and far apart."""

Metrics = dict[str, float]


def origin(config: RunConfig, env: VecEnv) -> dict[str, Any]:
    """Return what a state is of: settings and scenario, of types that a safe load accepts."""
    return {"config": asdict(config), "scenario": json.loads(json.dumps(env.scenario.metadata()))}


def check_resumable(state: Mapping[str, Any], config: RunConfig, env: VecEnv) -> None:
    """Refuse a state of another run.

    Raises:
        ValueError: it is of no run, of another task or market, or of other settings than ``total_frames``,
            ``checkpoint_every`` and ``tensorboard``.
    """
    if not all(isinstance(state.get(name), Mapping) for name in ("config", "scenario")):
        raise ValueError("not a checkpoint of a run")
    own = origin(config, env)
    free = ("total_frames", "checkpoint_every", "tensorboard")
    differing = [
        name for name, value in own["config"].items() if name not in free and state["config"].get(name) != value
    ]
    if differing:
        raise ValueError(f"the checkpoint was trained with other {', '.join(differing)}")
    if state["scenario"] != own["scenario"]:
        raise ValueError("the checkpoint is of another task, other rules or another market")


def set_learning_rate(optimiser: torch.optim.Optimizer, config: RunConfig, progress: float) -> float:
    """Set the step size after a share of the updates, and return it."""
    rate = config.learning_rate * (1 - progress if config.anneal else 1.0)
    for group in optimiser.param_groups:
        group["lr"] = rate
    return rate


def update_seed(config: RunConfig, update: int) -> int:
    """Return the seed of an update's order, so that a resumed run needs no generator's state; 32 bits, as are read."""
    return (config.seed + WEYL * update) % 2**32


class Runnable(Protocol):
    """What `run` asks of a learner."""

    env: VecEnv
    config: Any
    update_number: int
    num_updates: int

    def update(self) -> Metrics:
        """Collect, learn and return metrics, ``frames`` among them."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that the rest of the run depends on."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        ...


def run(
    learner: Runnable,
    folder: Path | str | None = None,
    resume: bool = False,
    on_update: Callable[[Metrics], None] | None = None,
    before_update: Callable[[int], None] | None = None,
    lock: WriteLock | None = None,
) -> list[Metrics]:
    """Run a learner and return the metrics of every update. Equal seeds, machine and threads give equal parameters.

    Args:
        learner: before its first update.
        folder: for ``checkpoint.pt``, which any interruption leaves too, and ``metrics.csv``; None writes nothing.
        resume: go on from the folder's checkpoint, as if never interrupted.
        on_update: called with the metrics of each update.
        before_update: called with the number of updates done; it may change the environment.
        lock: of the folder, where the caller holds it; by default it is held while this runs.

    Raises:
        ValueError: a setting is out of range, or the checkpoint or the log of metrics does not fit or is damaged.
        FileNotFoundError: there is no checkpoint to resume from.
        BlockingIOError: another run writes into the folder.
        FloatingPointError: the losses are not finite; the checkpoint is of the update before.
        RunStoppedError: the folder cannot be written, as when the disk is full; it names the checkpoint that is kept.
    """
    place = None if folder is None else Path(folder)
    if place is None:
        if resume:
            raise ValueError("resume needs the folder of the run")
        return _updates(learner, None, on_update, before_update)
    with WriteLock(place) if lock is None else nullcontext():
        if resume:
            load_run(learner, place / CHECKPOINT)
        place.mkdir(parents=True, exist_ok=True)
        files = RunFiles(place, learner, resume)
        try:
            return _updates(learner, files, on_update, before_update)
        finally:
            # An interruption that is repeated would leave the state of an older update.
            with interrupts_held(f"{place}: the last checkpoint is being written"):
                files.close()


def load_run(learner: Runnable, path: Path) -> None:
    """Let a learner go on from a checkpoint.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or of another run.
    """
    state = load_checkpoint(path, learner.env.device)
    try:
        learner.load_state_dict(state)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _updates(
    learner: Runnable,
    files: RunFiles | None,
    on_update: Callable[[Metrics], None] | None,
    before_update: Callable[[int], None] | None,
) -> list[Metrics]:
    """Make the updates that are left."""
    history: list[Metrics] = []
    while learner.update_number < learner.num_updates:
        if before_update:
            before_update(learner.update_number)
        metrics = learner.update()
        history.append(metrics)
        if files:
            files.after_update(metrics)
        if on_update:
            on_update(metrics)
    return history
