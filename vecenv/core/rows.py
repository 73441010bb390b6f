"""Rows: batched state of sub-environments, and flattening, rebuilding and selecting of nested tensorclasses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from tensordict import TensorClass
from torch import Tensor

TERMINATED, TRUNCATED = 1, 2

Tree = TypeVar("Tree", bound=TensorClass)


class Rows(TensorClass):
    """State, episode number, elapsed steps and end flags of every sub-environment.

    Attributes:
        state: the scenario's state, a tensorclass. Batch: (N,).
        episode: number of the episode. Shape: (N,), int64.
        elapsed: steps taken in the episode. Shape: (N,), int64.
        ended: sum of the flags `TERMINATED` and `TRUNCATED`; 0 while the episode runs. One integer, because compiled
            code does not vectorise booleans on a CPU, which would cost an eighth of the step. Shape: (N,), int32.
    """

    state: TensorClass
    episode: Tensor
    elapsed: Tensor
    ended: Tensor

    @property
    def terminated(self) -> Tensor:
        return (self.ended & TERMINATED) != 0

    @property
    def truncated(self) -> Tensor:
        return (self.ended & TRUNCATED) != 0

    @property
    def done(self) -> Tensor:
        return self.ended != 0


def flags_of(ended: Tensor) -> dict[str, Tensor]:
    """Return whether rows are ``done``, ``terminated`` or ``truncated`` by their `Rows.ended`, in its shape, bool."""
    return {"done": ended != 0, "terminated": (ended & TERMINATED) != 0, "truncated": (ended & TRUNCATED) != 0}


class Outcome(NamedTuple):
    """Results of one step for all rows: the rows before auto-reset, and rewards. Shape: (N,), float32."""

    rows: Rows
    reward: Tensor

    @property
    def terminated(self) -> Tensor:
        return self.rows.terminated

    @property
    def truncated(self) -> Tensor:
        return self.rows.truncated


def leaves(tree: TensorClass) -> list[Tensor]:
    """Return the tensors of a (nested) tensorclass in a fixed order."""
    flat: list[Tensor] = []
    for name in sorted(tree.keys()):
        value = tree.get(name)
        flat += [value] if isinstance(value, Tensor) else leaves(value)
    return flat


def leaf_names(tree: TensorClass, before: str = "") -> list[str]:
    """Return the dotted names of the tensors that `leaves` returns."""
    names: list[str] = []
    for name in sorted(tree.keys()):
        value = tree.get(name)
        names += [before + name] if isinstance(value, Tensor) else leaf_names(value, f"{before}{name}.")
    return names


def of_fields(rows: Rows, fields: Collection[str]) -> list[bool]:
    """Whether each of the tensors that `leaves` returns belongs to one of the state's fields of these names."""
    return [name.startswith("state.") and name.split(".")[1] in fields for name in leaf_names(rows)]


def hollow(rows: Rows, fields: Collection[str]) -> Rows:
    """Return the rows with fields of the state emptied: tensors of shape (*batch, 0), which take no memory."""
    if not fields:
        return rows
    pairs = zip(leaves(rows), of_fields(rows, fields), strict=True)
    return with_leaves(rows, [leaf.new_empty(*rows.batch_size, 0) if emptied else leaf for leaf, emptied in pairs])


def with_leaves(tree: Tree, tensors: Sequence[Tensor], batch: Sequence[int] | None = None) -> Tree:
    """Return a tensorclass like ``tree`` with other leaves, ordered as by `leaves`, and another batch size if given."""
    remaining = iter(tensors)

    def build(node: TensorClass) -> TensorClass:
        made = {}
        for name in sorted(node.keys()):
            value = node.get(name)
            made[name] = next(remaining) if isinstance(value, Tensor) else build(value)
        return type(node)(**made, batch_size=node.batch_size if batch is None else batch)

    return build(tree)


class HeldRows:
    """Rows as the tensors of `leaves`; the tensorclass, which costs as much as a small step, is built when it is read.

    From then on the tensorclass counts, as its reader may replace tensors in it.
    """

    def __init__(self, form: Rows, tensors: list[Tensor]) -> None:
        self._form = form
        self._places = {name: place for place, name in enumerate(leaf_names(form))}
        within = {name: place for name, place in self._places.items() if name.startswith("state.")}
        self._fields = {name.removeprefix("state."): place for name, place in within.items()}
        self.put(tensors)

    def put(self, tensors: list[Tensor]) -> None:
        """Replace all tensors."""
        self._tensors = tensors
        self._rows: Rows | None = None

    @property
    def rows(self) -> Rows:
        if self._rows is None:
            self._rows = with_leaves(self._form, self._tensors)
        return self._rows

    @property
    def tensors(self) -> list[Tensor]:
        return self._tensors if self._rows is None else leaves(self._rows)

    def named(self, name: str) -> Tensor:
        """Return one tensor by its name of `leaf_names`."""
        return self.tensors[self._places[name]]

    @property
    def state(self) -> Any:  # noqa: ANN401
        """The scenario's state as it is now, for those who read a few of its tensors."""
        return HeldState(self._form, self._fields, self._tensors) if self._rows is None else self._rows.state


class HeldState:
    """The state of `HeldRows`: its tensors by name, without building the tensorclass, which has all else."""

    def __init__(self, form: Rows, fields: Mapping[str, int], tensors: Sequence[Tensor]) -> None:
        self._form, self._fields, self._tensors = form, fields, tensors

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies are the tensorclass: one without attributes yet would ask itself for them.
        return getattr, (with_leaves(self._form, self._tensors), "state")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        place = self._fields.get(name)
        return getattr(with_leaves(self._form, self._tensors).state, name) if place is None else self._tensors[place]


def form_of(rows: Rows) -> Rows:
    """Return rows with the names, shapes, types and device of others, in next to no memory."""
    return with_leaves(rows, [leaf.new_empty(()).expand(leaf.shape) for leaf in leaves(rows)])


def owned(tree: Tree) -> Tree:
    """Return a copy of a tensorclass with contiguous tensors."""
    return with_leaves(tree, [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves(tree)])


def select_rows(mask: Tensor, chosen: Tree, other: Tree) -> Tree:
    """Return the rows of ``chosen`` where ``mask`` is set, else those of ``other``. Shape of the mask: (N,)."""
    pairs = zip(leaves(chosen), leaves(other), strict=True)
    return with_leaves(other, [torch.where(mask.view(-1, *(1,) * (new.ndim - 1)), new, old) for new, old in pairs])
