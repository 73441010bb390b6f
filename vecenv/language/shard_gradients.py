"""Gradients of a model that each shard makes by itself, added in the order of the shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from vecenv.learn.shards import Shards, in_order

Result = TypeVar("Result")


def add_gradients(parameters: Sequence[Tensor], shards: Shards, each: Iterable[Result]) -> list[Result]:
    """Leave in ``grad`` of the parameters the sum over all shards of their gradients, and return what ``each`` yields.

    Args:
        parameters: which have no gradients yet.
        shards: of the run.
        each: something of each own shard, which adds the shard's gradients to ``grad`` when it is asked for. Sums are
            those of `vecenv.learn.shards.in_order`; a run of one shard has what was left there.
    """
    if shards.count == 1:
        return list(each)
    told, found = list[Result](), list[list[Tensor]]()
    for result in each:
        told.append(result)
        own = [_taken(parameter) for parameter in parameters]
        if found and shards.ranks.count == 1:
            # What is exchanged with nobody is added at once, in less memory.
            found = [[total.double() + one for total, one in zip(found[0], own, strict=True)]]
        else:
            found.append(own)
    for place, parameter in enumerate(parameters):
        every = shards.ranks.gathered(torch.stack([own[place] for own in found]))
        parameter.grad = in_order(every).to(parameter.dtype)
    return told


def _taken(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter, which has none afterwards."""
    found, parameter.grad = parameter.grad, None
    return torch.zeros_like(parameter) if found is None else found
