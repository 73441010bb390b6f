"""What a file holds, as a key: what was made of a file may be used again until the file is another one."""

from __future__ import annotations

import hashlib
from pathlib import Path

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
