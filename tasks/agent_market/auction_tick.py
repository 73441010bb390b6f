"""The call auction's part of a tick, exactly as `auction_rules.md` says: all orders are cleared at one price."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.kernels.auction.clearing import MAX_QUANTITY, Cleared, Orders, clear
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL, Kind, Message
from vecenv.tasks.agent_market.config import MOMENTUM, NOISE, SHORT_SAMPLES, VALUE
from vecenv.tasks.agent_market.market import AGENTS_A_STREAM, DEPTH, OWN_ORDERS, Clearing, Layout, Market, MarketStream
from vecenv.tasks.agent_market.rules import TABLE_BITS, Rules, table_normal

_ENTERS = (Kind.LIMIT, Kind.MARKET, Kind.IMMEDIATE, Kind.POST_ONLY, Kind.REPLACE_ALL)
_DOES_NOTHING = (Kind.NOTHING, Kind.CANCEL_ALL)


class _Sent(NamedTuple):
    """Orders of the seats, owner and quantity 0 for a message that is no order. Shape of each: (J,), int64."""

    orders: Orders
    owner: Tensor
    rejected: Tensor


def cleared_in_auction(
    market: Market, value: Tensor, messages: Message, key: EpisodeKey, rules: Rules, layout: Layout
) -> Clearing:
    """Return what an auction of the seats' orders and one of each background agent has done in a tick.

    ``value`` is the fundamental, in 2^-16 price ticks. Shape: (), int64.
    """
    last = market.doubled_mid >> 1
    low = (last - layout.auction // 2).clamp(min=1)
    drawn = _background_orders(market, value, last, key, rules, layout)
    sent = _orders_of_seats(messages, low, layout)
    orders = Orders(*(torch.cat(pair) for pair in zip(sent.orders, drawn, strict=True)))
    cleared = clear(orders, last, low, layout.auction)

    owner = torch.cat([sent.owner, torch.arange(layout.seats, layout.owners, device=last.device)])
    bought = torch.where(orders.side == BUY, cleared.filled, -cleared.filled)
    change = torch.zeros_like(market.shares).index_add(0, owner, bought)
    rest = _rest(orders, cleared, low, layout.auction)
    one_sided = torch.where(cleared.imbalance == 0, cleared.volume - (cleared.volume >> 1), cleared.volume)
    of_buyers = torch.where(cleared.imbalance >= 0, one_sided, 0).to(torch.int32)
    traded, price = cleared.volume > 0, cleared.price.to(torch.int32)
    placed, none = (orders.quantity > 0).sum() - cleared.invalid, market.tick * 0
    counts = torch.stack([placed, sent.rejected.sum() + cleared.invalid, none, none, none])
    of_seats = _by_seats(sent, cleared, layout)
    nothing = of_seats * 0
    return Clearing(
        bid=rest.prices[BUY, 0],
        ask=rest.prices[SELL, 0],
        doubled_mid=2 * cleared.price,
        high=torch.where(traded, price, 0),
        low=torch.where(traded, price, 2**31 - 1),
        bought=of_buyers,
        sold=cleared.volume.to(torch.int32) - of_buyers,
        trades=((orders.side == BUY) & (cleared.filled > 0)).sum(dtype=torch.int32),
        market={
            "cash": market.cash - change * cleared.price,
            "shares": market.shares + change,
            "counts": market.counts + counts,
        },
        seen={
            "notional": cleared.price * cleared.volume,
            "prices": rest.prices.to(torch.int32),
            "quantities": rest.quantities.to(torch.int32),
            "seat_traded": of_seats,
            # Nothing waits in the book.
            **dict.fromkeys(OWN_ORDERS, nothing),
            "own_id": nothing - 1,
        },
    )


def _background_orders(
    market: Market, fundamental: Tensor, last: Tensor, key: EpisodeKey, rules: Rules, layout: Layout
) -> Orders:
    """Return one order of each background agent, in the order of their owners. Shape of each: (agents,), int64."""
    agent = torch.arange(layout.owners - layout.seats, device=last.device)
    stream, place = MarketStream.AUCTION + agent // AGENTS_A_STREAM, agent % AGENTS_A_STREAM
    size, side, distance, noise = random_bits(key, stream, market.tick * AGENTS_A_STREAM + place)
    first = [owner - layout.seats for owner in layout.first]
    of_maker, of_value = agent < first[VALUE], (agent >= first[VALUE]) & (agent < first[MOMENTUM])
    of_momentum = (agent >= first[MOMENTUM]) & (agent < first[NOISE])

    reach = rules.number("auction_spread")
    observed = (fundamental + table_normal(rules.normal, noise, rules.number("observation_noise")) + 2**15) >> 16
    whole, late = market.samples.sum(), market.samples[-SHORT_SAMPLES:].sum()
    rises = 5 * late >= 2 * whole
    held = market.shares[layout.seats :]
    half = (rules.number("first_spread") >> 1).clamp(min=1)
    tossed = side % 2 == 0

    buys = torch.where(of_maker, torch.where(held == 0, tossed, held < 0), tossed)
    buys = torch.where(of_value, observed >= last, torch.where(of_momentum, rises, buys))
    price = last - reach + ((distance * (2 * reach + 1)) >> 32)
    price = torch.where(of_momentum, last + torch.where(buys, reach, -reach), price)
    price = torch.where(of_value, observed, torch.where(of_maker, last - torch.where(buys, half, -half), price))
    quantity = rules.sizes[size >> (32 - TABLE_BITS)].to(torch.int64)
    quantity = torch.where(of_maker, rules.number("min_quote"), quantity)
    return Orders(torch.where(buys, BUY, SELL), price.clamp(1, MAX_PRICE), quantity.clamp(max=MAX_QUANTITY))


def _orders_of_seats(messages: Message, low: Tensor, layout: Layout) -> _Sent:
    kind, side, price, quantity, owner = (words.to(torch.int64) for words in messages[:5])
    enters = _is_one_of(kind, _ENTERS)
    known = (owner >= 0) & (owner < layout.seats) & ((side == BUY) | (side == SELL))
    at_market = kind == Kind.MARKET
    possible = (quantity >= 1) & (quantity <= MAX_QUANTITY) & (at_market | ((price >= 1) & (price <= MAX_PRICE)))
    valid = enters & known & possible
    end = torch.where(side == BUY, low + layout.auction - 1, low)
    limit = torch.where(at_market, end, price)
    # An order that would meet an earlier one of the same seat.
    earlier = torch.arange(len(kind), device=kind.device)
    buys = side == BUY
    meets = torch.where(buys[:, None], limit[:, None] >= limit, limit[:, None] <= limit) & (buys[:, None] != buys)
    own = valid & (owner[:, None] == owner) & (earlier < earlier[:, None])
    taken = valid & ~(meets & own).any(-1)
    rejected = ~taken & ~_is_one_of(kind, _DOES_NOTHING)
    orders = Orders(torch.where(taken, side, BUY), limit.clamp(1, MAX_PRICE), torch.where(taken, quantity, 0))
    return _Sent(orders, torch.where(taken, owner, 0), rejected)


def _is_one_of(values: Tensor, members: tuple[int, ...]) -> Tensor:
    result = values != values
    for member in members:
        result = result | (values == member)
    return result


class _Rest(NamedTuple):
    """The best levels of what was not filled, bids first. Shape of each: (2, 10), int64."""

    prices: Tensor
    quantities: Tensor


def _rest(orders: Orders, cleared: Cleared, low: Tensor, levels: int) -> _Rest:
    level = orders.price - low
    left = orders.quantity - cleared.filled
    place = torch.arange(levels, device=level.device)
    sides = []
    for side in (BUY, SELL):
        shown = (orders.side == side) & ((level >= 0) if side == BUY else (level < levels))
        quantity = torch.zeros_like(place).scatter_add(0, level.clamp(0, levels - 1), torch.where(shown, left, 0))
        # The best levels have the largest keys.
        key = torch.where(quantity > 0, (place if side == BUY else levels - 1 - place) + 1, 0)
        best = key.topk(min(DEPTH, levels)).values
        at = torch.where(best > 0, best - 1 if side == BUY else levels - best, 0)
        prices = torch.where(best > 0, low + at, 0)
        pad = (0, DEPTH - min(DEPTH, levels))
        shown_quantity = torch.where(best > 0, quantity[at], 0)
        sides.append([torch.nn.functional.pad(part, pad) for part in (prices, shown_quantity)])
    prices, quantities = (torch.stack(column) for column in zip(*sides, strict=True))
    return _Rest(prices, quantities)


def _by_seats(sent: _Sent, cleared: Cleared, layout: Layout) -> Tensor:
    """Return the shares that each seat has bought and sold. Shape: (S, 2), int32."""
    filled = cleared.filled[: len(sent.owner)]
    place = 2 * sent.owner + sent.orders.side
    summed = filled.new_zeros(2 * layout.seats).index_add(0, place, filled)
    return summed.view(layout.seats, 2).to(torch.int32)
