"""Training loop of any learner: updates, checkpoints, log of metrics, and resuming."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch

from vecenv.core.env import VecEnv
from vecenv.learn.checkpoints import load_checkpoint
from vecenv.learn.run_files import CHECKPOINT, RunFiles
from vecenv.system.files import WriteLock
from vecenv.system.interrupts import interrupts_held
from vecenv.system.settings import Count, Positive, Settings, Within

Frames = Annotated[int, Within(1, limit=2**53)]
"""Numbers of steps."""


RunSeed = Annotated[int, Within(0, 2**32, below=True)]
"""Seeds of runs."""


@dataclass(frozen=True)
class RunConfig(Settings):
    """Settings of the optimiser and the run."""

    total_frames: Frames = 1_250_000
    """Total environment steps over all sub-environments; rounded up to whole rollouts."""
    epochs: Count = 4
    """Passes over each batch."""
    minibatches: Count = 8
    """Number of equal parts of a batch; one optimiser step each."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    anneal: bool = True
    """Lower the learning rate linearly to zero over the run."""
    max_grad_norm: Positive = 0.5
    """Gradient clipping: largest global norm."""
    seed: RunSeed = 0
    """Seed of the initial weights and the minibatches; the environment has another."""
    checkpoint_every: Count = 10
    """Updates between checkpoints."""
    tensorboard: bool = False
    """Also write TensorBoard's event files."""


WEYL = 0x9E3779B9
"""2^32 / golden ratio, odd (Weyl sequence): its multiples modulo 2^32 are distinct and well spread."""

Metrics = dict[str, float]

MAY_CHANGE = ("total_frames", "checkpoint_every", "tensorboard")
"""Settings of a learner that a resumed run may have otherwise; all others decide what it learns."""


def origin(config: RunConfig, env: VecEnv) -> dict[str, Any]:
    """Return settings and scenario metadata for a checkpoint, of types that a safe load accepts."""
    return {"config": asdict(config), "scenario": scenario_of(env)}


def scenario_of(env: VecEnv) -> Any:  # noqa: ANN401
    """Return the scenario's metadata, of types that a safe load accepts."""
    return json.loads(json.dumps(env.scenario.metadata()))


def check_resumable(state: Mapping[str, Any], config: RunConfig, env: VecEnv) -> None:
    """Check that a checkpoint fits the settings and the scenario.

    Raises:
        ValueError: it is not a run's checkpoint, is of another task or market, or its settings differ in more than
            `MAY_CHANGE`; the message has what differs, and both values.
    """
    if not all(isinstance(state.get(name), Mapping) for name in ("config", "scenario")):
        raise ValueError("not a checkpoint of a run")
    own = origin(config, env)
    if differing := differences(state["config"], own["config"], MAY_CHANGE):
        raise ValueError(f"the checkpoint was trained with other {', '.join(differing)}")
    # A market may have been moved: it is known by its fingerprint.
    if differing := differences(state["scenario"], own["scenario"], ("source",)):
        raise ValueError(f"the checkpoint is of another task, other rules or another market: {differing[0]}")


def differences(saved: Mapping[str, Any], own: Mapping[str, Any], free: Collection[str] = ()) -> list[str]:
    """Tell each entry of two mappings, perhaps of mappings, that differs and is not ``free``, with both values."""
    told = []
    for name in [name for name in {**own, **saved} if name not in free]:
        one, other = saved.get(name, "nothing"), own.get(name, "nothing")
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            told += [f"{name}.{inner}" for inner in differences(one, other, free)]
        elif one != other and not (isinstance(one, tuple | list) and list(one) == list(other)):
            told.append(f"{name} ({one}, not {other})")
    return told


def set_learning_rate(optimiser: torch.optim.Optimizer, config: RunConfig, progress: float) -> float:
    """Set and return the learning rate at a fraction ``progress`` of the updates."""
    rate = config.learning_rate * (1 - progress if config.anneal else 1.0)
    for group in optimiser.param_groups:
        group["lr"] = rate
    return rate


def progress_metrics(learner: Runnable, batch_size: int, seconds: float, rate: float) -> Metrics:
    """Return the metrics that every learner tells of an update it has made."""
    return {
        "update": learner.update_number,
        "frames": learner.update_number * batch_size,
        "samples_per_second": batch_size / seconds,
        "learning_rate": rate,
    }


def checked_losses(learner: Runnable, losses: list[float]) -> list[float]:
    """Return the losses of an update under way; FloatingPointError of one that is not finite."""
    if not all(math.isfinite(loss) for loss in losses):
        raise FloatingPointError(f"update {learner.update_number + 1}: losses are not finite: {losses}")
    return losses


def update_seed(seed: int, update: int) -> int:
    """Return the 32-bit shuffling seed of an update of a run, so that checkpoints need no generator state."""
    return (seed + WEYL * update) % 2**32


class Runnable(Protocol):
    """Protocol of learners for `run`."""

    env: VecEnv
    config: Any

    @property
    def update_number(self) -> int: ...

    @property
    def num_updates(self) -> int: ...

    def update(self) -> Metrics:
        """Collect, learn and return metrics, ``frames`` among them."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def run(
    learner: Runnable,
    folder: Path | str | None = None,
    resume: bool = False,
    on_update: Callable[[Metrics], None] | None = None,
    before_update: Callable[[int], None] | None = None,
    lock: WriteLock | None = None,
) -> list[Metrics]:
    """Run a learner and return the metrics of every update; deterministic for equal seed, machine and threads.

    Args:
        learner: before its first update.
        folder: for ``checkpoint.pt``, also written on interruption, and ``metrics.csv``; None writes nothing.
        resume: resume from the folder's checkpoint, with the results of an uninterrupted run.
        on_update: called with the metrics of each update.
        before_update: called with the number of updates done; it may change the environment.
        lock: of the folder, if the caller holds it; by default it is held during the run.

    Raises:
        ValueError: a setting is out of range, or checkpoint or log do not fit or are corrupted.
        FileNotFoundError: there is no checkpoint to resume from.
        BlockingIOError: another run holds the folder's lock.
        FloatingPointError: the losses are not finite; the checkpoint is of the previous update.
        RunStoppedError: the folder cannot be written, such as on a full disk; it names the last checkpoint.
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
            # A second interruption here would leave an older checkpoint.
            with interrupts_held(f"{place}: the last checkpoint is being written"):
                files.close()


def load_run(learner: Runnable, path: Path) -> None:
    """Load a checkpoint into a learner; errors are those of `load_checkpoint` and the learner's `load_state_dict`."""
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
