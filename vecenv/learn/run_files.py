"""Files of a training run: the log of metrics after every update, and periodic checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from vecenv.learn.checkpoints import save_checkpoint
from vecenv.learn.metrics_log import MetricsLog
from vecenv.system.atomic_files import why_unwritten

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
