"""Atomic file replacement: write a temporary file, fsync, then rename."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


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
