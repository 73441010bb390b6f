"""Clearing of one call auction; `torch.vmap` batches it.

The cost is a histogram of the orders by price, sums along it, and one sort for the rest of the margin.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL

MAX_QUANTITY = 2**20
"""Largest quantity of an order."""

MAX_AGENTS = 2**20
"""Largest number of agents, so that products of quantities and their sums fit int64."""

_NOBODY = -1
_FAR = 2**62


class Orders(NamedTuple):
    """One order of each agent. Shape of each: (A,), integers.

    Attributes:
        side: `BUY` or `SELL`.
        price: worst price in ticks, 1 … 2^30. An order at the market has that of the window's end.
        quantity: in shares, 0 for no order, at most `MAX_QUANTITY`.
    """

    side: Tensor
    price: Tensor
    quantity: Tensor


class Cleared(NamedTuple):
    """Result of an auction.

    Attributes:
        price: of all trades, the reference where nothing is traded. Shape: (), int64.
        volume: bought, and sold. Shape: (), int64.
        imbalance: demand less supply at the price. Shape: (), int64.
        filled: of each order. Shape: (A,), int64.
        invalid: orders out of range. Shape: (), int64.
    """

    price: Tensor
    volume: Tensor
    imbalance: Tensor
    filled: Tensor
    invalid: Tensor


def clear(orders: Orders, reference: Tensor, low: Tensor, levels: int) -> Cleared:
    """Return the price of most volume, and the fills, by the rules of the room's page.

    Ties go to the ``reference`` price. The window has ``levels`` prices, L, from ``low`` on.

    Raises:
        ValueError: there are more than `MAX_AGENTS` agents, or the window has no price.
    """
    count = orders.side.shape[-1]
    if count > MAX_AGENTS or levels < 1:
        raise ValueError(f"an auction has at most {MAX_AGENTS:,} agents and a price, got {count:,} and {levels:,}")
    side, price, quantity = (column.to(torch.int64) for column in orders)
    known = (side == BUY) | (side == SELL)
    valid = known & (price >= 1) & (price <= MAX_PRICE) & (quantity >= 1) & (quantity <= MAX_QUANTITY)
    level = price - low
    buys = valid & (side == BUY) & (level >= 0)
    sells = valid & (side == SELL) & (level < levels)
    level = level.clamp(0, levels - 1)

    none = torch.zeros_like(level[:1]).expand(levels)
    bids = none.scatter_add(0, level, torch.where(buys, quantity, 0))
    asks = none.scatter_add(0, level, torch.where(sells, quantity, 0))
    demand, supply = bids.flip(0).cumsum(0).flip(0), asks.cumsum(0)
    place = torch.arange(levels, device=level.device)
    best = _best(demand, supply, place, reference - low)
    volume = torch.minimum(demand, supply)[best]

    # The last level of each side that is served: whole before it, a share at it.
    last_bid = torch.where(demand >= volume, place, _NOBODY).amax()
    last_ask = torch.where(supply >= volume, place, levels).amin()
    rest_of_bids = volume - (demand[last_bid] - bids[last_bid])
    rest_of_asks = volume - (supply[last_ask] - asks[last_ask])
    whole = (buys & (level > last_bid)) | (sells & (level < last_ask))
    bid_margin, ask_margin = buys & (level == last_bid), sells & (level == last_ask)
    filled = torch.where(whole, quantity, 0)
    filled = filled + _shared(torch.where(bid_margin, quantity, 0), rest_of_bids)
    filled = filled + _shared(torch.where(ask_margin, quantity, 0), rest_of_asks)
    trades = volume > 0
    return Cleared(
        price=torch.where(trades, low + best, reference),
        volume=volume,
        imbalance=torch.where(trades, demand[best] - supply[best], 0),
        filled=torch.where(trades, filled, 0),
        invalid=((quantity != 0) & ~valid).sum(),
    )


def _best(demand: Tensor, supply: Tensor, place: Tensor, reference: Tensor) -> Tensor:
    """Return the level of most volume; of ties that of least imbalance, then the nearest, then the lower. Shape: ()."""
    volume = torch.minimum(demand, supply)
    candidates = volume == volume.amax()
    for badness in ((demand - supply).abs(), (place - reference).abs(), place):
        worse = torch.where(candidates, badness, _FAR)
        candidates = worse == worse.amin()
    return torch.where(candidates, place, 0).sum()


def _shared(quantity: Tensor, rest: Tensor) -> Tensor:
    """Return shares of a rest in proportion to quantities, by largest remainder. Shapes: (A,), () -> (A,).

    Of equal remainders the lower number comes first.
    """
    total = quantity.sum().clamp(min=1)
    share = quantity * rest // total
    left = rest - share.sum()
    remainder = quantity * rest - share * total
    number = torch.arange(len(quantity), device=quantity.device)
    # Quantities and remainders are below 2^40 where they are not 0, numbers below 2^20.
    order = torch.where(quantity > 0, remainder * MAX_AGENTS + (MAX_AGENTS - 1 - number), _NOBODY)
    ranked = order.sort(descending=True).values
    least = ranked.index_select(0, (left - 1).clamp(0, len(quantity) - 1).reshape(1))[0]
    return share + ((left > 0) & (order >= least)).to(torch.int64)
