"""Atomic file replacement: write a temporary file, fsync, then rename."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import socket
import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path and renames it to the target afterwards.

    On an error the target is unchanged and the temporary file removed. A killed process leaves ``NAME.partial``, which
    the next write overwrites.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        # Without fsync the rename may reach the disk before the data: a power cut would leave an empty file.
        _sync(partial)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    # Some file systems do not sync folders; the file itself is complete.
    with contextlib.suppress(OSError):
        _sync(path.parent)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Context manager that yields an empty temporary folder and renames it to the target afterwards, as `replacing`.

    A folder that is there before is removed when the new one is complete.
    """
    partial = path.with_name(path.name + ".partial")
    # Left by a killed process.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for file in partial.rglob("*"):
            _sync(file)
        if path.exists():
            shutil.rmtree(path)
        os.replace(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):
        _sync(path.parent)


def why_unwritten(error: OSError) -> str:
    """Return the reason of a failed write, for messages."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    return f"it cannot be written ({error.strerror or error})"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def code_digest() -> str:
    """Return a hash of the package's Python files, by name and content."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class WriteLock:
    """Context manager that excludes a second writer of a folder or file.

    The lock is the operating system's (``flock``), so a killed process leaves no lock, at most the file. If the system
    or the file system has no locks, a warning is issued and nothing is refused. The locked file, ``.lock`` in the
    folder by default, is removed after the context, with folders that were made for it and stayed empty.
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
        """Take the lock; BlockingIOError if another process, or another writer of this process, has it."""
        while self._descriptor < 0:
            folder = self.file.parent
            missing = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            self._made = list(dict.fromkeys([*missing, *self._made]))
            # The previous writer may be removing its lock file and folder concurrently.
            with contextlib.suppress(FileNotFoundError):
                self._descriptor = self._taken()
        holder = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}"
        # On a full disk the lock holds, without the holder's name.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, holder.encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1
        with contextlib.suppress(OSError):
            for folder in self._made:
                folder.rmdir()

    def is_held(self) -> bool:
        """Whether another writer has the lock; False where the system has no locks."""
        if fcntl is None or not self.file.is_file():
            return False
        try:
            with self.file.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def _taken(self) -> int:
        """Return the descriptor of the locked file, -1 if it was removed concurrently."""
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._lock(descriptor)
            # A lock on a removed file excludes nobody.
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


HASHED = 2**20
"""Bytes, of all files of a folder, up to which contents are hashed: some 1 ms, less than a clock's tick in which a file
may be written twice. Others are known by size, place on the disk, and the times of the last change, one of which no
program can set back."""


def file_state(path: str | Path) -> str:
    """Return a text that changes whenever a file does, or one of the files of a folder; empty where there is none."""
    try:
        if not str(path):
            return ""
        parts = sorted(Path(path).iterdir()) if Path(path).is_dir() else [Path(path)]
        files = {part: part.stat() for part in parts if part.is_file()}
        if sum(stat.st_size for stat in files.values()) <= HASHED:
            states = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        else:
            names = ("st_size", "st_mtime_ns", "st_ctime_ns", "st_dev", "st_ino")
            states = [" ".join(str(getattr(stat, name)) for name in names) for stat in files.values()]
        return "\n".join(f"{file.name!r} {state}" for file, state in zip(files, states, strict=True))
    except (OSError, ValueError):
        # No such file, or a text that names none.
        return ""
