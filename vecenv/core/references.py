"""Observations kept by reference: what only shared tensors determine is a row number until it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vecenv.core.engine import BoundEngine
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario


class References:
    """The split of a scenario's observations into blocks of a sub-environment's own and blocks by reference.

    The widths are those of all blocks, ``own_widths`` of the own ones; ``count`` is the number of rows that can be
    referred to, R.

    Raises:
        ValueError: the scenario has no such blocks.
    """

    def __init__(self, scenario: Scenario[Any], widths: Sequence[int]) -> None:
        if not scenario.referenced_blocks:
            raise ValueError(f"{scenario.name} has no observations by reference")
        self._widths, self._referenced = list(widths), list(scenario.referenced_blocks)
        self._own = [place for place in range(len(widths)) if place not in self._referenced]
        self.own_widths = [widths[place] for place in self._own]
        self.count = scenario.num_references

    def parts(self, bound: BoundEngine, rows: Rows) -> list[Tensor]:
        """Return the own blocks and the references. Shape of each: (N, width); (N,), int64."""
        blocks, reference = bound.observe(rows), bound.reference(rows)
        return [*(blocks[place] for place in self._own), reference]

    def whole(self, bound: BoundEngine, own: Tensor, reference: Tensor) -> Tensor:
        """Return observations from their parts. Shapes: (M, own), (M,) -> (M, D)."""
        return self.joined(own, torch.cat(bound.referenced(reference), dim=-1))

    def table(self, bound: BoundEngine) -> Tensor:
        """Return the columns by reference of all rows. Shape: (R, referenced)."""
        device = next(iter(bound.shared.values())).device
        return torch.cat(bound.referenced(torch.arange(self.count, device=device)), dim=-1)

    def own_columns(self, values: Tensor) -> Tensor:
        """Return the columns of the own blocks, in their order. Shapes: (..., D) -> (..., own)."""
        blocks = values.split(self._widths, dim=-1)
        # A task may have no block of its own.
        return torch.cat([values[..., :0], *(blocks[place] for place in self._own)], dim=-1)

    def referenced_columns(self, values: Tensor) -> Tensor:
        """Return the columns of the blocks by reference, in their order. Shapes: (..., D) -> (..., referenced)."""
        blocks = values.split(self._widths, dim=-1)
        return torch.cat([blocks[place] for place in self._referenced], dim=-1)

    def joined(self, own: Tensor, referenced: Tensor) -> Tensor:
        """Return columns in the order of the observation: the inverse of the two above."""
        blocks = dict(zip(self._own, own.split(self.own_widths, dim=-1), strict=True))
        widths = [self._widths[place] for place in self._referenced]
        blocks |= dict(zip(self._referenced, referenced.split(widths, dim=-1), strict=True))
        return torch.cat([blocks[place] for place in range(len(blocks))], dim=-1)
