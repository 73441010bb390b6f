"""Passes over the places of a book, in the forms that compilers make fast code of.

Inductor's code for CPUs reduces int32 across the lanes of a vector one by one: 64 ns for 64 places, where adding up
lanes of several vectors first takes 4, and float32, which has an instruction for it, 3. Booleans of every place are
written and read one by one too. Figures of one AMD EPYC core.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

LANES = 16
"""Numbers of four bytes in the widest vector of a CPU."""


def total(values: Tensor) -> Tensor:
    """Return the sum over the last dimension, in the type of the integers given. Shapes: (..., K) -> (...)."""
    folded = _folded(values)
    return values.sum(-1, dtype=values.dtype) if folded is None else total(folded.sum(-2, dtype=values.dtype))


def largest(values: Tensor) -> Tensor:
    """Return the maximum over the last dimension. Shapes: (..., K) -> (...)."""
    folded = _folded(values)
    return values.amax(-1) if folded is None else largest(folded.amax(-2))


def least(values: Tensor) -> Tensor:
    """Return the minimum over the last dimension of integers whose negatives exist. Shapes: (..., K) -> (...)."""
    return -largest(-values)


def _folded(values: Tensor) -> Tensor | None:
    """Return integers as rows of a vector or of four numbers, over which to reduce first; None if they are few."""
    room = values.shape[-1]
    width = next((width for width in (LANES, 4) if room > width and room % width == 0), None)
    return None if width is None else values.unflatten(-1, (-1, width))


def count(mask: Tensor) -> Tensor:
    """Return how many are true, exact for fewer than 2²⁴. Shapes: (K,) -> (), int32."""
    return mask.to(torch.float32).sum(-1).to(torch.int32)


def first(mask: Tensor) -> Tensor:
    """Return the first place that is true, or K; exact for K up to 2²⁴. Shapes: (K,) -> (), int32."""
    room = mask.shape[-1]
    place = torch.arange(room, dtype=torch.int32, device=mask.device)
    return torch.where(mask, place, room).to(torch.float32).amin(-1).to(torch.int32)


def written_out(*numbers: Tensor) -> tuple[Tensor, ...]:
    """Return int32 numbers of a book that many places need, by way of memory: else each place works them out anew."""
    return torch.stack(numbers).unbind()


def before(column: Tensor) -> Tensor:
    """Return what stands one place before each, 0 before the first. Shapes: (2, K) -> (2, K)."""
    return pad(column[:, :-1], (1, 0))


def after(column: Tensor) -> Tensor:
    """Return what stands one place after each, 0 after the last. Shapes: (2, K) -> (2, K)."""
    return pad(column[:, 1:], (0, 1))
