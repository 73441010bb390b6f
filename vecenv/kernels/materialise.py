"""Fusion barrier for compiled steps: tensors that pass it are computed once and stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.library.custom_op("vecenv::materialise", mutates_args=())
def _materialise(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


@_materialise.register_fake
def _(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in tensors]


@_materialise.register_vmap
def _(info: object, in_dims: tuple, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[int | None]]:
    return _materialise(tensors), list(in_dims[0])


def materialise(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors that the compiler does not recompute for each use.

    Inductor inlines cheap expressions into every loop that reads them, and splits a long step into many loops, so that
    long chains such as a day of orders would be computed several times.
    """
    return _materialise(tensors)
