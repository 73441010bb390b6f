"""Checks of what callers give: devices, and input tensors, as compiled calls read raw memory.

Accepted dtype conversions: floats of any width and integers to floats, rounded to nearest; integers to integers only if
the target type holds every value of the source type. Booleans do not convert to or from numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torchrl.data import TensorSpec

Layout = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
"""Properties of a tensor that a compiled call assumes: shape, strides, dtype and device."""


def layout(tensor: Tensor) -> Layout:
    """Return the `Layout` of a tensor."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def form(tensor: object) -> str:
    """Return shape and type of a tensor in words, for messages."""
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__}"
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def keeps_meaning(given: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether values of one dtype may be converted to another; see the module's docstring."""
    if given == wanted:
        return True
    if torch.bool in (given, wanted) or given.is_complex or wanted.is_complex:
        return False
    if wanted.is_floating_point:
        return True
    if given.is_floating_point:
        return False
    narrow, wide = torch.iinfo(given), torch.iinfo(wanted)
    return wide.min <= narrow.min and narrow.max <= wide.max


class ActionCheck:
    """Checks shape, dtype and device of the actions of N rows, not their values."""

    def __init__(self, specs: Iterable[TensorSpec], num_envs: int, device: torch.device) -> None:
        self.types: dict[torch.Size, torch.dtype] = {}
        for spec in specs:
            self.types.setdefault(torch.Size((num_envs, *spec.shape)), spec.dtype)
        self.device = device

    def __call__(self, action: Tensor) -> Tensor:
        """Return the actions cast to the dtype of their spec. Shape: (N, *spec.shape).

        Raises:
            TypeError: they are not a tensor.
            ValueError: they have another shape or device, or a dtype that cannot be converted.
        """
        if not isinstance(action, Tensor):
            raise TypeError(f"actions must be a tensor, got {form(action)}")
        wanted = self.types.get(action.shape)
        if wanted is None:
            shapes = " or ".join(str(tuple(shape)) for shape in self.types)
            raise ValueError(f"actions must have shape {shapes}, got {tuple(action.shape)}")
        if action.device != self.device:
            raise ValueError(f"actions are on {action.device}, the environment is on {self.device}")
        if action.dtype == wanted:
            return action
        if not keeps_meaning(action.dtype, wanted):
            raise ValueError(f"actions must be {wanted}, and {action.dtype} cannot be turned into it")
        return action.to(wanted)


def checked_mask(mask: Tensor, num_envs: int, device: torch.device) -> Tensor:
    """Return a mask of rows; ValueError if it is not one boolean per row, or on another device."""
    if not isinstance(mask, Tensor) or mask.shape != (num_envs,) or mask.dtype != torch.bool:
        raise ValueError(f"a mask of rows must be ({num_envs},) bool, got {form(mask)}")
    if mask.device != device:
        raise ValueError(f"a mask of rows is on {mask.device}, the environment is on {device}")
    return mask


def row_numbers(ids: Tensor | Sequence[int], num_envs: int, device: torch.device) -> Tensor:
    """Return row indices as int64 on a device; IndexError out of range, TypeError if not integers. Shape: (B,)."""
    given = torch.as_tensor(ids).reshape(-1)
    if given.numel() == 0:
        return torch.zeros(0, dtype=torch.int64, device=device)
    if not keeps_meaning(given.dtype, torch.int64):
        raise TypeError(f"rows are numbered by integers, got {form(given)}")
    numbers = given.to(device, torch.int64)
    least, most = numbers.aminmax()
    if int(least) < 0 or int(most) >= num_envs:
        raise IndexError(f"rows {_listed(numbers)} are not all in [0, {num_envs})")
    return numbers


def distinct(numbers: Tensor, name: str) -> None:
    """Raise ValueError if a row index occurs twice."""
    if len(numbers.unique()) < len(numbers):
        raise ValueError(f"{name} {_listed(numbers)} name a row twice")


def checked_integers(
    name: str, given: object, shape: Sequence[int], bits: int, device: torch.device | None = None
) -> Tensor:
    """Return a tensor of integers in [0, 2^bits) as int64; ValueError for another type, shape or value."""
    if not isinstance(given, Tensor) or given.shape != tuple(shape):
        got = tuple(given.shape) if isinstance(given, Tensor) else form(given)
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {got}")
    if not keeps_meaning(given.dtype, torch.int64):
        raise ValueError(f"{name} must be integers, got {given.dtype}")
    numbers = given.to(device, torch.int64)
    outside = numbers >> bits != 0
    if bool(outside.any()):
        raise ValueError(f"{name} must be in [0, 2^{bits}), got {_listed(numbers[outside])}")
    return numbers


def check_same_forms(what: str, given: Mapping[str, object], own: Mapping[str, Tensor], device: bool = False) -> None:
    """Raise ValueError unless tensors have the names, shapes, types (and devices) of those that they replace."""
    for name in [*own, *(name for name in given if name not in own)]:
        new, old = given.get(name), own.get(name)
        if old is None:
            raise ValueError(f"{what}: unknown {name}")
        if new is None:
            raise ValueError(f"{what}: no {name}")
        if not isinstance(new, Tensor) or (new.shape, new.dtype) != (old.shape, old.dtype):
            raise ValueError(f"{what}: {name} must be {form(old)}, got {form(new)}")
        if device and new.device != old.device:
            raise ValueError(f"{what}: {name} is on {new.device}, not on {old.device}")


def check_unchanged(now: Mapping[str, Tensor], layouts: Mapping[str, Layout]) -> None:
    """Raise ValueError if a tensor was added, removed, or has not the layout for which a call was compiled."""
    if now.keys() != layouts.keys():
        changed = ", ".join(sorted(now.keys() ^ layouts.keys()))
        raise ValueError(f"{changed}: not what the compiled step was made for; make another environment")
    for name, tensor in now.items():
        if layout(tensor) != layouts[name]:
            shape, strides, dtype, device = layouts[name]
            raise ValueError(
                f"{name} was {tuple(shape)} {dtype} with strides {strides} on {device} when the step was compiled, and "
                f"is {tuple(tensor.shape)} {tensor.dtype} with strides {tensor.stride()} on {tensor.device}: write "
                "other numbers in place"
            )


def _listed(numbers: Tensor) -> str:
    shown = ", ".join(map(str, numbers[:8].tolist()))
    return f"[{shown}{', …' if len(numbers) > 8 else ''}]"


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
