"""Hardware limits of a device: memory bandwidth, matrix-product rate and peak memory."""

from __future__ import annotations

import math
import platform
import re
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch

COPY_BYTES = 2**28
GPU_COPY_BYTES = 2**32
"""A GPU copies the smaller amount in the time that it takes to start a copy and to wait for it."""
WARM_UP_SECONDS = 0.3
"""Warm-up time before a GPU measurement, since clocks are low when idle."""
PRODUCT_OPERATIONS = {"cpu": 2e9, "cuda": 2e12}
"""Number of operations timed together in matrix products, by device type."""


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


def nvidia_smi(device: torch.device, *fields: str) -> list[str | None]:
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return [None] * len(fields)
    return [word.strip() for word in told[device.index or 0].split(",")]


def clocks(device: torch.device) -> dict[str, str | None]:
    """Return the current clocks and temperature of a GPU; empty for a CPU."""
    if device.type != "cuda":
        return {}
    fields = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
    return dict(zip(fields, nvidia_smi(device, *fields), strict=True))


def file_stem(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("(r)", "")).strip("-")


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(function: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Return the time of each call: wall time, or between two synchronised events on a GPU."""
    if device.type == "cuda":
        return _seconds_between_events(function, device, repeats)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return times


def _seconds_between_events(function: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    times = []
    with torch.cuda.device(device):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(repeats):
            torch.cuda.synchronize()
            before.record()
            function()
            after.record()
            torch.cuda.synchronize()
            times.append(before.elapsed_time(after) / 1e3)
    return times


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second read plus written by one large copy, the median of nine."""
    # Random numbers: some GPUs compress equal ones.
    source = torch.rand(_copied_bytes(device) // 4, device=device)
    target = torch.empty_like(source)
    _warm_up(lambda: target.copy_(source), device)
    return 2 * _copied_bytes(device) / statistics.median(seconds_of(lambda: target.copy_(source), device, 9))


def write_bandwidth(device: torch.device) -> float:
    """Bytes per second of filling a large tensor, the median of nine: the ceiling of a step that mostly writes."""
    target = torch.empty(_copied_bytes(device) // 4, device=device)
    _warm_up(lambda: target.fill_(0.0), device)
    return _copied_bytes(device) / statistics.median(seconds_of(lambda: target.fill_(1.0), device, 9))


def _copied_bytes(device: torch.device) -> int:
    """Return the size of a copy: many times the caches, and a small part of the memory."""
    if device.type != "cuda":
        return COPY_BYTES
    return max(COPY_BYTES, min(GPU_COPY_BYTES, torch.cuda.mem_get_info(device)[0] // 8))


def _warm_up(function: Callable[[], object], device: torch.device) -> None:
    """Call a function until a GPU's clocks are high; once on a CPU."""
    function()
    ends = time.perf_counter() + WARM_UP_SECONDS
    while device.type == "cuda" and time.perf_counter() < ends:
        function()
        synchronise(device)


def product_rate(rows: int, inner: int, columns: int, dtype: torch.dtype, device: torch.device) -> float:
    """Operations per second, multiplications and additions, of products of random matrices of a size."""
    left = torch.randn(rows, inner, device=device, dtype=dtype)
    right = torch.randn(inner, columns, device=device, dtype=dtype)
    operations = 2 * rows * inner * columns
    calls = math.ceil(PRODUCT_OPERATIONS[device.type] / operations)

    def products() -> None:
        for _ in range(calls):
            torch.mm(left, right)

    _warm_up(products, device)
    return calls * operations / statistics.median(seconds_of(products, device, 9))


def reset_peak_memory(device: torch.device) -> None:
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
