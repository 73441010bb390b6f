"""Resting orders of one account, with an estimate of the queue ahead of them.

The estimate is that of hftbacktest's `RiskAverseQueueModel`: trades shorten the queue, cancellations only when the size
shown is less than it. Side 0 is the bid, 1 the ask; on the tape side 0 is the asks, which a bid trades with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.orders import KEEP

BID, ASK = 0, 1


def filled_on_the_way(
    resting: Tensor, row: Tensor, price: Tensor, size: Tensor, taken: Tensor, is_open: Tensor
) -> tuple[Tensor, Tensor]:
    """Fill resting orders on the way from a row to the next; return them and the lots filled. Shapes: (2, 3), (2,).

    ``resting`` is price, lots left and lots ahead of bid and ask, (2, 3), int64; the last four are the tape's.
    """
    known, was_known = is_open[row + 1], is_open[row]
    orders, fills = [], []
    for side, sign in ((BID, 1), (ASK, -1)):
        limit, left, ahead = resting[side].unbind()
        own, other = 1 - side, side
        crossed = sign * price[row + 1, other, 0] <= sign * limit
        better = torch.where(sign * price[row, own] > sign * limit, size[row, own], 0).to(torch.int64).sum(-1)
        reaching = (taken[row + 1, own].to(torch.int64) - better).clamp(min=0)
        reaching = torch.where(was_known, reaching, 0)
        traded = torch.minimum(left, (reaching - ahead).clamp(min=0))
        filled = torch.where(known, torch.where(crossed, left, traded), 0)
        shown = torch.where(price[row + 1, own] == limit, size[row + 1, own], 0).to(torch.int64).sum(-1)
        shorter = torch.minimum((ahead - reaching).clamp(min=0), shown)
        orders.append(torch.stack([limit, left - filled, torch.where(known, shorter, ahead)]))
        fills.append(filled)
    return torch.stack(orders), torch.stack(fills)


def placed(
    resting: Tensor, quotes: Tensor, room: Tensor, row: Tensor, price: Tensor, size: Tensor, is_open: Tensor
) -> Tensor:
    """Return the resting orders after those of a choice have been placed, kept or cancelled. Shape: (2, 3), int64.

    ``quotes`` are those of `orders.Choice`, ``room`` the lots that may be bought and sold, (2,).
    """
    orders = []
    for side, sign in ((BID, 1), (ASK, -1)):
        own, other = 1 - side, side
        limit, wanted = quotes[side].unbind()
        old_limit, left, ahead = resting[side].unbind()
        lots = torch.minimum(wanted, room[side]).clamp(min=0)
        there = price[row, own] > 0
        beyond = ~(there & (sign * price[row, own] <= sign * limit)).any(-1)
        trades_at_once = sign * limit >= sign * price[row, other, 0]
        lots = torch.where(beyond | trades_at_once, 0, lots)
        keeps_place = (limit == old_limit) & (lots <= left)
        shown = torch.where(price[row, own] == limit, size[row, own], 0).to(torch.int64).sum(-1)
        new = torch.stack([limit, lots, torch.where(keeps_place, ahead, shown)])
        old = torch.stack([old_limit, torch.minimum(left, room[side].clamp(min=0)), ahead])
        stays = (limit == KEEP) | ~is_open[row]
        order = torch.where(stays, old, new)
        orders.append(torch.where(order[1] > 0, order, 0))
    return torch.stack(orders)
