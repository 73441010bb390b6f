"""Rows of sub-environments: what the engine knows of each, and trees of tensors taken apart and put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from tensordict import TensorClass
from torch import Tensor

TERMINATED, TRUNCATED = 1, 2

Tree = TypeVar("Tree", bound=TensorClass)


class Rows(TensorClass):
    """What the engine knows of every sub-environment.

    Attributes:
        state: the scenario's state, a tensorclass. Batch: (N,).
        episode: number of the episode. Shape: (N,), int64.
        elapsed: steps taken in the episode. Shape: (N,), int64.
        ended: `TERMINATED` or `TRUNCATED` or both once the episode has ended, so that the next fused step starts
            another; 0 before. One integer, because compiled booleans are handled one by one on a CPU and cost an eighth
            of the step. Shape: (N,), int32.
    """

    state: TensorClass
    episode: Tensor
    elapsed: Tensor
    ended: Tensor

    @property
    def terminated(self) -> Tensor:
        """Whether the rules have ended the episode. Shape: (N,), bool."""
        return (self.ended & TERMINATED) != 0

    @property
    def truncated(self) -> Tensor:
        """Whether the episode has been cut off. Shape: (N,), bool."""
        return (self.ended & TRUNCATED) != 0

    @property
    def done(self) -> Tensor:
        """Whether the episode has ended. Shape: (N,), bool."""
        return self.ended != 0


class Outcome(NamedTuple):
    """Results of one step for all rows.

    Attributes:
        rows: rows after the step, not reset.
        reward: Shape: (N,), float32.
    """

    rows: Rows
    reward: Tensor

    @property
    def terminated(self) -> Tensor:
        """Whether the rules have ended each episode. Shape: (N,), bool."""
        return self.rows.terminated

    @property
    def truncated(self) -> Tensor:
        """Whether each episode has been cut off. Shape: (N,), bool."""
        return self.rows.truncated


def leaves(tree: TensorClass) -> list[Tensor]:
    """Return the tensors of a (nested) tensorclass in a fixed order."""
    flat: list[Tensor] = []
    for name in sorted(tree.keys()):
        value = tree.get(name)
        flat += [value] if isinstance(value, Tensor) else leaves(value)
    return flat


def leaf_names(tree: TensorClass, before: str = "") -> list[str]:
    """Return the names of the tensors that `leaves` lists, those of a nested one behind its own and a dot."""
    names: list[str] = []
    for name in sorted(tree.keys()):
        value = tree.get(name)
        names += [before + name] if isinstance(value, Tensor) else leaf_names(value, f"{before}{name}.")
    return names


def with_leaves(tree: Tree, tensors: Sequence[Tensor], batch: Sequence[int] | None = None) -> Tree:
    """Return a tensorclass like ``tree`` made of the tensors that `leaves` would list, with another batch if given."""
    remaining = iter(tensors)

    def build(node: TensorClass) -> TensorClass:
        made = {}
        for name in sorted(node.keys()):
            value = node.get(name)
            made[name] = next(remaining) if isinstance(value, Tensor) else build(value)
        return type(node)(**made, batch_size=node.batch_size if batch is None else batch)

    return build(tree)


def owned(tree: Tree) -> Tree:
    """Return a tensorclass whose tensors are contiguous and share memory with no other."""
    return with_leaves(tree, [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves(tree)])


def select_rows(mask: Tensor, chosen: Tree, other: Tree) -> Tree:
    """Return row by row ``chosen`` where ``mask`` holds and ``other`` elsewhere. Shape of the mask: (N,)."""
    pairs = zip(leaves(chosen), leaves(other), strict=True)
    return with_leaves(other, [torch.where(mask.view(-1, *(1,) * (new.ndim - 1)), new, old) for new, old in pairs])
