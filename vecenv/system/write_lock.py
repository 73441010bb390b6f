"""One writer at a time: a lock on a file that ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from datetime import datetime
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class WriteLock:
    """Keeps a second process from writing where one does already; a context manager.

    The lock is the operating system's (``flock``), so a process that is killed leaves no lock behind, at most the
    file. Where the system or the file system has none, a warning says so and nothing is refused.

    Args:
        target: what is written, a folder or, with ``file``, a file.
        file: the file that is locked, ``.lock`` in the folder by default. It is gone after the context, as are
            folders that were made for it and stayed empty.
    """

    def __init__(self, target: Path, file: Path | None = None) -> None:
        self.target, self.file = target, file or target / ".lock"
        self._descriptor = -1
        self._made: list[Path] = []

    @classmethod
    def beside(cls, target: Path) -> WriteLock:
        """Return the lock of a single file, ``NAME.lock``."""
        return cls(target, target.with_name(target.name + ".lock"))

    def __enter__(self) -> WriteLock:
        """Take the lock.

        Raises:
            BlockingIOError: another process has it, or another writer of this one.
            OSError: there can be no such file.
        """
        while self._descriptor < 0:
            folder = self.file.parent
            missing = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            self._made = list(dict.fromkeys([*missing, *self._made]))
            # The writer before may take its file, and the folder that it made, away just now.
            with contextlib.suppress(FileNotFoundError):
                self._descriptor = self._taken()
        holder = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}"
        # On a full disk the lock holds, without a name.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, holder.encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the lock back."""
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1
        with contextlib.suppress(OSError):
            for folder in self._made:
                folder.rmdir()

    def _taken(self) -> int:
        """Return the descriptor of the locked file, -1 where it was removed meanwhile."""
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._lock(descriptor)
            # A lock on a file that has been removed keeps nobody out.
            if os.path.samestat(os.fstat(descriptor), os.stat(self.file)):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return -1

    def _lock(self, descriptor: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
            raise BlockingIOError(f"{self.target} is already being written, by {holder}") from error
        except OSError as error:
            warnings.warn(f"{self.target}: a second writer cannot be kept out here ({error.strerror})", stacklevel=4)
