"""Attention of a day to the days that a ring buffer keeps, with one key and one value of all heads.

A rollout reads each row's keys and values from memory once a day, for few operations. PyTorch's products of so small
matrices take several times as long as reading them. A kernel for CPUs with AVX2 fetches the next rows meanwhile. It
adds in the order of the numbers, as MKL does for AVX2, to the same bits.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from vecenv.system.native_library import built_library

SOURCE = Path(__file__).with_name("attention.cpp")

HEADS = 4
"""Heads of the networks that the kernel is built for: their sums fill the registers."""


def attended(made: Tensor, keys: Tensor, values: Tensor, place: int | Tensor) -> Tensor:
    """Write a day's key and value at a place of the buffers, and return what its queries read.

    Shapes: (B, heads + 2, E), queries, then key and value, (B, E, W), (B, W, E) -> (B, heads E).
    """
    if isinstance(place, Tensor):
        # Indexing by a one-element tensor would synchronise with the device.
        keys.index_copy_(-1, place.view(1), made[:, -2].unsqueeze(-1))
        values.index_copy_(1, place.view(1), made[:, -1].unsqueeze(1))
    elif (kernels := _kernels(made, keys, values)) is not None:
        return _by_kernels(kernels, made, keys, values, place)
    else:
        keys[..., place], values[:, place] = made[:, -2], made[:, -1]
    # Heads as the query dimension: one product reads the keys once for all heads. PyTorch's attention copies
    # the keys to scale them, which would dominate here.
    share = torch.softmax(torch.bmm(made[:, :-2], keys), dim=-1)
    return torch.bmm(share, values).flatten(1)


def _kernels(made: Tensor, keys: Tensor, values: Tensor) -> ctypes.CDLL | None:
    """Return those for these tensors; None if there are none, the buffers are not full, or gradients are asked for."""
    width, window = keys.shape[1:]
    fit = made.shape[1] == HEADS + 2 and width % 4 == window % 4 == 0 and not made.requires_grad
    for part in (made, keys, values):
        fit = fit and part.device.type == "cpu" and part.dtype == torch.float32 and part.is_contiguous()
    if not (fit and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")):
        return None
    return built_library(SOURCE, "-mfma", f"-DHEADS={HEADS}", f"-DWIDTH={width}", f"-DWINDOW={window}")


def _by_kernels(kernels: ctypes.CDLL, made: Tensor, keys: Tensor, values: Tensor, place: int) -> Tensor:
    rows, width, window = keys.shape
    share, mixed = made.new_empty(rows, HEADS, window), made.new_empty(rows, HEADS * width)
    places = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (made, keys, values, share, mixed)]
    sizes, (own, of_keys, of_values, of_share, of_mixed) = (ctypes.c_int64(rows), ctypes.c_int64(place)), places
    kernels.vecenv_score_days(*sizes, own, of_keys, of_share)
    torch.softmax(share, dim=-1, out=share)
    kernels.vecenv_mix_days(*sizes, own, of_values, of_share, of_mixed)
    return mixed
