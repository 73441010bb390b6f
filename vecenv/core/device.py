"""PyTorch devices by name: cpu, cuda, cuda:1 or auto."""

from __future__ import annotations

import warnings

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
