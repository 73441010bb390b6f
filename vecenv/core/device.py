"""PyTorch devices by name: cpu, cuda, cuda:1 or auto."""

from __future__ import annotations

import warnings

import torch

EMULATING = ("DEFAULT", "NO AVX", "AVX2")
"""Instruction sets of x86 without products in bfloat16, as PyTorch names them."""


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
    """Warn that products in bfloat16, asked for by an option, are emulated on this CPU, if they are.

    On an AMD EPYC with AVX2 alone they took ten times as long as in float32, with AVX512-BF16 a fifth of the time.
    """
    kind = torch.backends.cpu.get_cpu_capability()
    if device.type == "cpu" and kind in EMULATING:
        warnings.warn(f"{option}: this CPU ({kind}) emulates bfloat16, much slower than float32", stacklevel=2)
