"""What a run writes as it goes: a row of metrics after every update, and now and then a checkpoint."""

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
    """The folder of a run cannot be written; the message names it and the checkpoint that is kept."""


@contextlib.contextmanager
def telling_what_is_kept(checkpoint: Path, update: str | None) -> Iterator[None]:
    """Say in one sentence that the folder of a run cannot be written, and what of the run is kept.

    Args:
        checkpoint: of the run.
        update: that it is of, in words; None where none of this run has been written.

    Raises:
        RunStoppedError: an `OSError` came out of the context.
    """
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
    """What `RunFiles` reads of a learner."""

    config: Any
    update_number: int

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that the rest of the run depends on."""
        ...


class RunFiles:
    """Checkpoint and log of a run.

    Args:
        folder: of the run, which exists.
        learner: before its first update, or as the checkpoint in the folder left it.
        resumed: which of the two it is.

    Raises:
        ValueError: the log that is to go on is damaged.
        ImportError: TensorBoard is asked for and not installed.
        RunStoppedError: the folder cannot be written.
    """

    def __init__(self, folder: Path, learner: Resumable, resumed: bool) -> None:
        self.path, self.learner = folder / CHECKPOINT, learner
        self._update = learner.update_number
        self._saved = learner.update_number if resumed else None
        with self._told():
            self.log = MetricsLog(folder, learner.update_number, learner.config.tensorboard)
        # A copy after every update, because an interruption may come in the middle of the next.
        self._state = learner.state_dict()

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Log an update and, if it is due, write a checkpoint.

        Raises:
            RunStoppedError: the folder cannot be written.
        """
        # The row first: a resumed run drops a row without its checkpoint, but could not write one that is missing.
        with self._told():
            self.log.write(metrics)
        self._state, self._update = self.learner.state_dict(), self.learner.update_number
        if self._update % self.learner.config.checkpoint_every == 0:
            self._save()

    def close(self) -> None:
        """Write the checkpoint of the last update, if it is not there, and close the log.

        Raises:
            RunStoppedError: the folder cannot be written.
        """
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
        """Say what is kept where something cannot be written."""
        kept = None if self._saved is None else f"update {self._saved}"
        with telling_what_is_kept(self.path, kept):
            yield
