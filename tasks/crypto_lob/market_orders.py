"""Market orders that walk the levels of a book, for one account."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.tape import BookTape


class Walked(NamedTuple):
    """A market order's lots, negative if sold, their value, not negative, and lots beyond the levels. Shapes: ()."""

    filled: Tensor
    value: Tensor
    uncovered: Tensor


def depth_table(tape: BookTape, largest: int) -> Tensor:
    """Return the table by which orders walk the book without a loop over prices: lots up to each level, and weights.

    The value of q lots is the sum over levels of price times what the level fills. With c the lots up to and with a
    level that is the sum of w min(q, c), where w is the price less that of the next level, or the price itself at the
    last one. Levels that no order reaches in any row are left out: the table has M of the L levels. Shape: (2 T, M, 2),
    int32, of side 0 (asks) and 1 (bids) of each row.
    """
    there = tape.price > 0
    # Levels that do not exist repeat the last one that does.
    last = torch.where(there, torch.arange(tape.levels), -1).amax(-1, keepdim=True)
    deepest = tape.price.gather(-1, last)
    price = torch.where(there, tape.price, deepest)
    lots = tape.size.to(torch.int64).cumsum(-1)
    reached = 1 + torch.where(lots[..., -1] < largest, last[..., 0], (lots < largest).sum(-1))
    # In a hole nothing is filled, so that the deepest price may stand at any level.
    hole = lots[..., -1] == 0
    levels = int(torch.where(hole, 1, reached).max())
    price = price[..., :levels].clone()
    price[..., -1] = torch.where(hole, deepest[..., 0], price[..., -1])
    following = torch.cat([price[..., 1:], torch.zeros_like(deepest)], -1)
    return torch.stack([lots[..., :levels].to(torch.int32), price - following], -1).flatten(0, 1).contiguous()


def walked(order: Tensor, row: Tensor, depth: Tensor, closes: Tensor) -> Walked:
    """Fill a market order, lots, negative to sell, at most the table's largest, at the levels of the side it hits.

    With ``closes`` lots beyond the levels are filled too, at the price of the deepest. Shapes: ().
    """
    side = (order < 0).to(torch.int64)
    place = 2 * row + side
    wanted = order.abs()
    value = wanted * 0
    for level in range(depth.shape[1]):
        lots, weight = depth[place, level, 0].to(torch.int64), depth[place, level, 1].to(torch.int64)
        taken = torch.minimum(wanted, lots)
        value = value + weight * taken
    # That of the deepest level is what all levels cover, and its weight the price there.
    covered = taken
    uncovered = wanted - covered
    extra = torch.where(closes, uncovered, 0)
    value = 2 * (value + extra * weight)
    filled = covered + extra
    return Walked(torch.where(order < 0, -filled, filled), value, uncovered)
