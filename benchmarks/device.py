"""What a device can do at most, so that a throughput can be read against it."""

from __future__ import annotations

import platform
import re
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

COPY_BYTES = 2**28


def device_name(device: torch.device) -> str:
    """Name of the GPU, or of the processor with the number of threads in use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())
        model = found.group(1) if found else model
    return f"{model}, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"


def file_stem(name: str) -> str:
    """Return a device's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("(r)", "")).strip("-")


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(function: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Return the wall time of each call."""
    times = []
    for _ in range(repeats):
        synchronise(device)
        started = time.perf_counter()
        function()
        synchronise(device)
        times.append(time.perf_counter() - started)
    return times


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second read plus written by one large copy, the median of nine."""
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * COPY_BYTES / statistics.median(seconds_of(lambda: target.copy_(source), device, 9))


def write_bandwidth(device: torch.device) -> float:
    """Bytes per second of filling a large tensor, the median of nine: the ceiling of a step that mostly writes."""
    target = torch.empty(COPY_BYTES // 4, device=device)
    target.fill_(0.0)
    return COPY_BYTES / statistics.median(seconds_of(lambda: target.fill_(1.0), device, 9))


def reset_peak_memory(device: torch.device) -> None:
    """Start a new measurement of the peak memory, where the platform can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def peak_memory(device: torch.device) -> int:
    """Peak bytes since `reset_peak_memory`: allocated on a GPU, resident in the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found.group(1)) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
