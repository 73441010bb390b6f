"""Session part that measures the device's bandwidth and matrix-product rates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.device_session.point import Place, Point

DTYPES = {"products float32": torch.float32, "products bfloat16": torch.bfloat16}


def points(place: Place) -> Sequence[Point]:
    """Return the points of the copy bandwidth, the reference of all shares, and of matrix-product rates."""
    device = torch.device(place.device)
    return [
        Point("copy", partial(_bandwidth, device)),
        *(Point(name, partial(_products, device, dtype, place.small)) for name, dtype in DTYPES.items()),
    ]


def _bandwidth(device: torch.device) -> dict[str, Any]:
    copies, writes = machine.copy_bandwidth(device), machine.write_bandwidth(device)
    facts: dict[str, Any] = {"device": machine.device_name(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": list(torch.cuda.get_device_capability(device)),
        }
    return {
        "headline": f"copies {copies / 1e9:,.0f} GB/s, writes {writes / 1e9:,.0f} GB/s",
        **facts,
        "copy_bandwidth_bytes_per_second": copies,
        "write_bandwidth_bytes_per_second": writes,
        "clocks": machine.clocks(device),
    }


def _products(device: torch.device, dtype: torch.dtype, small: bool) -> dict[str, Any]:
    size = 256 if small else 8192 if device.type == "cuda" else 1024
    rate = machine.product_rate(size, size, size, dtype, device)
    return {
        "headline": f"{rate / 1e9:,.0f} GFLOP/s",
        "size": size,
        "operations_per_second": rate,
        "clocks": machine.clocks(device),
    }
