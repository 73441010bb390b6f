"""Files of a training run: the log of metrics after every update, and periodic checkpoints."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from vecenv.learn.checkpoints import save_checkpoint
from vecenv.system.files import replacing, why_unwritten

CHECKPOINT = "checkpoint.pt"


class RunStoppedError(OSError):
    """The folder of a run cannot be written; the message names it and the last checkpoint."""


@contextlib.contextmanager
def telling_what_is_kept(checkpoint: Path, update: str | None) -> Iterator[None]:
    """Convert an `OSError` into a `RunStoppedError` that names the run's folder and its last checkpoint, if any."""
    try:
        yield
    except RunStoppedError:
        raise
    except OSError as error:
        kept = "no checkpoint has been written yet"
        if update is not None:
            kept = f"the checkpoint of {update}, {checkpoint}, is kept"
        raise RunStoppedError(f"{checkpoint.parent}: {why_unwritten(error)}; {kept}") from error


class Resumable(Protocol):
    """Protocol of learners for `RunFiles`."""

    config: Any

    @property
    def update_number(self) -> int: ...

    def state_dict(self) -> dict[str, Any]: ...


class RunFiles:
    """Checkpoint and log of a run.

    Raises:
        ValueError: the log to resume is corrupted.
        ImportError: TensorBoard is requested and not installed.
        RunStoppedError: the folder cannot be written.
    """

    def __init__(self, folder: Path, learner: Resumable, resumed: bool) -> None:
        self.path, self.learner = folder / CHECKPOINT, learner
        self._update = learner.update_number
        self._saved = learner.update_number if resumed else None
        with self._told():
            self.log = MetricsLog(folder, learner.update_number, learner.config.tensorboard)
        # A copy after every update, for an interruption during the next.
        self._state = learner.state_dict()

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Log an update and, every ``checkpoint_every`` updates, write a checkpoint."""
        # The row first: a resumed run drops rows after its checkpoint, but could not restore a missing one.
        with self._told():
            self.log.write(metrics)
        self._state, self._update = self.learner.state_dict(), self.learner.update_number
        if self._update % self.learner.config.checkpoint_every == 0:
            self._save()

    def close(self) -> None:
        """Write the checkpoint of the last update, unless written, and close the log."""
        try:
            if self._saved != self._update:
                self._save()
        finally:
            with self._told():
                self.log.close()

    def _save(self) -> None:
        with self._told():
            self.log.sync()
            save_checkpoint(self._state, self.path)
            self._saved = self._update

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        kept = None if self._saved is None else f"update {self._saved}"
        with telling_what_is_kept(self.path, kept):
            yield


METRICS = "metrics.csv"


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
    """Appends metrics to ``metrics.csv`` in a folder and optionally to TensorBoard event files there.

    A resumed run drops the rows of updates ``after`` that of its checkpoint; 0 starts a new file.

    Raises:
        ImportError: TensorBoard is requested and not installed.
        ValueError: the file to resume is corrupted, see `read_metrics`.
        OSError: the file cannot be written.
    """

    def __init__(self, folder: Path, after: int = 0, tensorboard: bool = False) -> None:
        self._events: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError("TensorBoard is not installed: pip install 'vecenv[tensorboard]'") from error
            self._events = SummaryWriter(str(folder), purge_step=after + 1)
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
        if self._events is not None:
            self._events.close()

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
        if self._events is not None:
            for name, value in metrics.items():
                if not math.isnan(value):
                    self._events.add_scalar(name, value, int(metrics["update"]))

    def sync(self) -> None:
        """Flush all rows to disk (fsync) before the checkpoint of the last update."""
        os.fsync(self._file.fileno())
