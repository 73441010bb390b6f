"""Whether what is going to be allocated fits into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class TooLittleMemoryError(ValueError):
    """An allocation that does not fit."""


def available_memory(device: torch.device | str) -> int | None:
    """Return the bytes of GPU memory, or of host memory within the container's limit without swap; None if unknown."""
    if str(device).startswith("cuda"):
        # The host's is asked for by what reads data without PyTorch.
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        # Plus freed memory in PyTorch's caching allocator.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    found = [limit for path in _CGROUP_LIMITS if (limit := _number(path)) is not None]
    if _MEMINFO.is_file():
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    elif "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def check_memory(needed: int, device: torch.device | str, what: str, remedy: str = "choose fewer") -> None:
    """Raise TooLittleMemoryError if fewer than ``needed`` bytes are available; ``what`` needs them, in the plural."""
    available = available_memory(device)
    if available is not None and needed > available:
        raise TooLittleMemoryError(
            f"{what} need {_gigabytes(needed)} of memory or more, and {device} has {_gigabytes(available)} left: "
            f"{remedy}"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
