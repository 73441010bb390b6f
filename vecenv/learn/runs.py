"""Runs of any learner: settings, updates, log of metrics, checkpoints, and resuming."""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint, state_digest, telling_what_is_kept
from vecenv.learn.settings.run import CHECKPOINT, METRICS, RunConfig, with_present_names
from vecenv.learn.shards import ranks
from vecenv.system.files import WriteLock, replacing
from vecenv.system.interrupts import interrupts_held

WEYL = 0x9E3779B9
"""2^32 / golden ratio, odd (Weyl sequence): its multiples modulo 2^32 are distinct and well spread."""

OF_SHARDS = 0x85EBCA6B
"""Odd too, and no small multiple of `WEYL`."""

Metrics = dict[str, float]

ORIGIN = ("version", "config", "scenario")
"""Names in a checkpoint of what `check_resumable` compares."""

OF_MODEL = ("actor", "critic", "moments", "model", "optimiser")
"""Names in a checkpoint of what a policy, or a language model, has learned, which all ranks have."""

MAY_CHANGE = ("total_frames", "checkpoint_every")
"""Settings of a learner that a resumed run may have otherwise; all others decide what it learns."""


def origin(config: Any, env: VecEnv) -> dict[str, Any]:  # noqa: ANN401
    """Return version, settings and scenario metadata for a checkpoint, of types that a safe load accepts."""
    return {"version": vecenv.__version__, "config": asdict(config), "scenario": scenario_of(env)}


def scenario_of(env: VecEnv) -> Any:  # noqa: ANN401
    """Return the scenario's metadata, of types that a safe load accepts."""
    return json.loads(json.dumps(env.scenario.metadata()))


def check_resumable(state: Mapping[str, Any], config: Any, env: VecEnv) -> None:  # noqa: ANN401
    """Check that a checkpoint fits the settings and the scenario.

    Raises:
        ValueError: it is not a run's checkpoint, is of another version, task or market, or its settings differ in more
            than `MAY_CHANGE`; the message has what differs, and both values.
    """
    if not all(isinstance(state.get(name), Mapping) for name in ("config", "scenario")):
        raise ValueError("not a checkpoint of a run")
    own = origin(config, env)
    if (version := state.get("version", "of an unknown version")) != own["version"]:
        raise ValueError(
            f"the checkpoint was written by vecenv {version}, not {own['version']}, which may learn otherwise: go on "
            "with that version, or begin a run from its policy"
        )
    if differing := differences(with_present_names(state["config"]), own["config"], MAY_CHANGE):
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


def update_seed(seed: int, update: int, shard: int = 0) -> int:
    """Return the 32-bit shuffling seed of an update of a shard, so that checkpoints need no generator state."""
    return (seed + WEYL * update + OF_SHARDS * shard) % 2**32


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

    Of several ranks (`vecenv.learn.shards.ranks`) all run theirs, and the first writes. They write checkpoints at the
    same updates, and none at an interruption.

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
        check_same_start(learner)
        return _updates(learner, None, on_update, before_update)
    with WriteLock(place) if lock is None and ranks().leads else nullcontext():
        if resume:
            load_run(learner, place / CHECKPOINT)
        check_same_start(learner)
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


def check_same_start(learner: Runnable) -> None:
    """Raise ValueError, naming the rank, unless all ranks go on from the same update with the same model."""
    own = ranks()
    if not own.alone:
        state = learner.state_dict()
        model = state_digest({name: state[name] for name in OF_MODEL if name in state})
        own.same({"last update": str(learner.update_number), "hash of the model": model})


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


class RunFiles:
    """Checkpoint and log of a run.

    Raises:
        ValueError: the log to resume is corrupted.
        RunStoppedError: the folder cannot be written.
    """

    def __init__(self, folder: Path, learner: Runnable, resumed: bool) -> None:
        self.path, self.learner, own = folder / CHECKPOINT, learner, ranks()
        self._alone, self._first = own.alone, own.leads
        self._update = learner.update_number
        self._saved = learner.update_number if resumed or not self._alone else None
        self.log: MetricsLog | None = None
        if self._first:
            with self._told():
                self.log = MetricsLog(folder, learner.update_number)
        # A copy after every update, for an interruption during the next.
        self._state = learner.state_dict() if self._alone else {}

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Log an update and, every ``checkpoint_every`` updates, write a checkpoint."""
        # The row first: a resumed run drops rows after its checkpoint, but could not restore a missing one.
        if self.log is not None:
            with self._told():
                self.log.write(metrics)
        update = self.learner.update_number
        due = update % self.learner.config.checkpoint_every == 0 or (
            not self._alone and update >= self.learner.num_updates
        )
        if self._alone or due:
            self._state, self._update = self.learner.state_dict(), update
        if due:
            self._save()

    def close(self) -> None:
        """Write the checkpoint of the last update, unless written, and close the log."""
        try:
            if self._saved != self._update:
                self._save()
        finally:
            if self.log is not None:
                with self._told():
                    self.log.close()

    def _save(self) -> None:
        # A slow disk is no rank that hangs.
        ranks().done_by_first(self._write)
        self._saved = self._update

    def _write(self) -> str:
        assert self.log is not None, "the first rank has the log"
        with self._told():
            self.log.sync()
            save_checkpoint(self._state, self.path)
        return ""

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        kept = f"update {self._saved}" if self._saved else None
        with telling_what_is_kept(self.path, kept):
            yield


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read a CSV file of metrics; a truncated last row, of a process killed while writing, is skipped with a warning.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another row is corrupted; the message names its line.
    """
    lines, unfinished = _lines(path)
    if unfinished:
        warnings.warn(f"{path}, line {len(lines) + 1}: cut off in the middle of writing, and left out", stacklevel=2)
    rows: list[dict[str, float]] = []
    names: list[str] = []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        fields = line.split(",")
        if number == 1:
            names = fields
            if "update" not in names or len(set(names)) < len(names):
                raise ValueError(f"{where}: these are not the names of metrics")
            continue
        if len(fields) != len(names):
            raise ValueError(f"{where}: {len(fields)} values for {len(names)} metrics")
        row = dict(zip(names, (_number(text, where) for text in fields), strict=True))
        before = rows[-1]["update"] if rows else 0.0
        if not (row["update"].is_integer() and row["update"] > before):
            raise ValueError(f"{where}: update {row['update']:g} cannot follow update {before:g}")
        rows.append(row)
    return rows


def _lines(path: Path) -> tuple[list[str], str]:
    """Return the complete lines of a file, and the text after the last newline."""
    *lines, unfinished = path.read_bytes().decode(errors="replace").split("\n")
    return [line.removesuffix("\r") for line in lines], unfinished


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{where}: {text!r} is not a number") from error


class MetricsLog:
    """Appends metrics to ``metrics.csv`` in a folder.

    A resumed run drops the rows of updates ``after`` that of its checkpoint; 0 starts a new file.

    Raises:
        ValueError: the file to resume is corrupted, see `read_metrics`.
        OSError: the file cannot be written.
    """

    def __init__(self, folder: Path, after: int = 0) -> None:
        path = folder / METRICS
        self._names: list[str] | None = None
        if after and path.exists():
            self._truncate(path, after)
        self._resumed = self._names is not None
        self._file = path.open("a" if self._names else "w", newline="", encoding="utf-8")

    def _truncate(self, path: Path, after: int) -> None:
        kept = sum(row["update"] <= after for row in read_metrics(path))
        if not kept:
            return
        # Copy the text: parsing and formatting could change numbers.
        lines = _lines(path)[0][: kept + 1]
        with replacing(path) as partial:
            partial.write_bytes("\n".join([*lines, ""]).encode())
        self._names = lines[0].split(",")

    def close(self) -> None:
        self._file.close()

    def write(self, metrics: Mapping[str, float]) -> None:
        """Log the metrics of update ``"update"``.

        Raises:
            ValueError: a metric of the log is missing, or one is new to the log that this run began.
            OSError: they cannot be written.
        """
        if self._names is None:
            self._names = list(metrics)
            self._file.write(",".join(self._names) + "\n")
        if self._resumed:
            # The run may have been begun by a version that told less, or more.
            metrics = {name: metrics.get(name, math.nan) for name in self._names}
        if metrics.keys() != set(self._names):
            differing = ", ".join(sorted(metrics.keys() ^ set(self._names)))
            raise ValueError(f"{self._file.name}: its metrics are not those of this run, they differ in {differing}")
        self._file.write(",".join(str(metrics[name]) for name in self._names) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Flush all rows to disk (fsync) before the checkpoint of the last update."""
        os.fsync(self._file.fileno())
