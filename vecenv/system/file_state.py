"""What a file holds, as a key: what was made of a file may be used again until the file is another one."""

from __future__ import annotations

import hashlib
from pathlib import Path

HASHED = 16 * 2**20
"""Bytes up to which contents are hashed: some 10 ms. Larger files are known by size, time and place on the disk."""


def file_state(path: str | Path) -> str:
    """Return a text that changes whenever a file does, or one of the files of a folder; empty where there is none."""
    try:
        if not str(path):
            return ""
        if Path(path).is_dir():
            files = sorted(part for part in Path(path).iterdir() if part.is_file())
            return repr([(part.name, file_state(part)) for part in files])
        stat = Path(path).stat()
        if stat.st_size <= HASHED:
            return hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_dev} {stat.st_ino}"
    except (OSError, ValueError):
        # No such file, or a text that names none.
        return ""
