"""Files that are whole or as they were: written beside, brought to the disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path beside a file, and put what was written there in the file's place.

    Whatever goes wrong before, the file stays as it was and nothing is left beside it. A killed process leaves
    ``NAME.partial``, which the next one overwrites.

    Args:
        path: of the file, in a folder that exists.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        # A rename may reach the disk before what was written: after a power cut the file would be empty.
        _sync(partial)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    # Some file systems refuse this for folders; the file itself is there.
    with contextlib.suppress(OSError):
        _sync(path.parent)


def why_unwritten(error: OSError) -> str:
    """Return in words why something could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    return f"it cannot be written ({error.strerror or error})"


def _sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
