"""Where files lie that may be made again, and the processor, on which some of them depend."""

from __future__ import annotations

import os
import platform
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return ``~/.cache/vecenv``, or the folder under ``XDG_CACHE_HOME``; of a user without a home a temporary one."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "vecenv"
    try:
        return Path.home() / ".cache" / "vecenv"
    except RuntimeError:
        return Path(tempfile.gettempdir(), f"vecenv-{os.getuid()}")


def processor() -> tuple[str, ...]:
    """Return what tells of the processor's kind, by which libraries choose how they compute."""
    info = Path("/proc/cpuinfo")
    told = info.read_text().partition("\n\n")[0].splitlines() if info.exists() else ()
    kind = (line for line in told if line.startswith(("model name", "flags", "Features", "CPU")))
    return platform.machine(), platform.processor(), *kind
