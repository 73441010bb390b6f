"""What a Ray that has ended may have left: processes, by a mark in their environment, shared memory and files."""

import os
import tempfile
import time
from pathlib import Path

MARK = "VECENV_TEST_MARK"

SECONDS = 30
"""In which what belongs to something dead is gone."""


def marked(mark: str) -> set[int]:
    """Return the processes that descend from what was started with a mark."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:
            pass
    return found


def left(before: set[str]) -> set[str]:
    """Return files of shared memory and of Ray that were not there before."""
    return kept() - before


def kept() -> set[str]:
    """Return Ray's files; others have some too in shared memory."""
    memory = [name for name in os.listdir("/dev/shm") if "plasma" in name or "ray" in name]
    return {*memory, *(path.name for path in Path(tempfile.gettempdir()).glob("vecenv-ray-*"))}


def gone(mark: str, before: set[str]) -> bool:
    """Whether nothing is left: processes, and with them their ports, shared memory, files."""
    end = time.monotonic() + SECONDS
    while (marked(mark) or left(before)) and time.monotonic() < end:
        time.sleep(0.2)
    return not marked(mark) and not left(before)
