"""A market whose memory is divided among the rows of its seats.

Rows of an environment have equal shapes. So each row of a market with S seats holds an S-th part of every tensor of the
market, and a market takes no more memory than with one seat.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import pad

from vecenv.tasks.agent_market.market import Layout, Market


def part_size(count: int, seats: int) -> int:
    """Return how many of the numbers of a tensor each seat's row holds; the last row's may have no meaning."""
    return -(-count // seats)


def split(market: Market, seats: int) -> Market:
    """Return a market by parts. Batch: () -> (S,)."""
    parts = {}
    for name in Market.__annotations__:
        flat: Tensor = market.get(name).flatten()
        size = part_size(len(flat), seats)
        parts[name] = pad(flat, (0, seats * size - len(flat))).view(seats, size)
    return Market(**parts, batch_size=[seats])


def field_of(market: Market, name: str, layout: Layout) -> Tensor:
    """Return a tensor of a market, which may be split. Shape: as of an undivided one."""
    value: Tensor = market.get(name)
    if not market.batch_size:
        return value
    shape, _ = layout.market_shapes()[name]
    return value.flatten()[: math.prod(shape)].view(shape)


def joined(parts: Market, layout: Layout) -> Market:
    """Return a market from its parts. Batch: (S,) -> ()."""
    return Market(**{name: field_of(parts, name, layout) for name in Market.__annotations__}, batch_size=[])
