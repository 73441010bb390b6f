"""Shards: equal parts of a run's rows, each of which learns by itself, so that processes share them in any way.

A run has S shards, whatever it runs on. Shard s plays the rows [s N / S, (s + 1) N / S), shuffles and splits its own
steps, and makes its own gradients and sums, in tensors whose shapes do not depend on who holds it. What all need is
made of the shards' results in their order, in float64. So a process with all S shards, and R processes with S / R of
them each, compute the same numbers bit for bit on one kind of device, if each uses one thread on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from vecenv.learn.settings.run import check_shards


class Ranks:
    """The processes that train together, which make the same calls in the same order; by default one.

    Attributes:
        number: of this process, from 0.
        count: of all.
        received: bytes of tensors that this one has received of others.
        leads: whether this is the first of all, which writes.
        plays: in sets of `apart`, whether this is one of those that play; else None.
        group: of `torch.distributed`, if they are processes; None for all.
    """

    number, count = 0, 1
    received = 0
    leads = True
    plays: bool | None = None
    group: Any = None

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.count == 1 and self.plays is None

    def gathered(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, in their order. Shapes: (k, ...) of each -> (count k, ...)."""
        return tensor

    def joined(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks as `gathered`, whose first dimensions may differ. Shape: (k, ...)."""
        return tensor

    def at_first(self, tensor: Tensor) -> Tensor:
        """Return on the first rank what `gathered` returns, and on the others anything."""
        return tensor

    def every(self, value: Any) -> list[Any]:  # noqa: ANN401
        """Return the plain values of all ranks, in their order."""
        return [value]

    def same(self, told: Mapping[str, str]) -> None:
        """Raise ValueError, naming the rank and what differs, unless all ranks tell the same by name."""
        every = self.every(dict(told))
        for number, other in enumerate(every):
            for name in [name for name in {**every[0], **other} if every[0].get(name) != other.get(name)]:
                raise ValueError(
                    f"rank {number} has another {name} than rank 0: {other.get(name, 'none')}, "
                    f"not {every[0].get(name, 'none')}"
                )

    def told_by_first(self, text: str) -> str:
        """Return the text of the first rank."""
        return str(self.every(text)[0])

    def done_by_first(self, work: Callable[[], str]) -> str:
        """Let the first rank alone do some work, however long it takes, and return on all what it comes to."""
        return work()

    def of_first(self, tensor: Tensor) -> Tensor:
        """Return the tensor of the first of all ranks; the others give one of the same form. Shape: any."""
        return tensor

    def apart(self, players: int) -> Ranks:
        """Return this rank as one of a set of two: the last ``players`` ranks play what the others learn from.

        Number, count, and what is made of tensors by `gathered`, `joined` and `at_first` are then those of the set; all
        else is still of all ranks, which wait for each other however long it takes. ValueError if none would learn.
        """
        raise ValueError(f"{players} of {self.count} processes cannot play: at least one has to learn")

    def watch(self) -> None:
        """Begin the time in which this rank is to make its next step."""

    def rest(self) -> None:
        """Stop the time: no step is to be made."""


ALONE = Ranks()

_joined = ContextVar("ranks", default=ALONE)


def ranks() -> Ranks:
    """Return the ranks of which this process is one; `ALONE` outside of `as_rank`."""
    return _joined.get()


@contextmanager
def as_rank(own: Ranks) -> Iterator[None]:
    """Make this process, or thread, one of several ranks: learners that it makes have a part of the shards."""
    token = _joined.set(own)
    try:
        yield
    finally:
        _joined.reset(token)


class Shards:
    """The shards that this process holds of a run's, and what all of them make together.

    Methods take a value of each own shard, in their order, and return the same on all ranks. Of a run of one shard they
    return what it has.

    Args:
        count: number of all shards, S, a multiple of the ranks.

    Attributes:
        own: number of those that this process holds, which are consecutive.
        first: number of the first of them.
    """

    def __init__(self, count: int = 1) -> None:
        self.count, self.ranks = count, ranks()
        check_shards(count, self.ranks.count, count, "shards")
        self.own = count // self.ranks.count
        self.first = self.ranks.number * self.own

    def first_row(self, rows: int) -> int:
        """Return the number in the run of the first of this process's ``rows``."""
        return self.ranks.number * rows

    def slices(self, rows: int) -> list[slice]:
        """Return the rows of each own shard among the ``rows`` of this process."""
        each = rows // self.own
        return [slice(first, first + each) for first in range(0, rows, each)]

    def parts(self, values: Tensor, dim: int = 1) -> list[Tensor]:
        """Return the own shards' parts of a tensor of rows. Shape: (T, N, ...) by default."""
        # In one layout, by which the order of sums goes, and memory of their own.
        copies = torch.contiguous_format
        return [values] if self.own == 1 else [part.clone(memory_format=copies) for part in values.chunk(self.own, dim)]

    def total(self, values: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return the sums over all shards of some tensors of each. Shape of each: any."""
        if self.count == 1:
            return list(values[0])
        flat = self.ranks.gathered(torch.stack([torch.cat([one.flatten().double() for one in own]) for own in values]))
        sums = in_order(flat).split([one.numel() for one in values[0]])
        return [total.view_as(one).to(one.dtype) for total, one in zip(sums, values[0], strict=True)]

    def mean(self, values: Sequence[Tensor]) -> Tensor:
        """Return the mean over all shards of a tensor of each. Shape: any."""
        if self.count == 1:
            return values[0]
        flat = self.ranks.gathered(torch.stack(list(values)).double())
        return (in_order(flat) / self.count).to(values[0].dtype)

    def moments(self, number: int, each: Sequence[tuple[Tensor, Tensor]]) -> tuple[int, Tensor, Tensor]:
        """Return number, mean and sum of squared distances of all samples, of which each shard has as many.

        Args:
            number: samples of one shard.
            each: their mean, and the sum of their squared distances from it.
        """
        if self.count == 1:
            return number, *each[0]
        flat = self.ranks.gathered(torch.stack([torch.stack(own) for own in each]).double())
        means, squares = flat.unbind(1)
        mean = in_order(means) / self.count
        distances = in_order(squares + number * (means - mean).square())
        return number * self.count, mean.to(each[0][0].dtype), distances.to(each[0][1].dtype)

    def spread(self, values: Tensor, dim: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the values of all rows (T, N).

        Of a run of one shard it may be over some dimensions, which are kept.
        """
        if self.count == 1:
            over: dict[str, Any] = {} if dim is None else {"dim": dim, "keepdim": True}
            return values.mean(**over), values.std(**over)
        parts = self.parts(values)
        means = [part.mean() for part in parts]
        squares = [(part - mean).square().sum() for part, mean in zip(parts, means, strict=True)]
        count, mean, distances = self.moments(parts[0].numel(), list(zip(means, squares, strict=True)))
        return mean, (distances / (count - 1)).sqrt()

    def joined(self, values: Sequence[Tensor]) -> Tensor:
        """Return tensors of the shards, whose first dimensions may differ, one after the other. Shape: (k, ...)."""
        return self.ranks.joined(values[0] if len(values) == 1 else torch.cat(list(values)))

    def whole(self, state: Any) -> Any:  # noqa: ANN401
        """Return a state of all rows on the first rank, and on others anything: tensors have rows first, or none."""
        if self.ranks.count == 1:
            return state
        return _mapped(state, lambda tensor: self.ranks.at_first(tensor) if tensor.ndim else tensor)

    def own_part(self, state: Any) -> Any:  # noqa: ANN401
        """Return what belongs to this rank of a state of all rows, as `whole` returns it."""
        if self.ranks.count == 1:
            return state

        def part(tensor: Tensor) -> Tensor:
            if not tensor.ndim or len(tensor) % self.ranks.count:
                # Of another number of rows, which whoever loads it says.
                return tensor
            return tensor.chunk(self.ranks.count)[self.ranks.number].clone()

        return _mapped(state, part)


def in_order(values: Tensor) -> Tensor:
    """Return the sum over the first dimension, added from first to last. Shapes: (S, ...) -> (...), float64."""
    total = values[0].double()
    for value in values[1:]:
        total = total + value
    return total


def _mapped(state: Any, function: Any) -> Any:  # noqa: ANN401
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, Mapping):
        return {name: _mapped(value, function) for name, value in state.items()}
    if isinstance(state, list):
        return [_mapped(value, function) for value in state]
    return state
