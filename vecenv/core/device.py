"""PyTorch devices by name, their available memory, and a check before large allocations."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch


def device_named(name: str) -> torch.device:
    """Return a device: cpu, cuda, one GPU such as cuda:1, or auto, which is cuda if available, else cpu.

    Raises:
        ValueError: it is unknown or not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}; use cpu, cuda or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"nothing runs on a device {name!r} here; use cpu, cuda or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no device {name} here; PyTorch sees {torch.cuda.device_count()} CUDA devices")
    return device


def warn_of_slow_bfloat16(device: torch.device, option: str) -> None:
    """Warn if products in bfloat16, asked for by an option, run on a CPU with AVX2 alone, which emulates them.

    On an AMD EPYC of this kind they took ten times as long as in float32, on one with AVX512-BF16 a fifth of the time.
    """
    if device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2":
        warnings.warn(f"{option}: this CPU (AVX2) emulates bfloat16, much slower than float32", stacklevel=2)


_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class TooLittleMemoryError(ValueError):
    """An allocation that does not fit."""


def available_memory(device: torch.device | str) -> int | None:
    """Return the bytes of GPU memory, or of host memory within the container's limit without swap; None if unknown."""
    device = torch.device(device)
    if device.type == "cuda":
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
