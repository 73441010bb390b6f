"""Runs of learners of any kind: one update after the other, checkpoints, a log, and how an interrupted one goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from vecenv.env import VecEnv
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint
from vecenv.learn.learner_config import RunConfig
from vecenv.learn.metrics_log import MetricsLog

CHECKPOINT = "checkpoint.pt"
WEYL = 0x9E3779B9
"""2^32 over the golden ratio, odd: its multiples modulo 2^32 are all different and far apart."""

Metrics = dict[str, float]


def origin(config: RunConfig, env: VecEnv) -> dict[str, Any]:
    """Return what a state is of: settings and scenario, of types that a safe load accepts."""
    return {"config": asdict(config), "scenario": json.loads(json.dumps(env.scenario.metadata()))}


def check_resumable(state: Mapping[str, Any], config: RunConfig, env: VecEnv) -> None:
    """Refuse a state of another run.

    Raises:
        ValueError: it is of another task or market, or of other settings than ``total_frames``, ``checkpoint_every``
            and ``tensorboard``.
    """
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
) -> list[Metrics]:
    """Run a learner and return the metrics of every update. Equal seeds, machine and threads give equal parameters.

    Args:
        learner: before its first update.
        folder: for ``checkpoint.pt``, which any interruption leaves too, and ``metrics.csv``; None writes nothing.
        resume: go on from the folder's checkpoint, as if never interrupted.
        on_update: called with the metrics of each update.
        before_update: called with the number of updates done; it may change the environment.

    Raises:
        ValueError: a setting is out of range, or the checkpoint does not fit.
        FileNotFoundError: there is no checkpoint to resume from.
        FloatingPointError: the losses are not finite; the checkpoint is of the update before.
    """
    path = None if folder is None else Path(folder) / CHECKPOINT
    if resume:
        if path is None:
            raise ValueError("resume needs the folder of the run")
        learner.load_state_dict(load_checkpoint(path, learner.env.device))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    log = MetricsLog(path.parent, learner.update_number, learner.config.tensorboard) if path else None
    history: list[Metrics] = []
    # A copy after every update, because an interruption may come in the middle of the next.
    state = learner.state_dict() if path else {}
    try:
        while learner.update_number < learner.num_updates:
            if before_update:
                before_update(learner.update_number)
            metrics = learner.update()
            history.append(metrics)
            if path and log:
                state = learner.state_dict()
                log.write(metrics)
                if learner.update_number % learner.config.checkpoint_every == 0:
                    save_checkpoint(state, path)
            if on_update:
                on_update(metrics)
    finally:
        if path and log:
            save_checkpoint(state, path)
            log.close()
    return history
