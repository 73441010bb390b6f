"""The order book's part of a tick: seats, a maker and traders send their messages, which are carried out in turn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.kernels.order_book.accounts import Accounts, Transfers, settled, transfers_of
from vecenv.kernels.order_book.book import Book, best_prices, levels, queue_ahead
from vecenv.kernels.order_book.limits import max_quantity
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL, Kind, Message, Report, Status, Trades
from vecenv.kernels.order_book.passes import count, first, largest, least, total
from vecenv.kernels.order_book.requoting import requoted, without_owner
from vecenv.tasks.agent_market.config import CLASSES, MAKER, MAX_LATENCY, MOMENTUM, NOISE, SHORT_SAMPLES, VALUE
from vecenv.tasks.agent_market.market import DEPTH, OWN_ORDERS, SLOTS_A_TICK, Clearing, Layout, Market, MarketStream
from vecenv.tasks.agent_market.rules import TABLE_BITS, Rules, table_normal


class _Flow(NamedTuple):
    """What has been traded in the tick so far. Shape: (), int32, but for ``seats``, (S, 2), bought and sold by each.

    ``bought`` and ``sold`` are by incoming orders, ``notional``, int64, price times size. Without a trade ``high`` is 0
    and ``low`` the largest int32. Messages are carried out or rejected, orders evicted.
    """

    bought: Tensor
    sold: Tensor
    notional: Tensor
    trades: Tensor
    high: Tensor
    low: Tensor
    seats: Tensor
    messages: Tensor
    rejected: Tensor
    evicted: Tensor


class _Trading(NamedTuple):
    """Book, transfers and flow, which every message changes; nothing in a tick looks at the accounts before its end."""

    book: Book
    transfers: tuple[Transfers, ...]
    flow: _Flow


def cleared_in_book(
    market: Market, value: Tensor, orders: Message, arrivals: Tensor, key: EpisodeKey, rules: Rules, layout: Layout
) -> Clearing:
    """Return what the messages of seats, a maker and traders, in this order, have done in a tick.

    ``value`` is the fundamental, in 2^-16 price ticks, ``arrivals`` the random words of makers, value and momentum
    traders. Shapes: (), and (3,), int64.
    """
    backlog = market.backlog + _wakes(arrivals, market.noise_wakes, market.tick, rules)
    trading = _Trading(_book_of(market), (), _no_flow(market.tick, layout))
    for number in range(len(orders.kind)):
        trading = _carried_out(trading, Message(*(words[number] for words in orders)), layout)

    trading, spreads, requote = _requoted(trading, market, value, backlog, key, rules, layout)
    backlog = torch.cat([backlog[:1] - requote.due, backlog[1:]])

    noise_served = market.noise_served
    for slot in range(layout.slots):
        wake = trader_message(backlog, noise_served, _view(trading.book, value), market, key, slot, rules, layout)
        trading = _carried_out(trading, wake.message, layout)
        backlog, noise_served = wake.backlog, wake.noise_served

    book, transfers, flow = trading
    accounts = settled(Accounts(market.cash, market.shares), transfers)
    bid, ask = best_prices(book).to(torch.int64).unbind()
    close = (bid > 0) & (ask > 0) & (ask - bid <= rules.number("max_spread"))
    counted = (flow.messages + requote.due, flow.rejected, flow.evicted + requote.evicted, requote.unplaced)
    counts = torch.stack([*(count.to(torch.int64) for count in counted), backlog[1:].sum()])
    return Clearing(
        bid=bid,
        ask=ask,
        doubled_mid=torch.where(close, bid + ask, market.doubled_mid),
        high=flow.high,
        low=flow.low,
        bought=flow.bought,
        sold=flow.sold,
        trades=flow.trades,
        market={
            **book._asdict(),
            **accounts._asdict(),
            "backlog": backlog,
            "noise_served": noise_served,
            "spreads": spreads,
            "counts": market.counts + counts,
        },
        seen=_seen(book, flow, layout),
    )


def _book_of(market: Market) -> Book:
    return Book(market.key, market.quantity, market.owner, market.id, market.next_id)


class _Requoting(NamedTuple):
    """What a maker did in a tick: 1 if one requoted, orders of others evicted, quotes unplaced. Shape of each: ()."""

    due: Tensor
    evicted: Tensor
    unplaced: Tensor


def _view(book: Book, fundamental: Tensor) -> View:
    bid, ask = best_prices(book).to(torch.int64).unbind()
    return View(bid, ask, fundamental)


def _wakes(words: Tensor, noise_wakes: Tensor, tick: Tensor, rules: Rules) -> Tensor:
    """Return how many agents of each class wake in a tick. Shape: (4,), int64."""
    poisson = (words.unsqueeze(-1) >= rules.arrivals).sum(-1)
    noise = count(noise_wakes == tick.to(torch.int32)).to(torch.int64)
    return torch.cat([poisson, noise.unsqueeze(0)])


def _no_flow(tick: Tensor, layout: Layout) -> _Flow:
    none = (tick * 0).to(torch.int32)
    seats = none.expand(layout.seats, 2)
    return _Flow(none, none, tick * 0, none, none, none + (2**31 - 1), seats, none, none, none)


def _carried_out(trading: _Trading, message: Message, layout: Layout) -> _Trading:
    book, told, trades = process(trading.book, message, layout.owners)
    transfers = transfers_of(message.owner, told, trades, layout.owners)
    return _Trading(book, (*trading.transfers, transfers), _flow_after(trading.flow, message, told, trades, layout))


def _flow_after(flow: _Flow, message: Message, told: Report, trades: Trades, layout: Layout) -> _Flow:
    buys, sells = told.side == BUY, told.side == SELL
    met = trades.size > 0
    seat = torch.arange(layout.seats, device=met.device)
    made = total(torch.where(trades.maker == seat[:, None], trades.size, 0))
    taken = torch.where(message.owner == seat, told.filled, 0)
    bought = torch.where(buys, taken, made)
    sold = torch.where(buys, made, taken)
    done = (told.status == Status.DONE) & (message.kind != Kind.NOTHING)
    wrong = (told.status != Status.DONE) & (told.status != Status.NOTHING)
    return _Flow(
        bought=flow.bought + torch.where(buys, told.filled, 0),
        sold=flow.sold + torch.where(sells, told.filled, 0),
        notional=flow.notional + told.notional,
        trades=flow.trades + count(met),
        high=torch.maximum(flow.high, largest(trades.price)),
        low=torch.minimum(flow.low, least(torch.where(met, trades.price, 2**31 - 1))),
        seats=flow.seats + torch.stack([bought, sold], -1),
        messages=flow.messages + done.to(torch.int32),
        rejected=flow.rejected + wrong.to(torch.int32),
        evicted=flow.evicted + (told.evicted > 0).to(torch.int32),
    )


def _requoted(
    trading: _Trading, market: Market, value: Tensor, backlog: Tensor, key: EpisodeKey, rules: Rules, layout: Layout
) -> tuple[_Trading, Tensor, _Requoting]:
    """Return book, transfers and flow after a maker's requote, if one waits, the makers' spreads, and what it did."""
    due = backlog[MAKER] > 0
    if layout.makers == 0:
        none = due.to(torch.int64)
        return trading, market.spreads, _Requoting(none, none, none)
    number = (random_bits(key, MarketStream.MAKER, market.tick)[0] * layout.makers) >> 32
    owner = (layout.first[MAKER] + number).to(torch.int32)
    now = _view(without_owner(trading.book, owner), value)
    seen = view_of(now, market.views, rules.number("maker_latency"))
    chosen = torch.arange(layout.makers, device=number.device) == number
    spread = torch.where(chosen, market.spreads, 0).sum()
    quotes = maker_quotes(seen, market.doubled_mid, spread, market.volumes, rules, layout)
    after, told = requoted(trading.book, owner, quotes.bids, quotes.asks, quotes.quantity)
    book = Book(*(torch.where(due, new, old) for new, old in zip(after, trading.book, strict=True)))
    spreads = torch.where(chosen & due, quotes.spread, market.spreads)
    unplaced = torch.where(due, 2 * layout.levels - told.placed, 0)
    requoting = _Requoting(due.to(torch.int64), torch.where(due, told.evicted, 0), unplaced)
    return trading._replace(book=book), spreads, requoting


def _seen(book: Book, flow: _Flow, layout: Layout) -> dict[str, Tensor]:
    """Return what is seen of a book: its levels, what was traded, and the seats' orders in it."""
    shown = [levels(book, side, DEPTH) for side in (BUY, SELL)]
    own = [_own_orders(book, seat, side) for seat in range(layout.seats) for side in (BUY, SELL)]
    columns = (torch.stack(column).view(layout.seats, 2) for column in zip(*own, strict=True))
    return {
        "notional": flow.notional,
        "prices": torch.stack([level.price for level in shown]),
        "quantities": torch.stack([level.quantity for level in shown]),
        "seat_traded": flow.seats,
        **dict(zip(OWN_ORDERS, columns, strict=True)),
    }


def _own_orders(book: Book, seat: int, side: int) -> tuple[Tensor, ...]:
    """Return quantity of a seat's orders on a side; price, size, queue and id of the best. Shape of each: (), int32."""
    own = (book.owner[side] == seat) & (book.quantity[side] > 0)
    place = torch.arange(own.shape[-1], device=own.device)
    at_first = own & (place == first(own))
    quantity = total(torch.where(own, book.quantity[side], 0))
    price = total(torch.where(at_first, book.key[side].abs(), 0))
    size = total(torch.where(at_first, book.quantity[side], 0))
    order = largest(torch.where(at_first, book.id[side], -1))
    return quantity, price, size, queue_ahead(book, order), order


class View(NamedTuple):
    """What an agent sees: best prices, 0 if a side is empty, fundamental in 2^-16 price ticks. Shapes: (), int64."""

    bid: Tensor
    ask: Tensor
    fundamental: Tensor


class Wake(NamedTuple):
    """The message of a trader that wakes, and backlog, (4,), and noise traders served, (), after it."""

    message: Message
    backlog: Tensor
    noise_served: Tensor


def view_of(now: View, views: Tensor, latency: Tensor) -> View:
    """Return what an agent with a latency sees. Shapes: (8, 3) and ()."""
    # An index that all markets share would be read on the host.
    past = views.index_select(0, (latency - 1).clamp(0, MAX_LATENCY - 1).reshape(1))[0]
    return View(*torch.where(latency == 0, torch.stack(now), past).unbind())


def trader_message(
    backlog: Tensor,
    noise_served: Tensor,
    now: View,
    market: Market,
    key: EpisodeKey,
    slot: int,
    rules: Rules,
    layout: Layout,
) -> Wake:
    """Return the message of the trader that a slot serves, `Kind.NOTHING` if none waits.

    ``market`` is that before the tick, of which views and samples are read. Shape of the backlog: (4,), by class.
    """
    index = market.tick * SLOTS_A_TICK + slot
    chosen, who, size, side_bits = random_bits(key, MarketStream.TRADER, index)
    distance, observed, touch = random_bits(key, MarketStream.TRADER_PRICE, index)[:3]
    waiting = backlog[VALUE] + backlog[MOMENTUM] + backlog[NOISE]
    served = (chosen * waiting) >> 32
    anyone = waiting > 0
    value = anyone & (served < backlog[VALUE])
    momentum = anyone & ~value & (served < backlog[VALUE] + backlog[MOMENTUM])
    noise = anyone & ~value & ~momentum
    taken = torch.stack([torch.zeros_like(value), value, momentum, noise]).to(torch.int64)

    _, first_value, first_momentum, first_noise = layout.first
    owner = torch.where(value, first_value + ((who * layout.value) >> 32), first_noise + noise_served)
    owner = torch.where(momentum, first_momentum + ((who * layout.momentum) >> 32), owner)

    latencies = [rules.number(f"{name}_latency") for name in CLASSES]
    latency = torch.where(value, latencies[VALUE], torch.where(momentum, latencies[MOMENTUM], latencies[NOISE]))
    seen = view_of(now, market.views, latency)
    both = (seen.bid > 0) & (seen.ask > 0)
    most = rules.number("max_spread")
    spread = torch.minimum((seen.ask - seen.bid).clamp(min=0), most)

    buys_by_chance = side_bits % 2 == 0
    noisy = table_normal(rules.normal, observed, rules.number("observation_noise"))
    observation = (seen.fundamental + noisy + 2**15) >> 16
    away = (distance * (rules.number("depth_spread") * spread)) >> 32
    mispriced = (observation > seen.ask + most) | (observation < seen.bid - most)
    away = torch.where((touch < rules.number("aggressive_chance")) | mispriced, 0, away)
    buys_value = torch.where(both, observation >= (seen.bid + seen.ask) >> 1, buys_by_chance)
    at_value = torch.where(buys_value, seen.ask - away, seen.bid + away)
    at_value = torch.where(both, at_value, observation)

    rises = 5 * market.samples[-SHORT_SAMPLES:].sum() >= 2 * market.samples.sum()
    buys = torch.where(value, buys_value, torch.where(momentum, rises, buys_by_chance))
    touched = torch.where(buys, seen.ask, seen.bid)
    narrow = both & (seen.ask - seen.bid <= rules.number("take_spread"))
    acts = value | ((momentum | noise) & narrow)
    price = torch.where(value, at_value, touched).clamp(1, MAX_PRICE)
    kind = torch.where(value, Kind.REPLACE_ALL, Kind.LIMIT)
    words = (
        torch.where(acts, kind, Kind.NOTHING),
        torch.where(buys, BUY, SELL),
        price,
        rules.sizes[size >> (32 - TABLE_BITS)],
        owner,
        torch.full_like(price, -1),
    )
    message = Message(*(word.to(torch.int32) for word in words))
    return Wake(message, backlog - taken, noise_served + taken[NOISE])


class Quotes(NamedTuple):
    """What a maker quotes: prices of bids, falling, and asks, rising, (L,), and the shares of each.

    ``spread`` is the maker's average after it, in 2^-8 price ticks.
    """

    bids: Tensor
    asks: Tensor
    quantity: Tensor
    spread: Tensor


def maker_quotes(
    seen: View, doubled_mid: Tensor, spread: Tensor, volumes: Tensor, rules: Rules, layout: Layout
) -> Quotes:
    """Return a maker's quotes; its average ``spread`` so far is in 2^-8 price ticks, ``volumes`` in 2^-16 shares."""
    both = (seen.bid > 0) & (seen.ask > 0)
    most = rules.number("max_spread")
    mid = torch.where(both & (seen.ask - seen.bid <= most), seen.bid + seen.ask, doubled_mid) >> 1
    gap = torch.minimum((seen.ask - seen.bid).clamp(min=0), most)
    spread = torch.where(both, spread + (((gap * 256 - spread) * rules.number("spread_alpha")) >> 8), spread)
    traded = volumes.sum()
    one_sided = (volumes[BUY] - volumes[SELL]) * rules.number("price_skew")
    skew = torch.div(one_sided, traded.clamp(min=1), rounding_mode="trunc")
    centre = mid + torch.where(traded > 0, skew, 0)
    highest_bid = centre - (spread >> 9)
    lowest_ask = torch.maximum(centre + ((spread + 511) >> 9), highest_bid + 1)
    step = ((spread * rules.number("level_spacing") + 128) >> 8).clamp(min=1)
    recent = (traded * rules.number("volume_ticks")) >> 16
    quantity = (recent * rules.number("share_of_volume") + 2**15) >> 16
    quantity = torch.maximum(quantity, rules.number("min_quote")).clamp(1, max_quantity(layout.room))
    outwards = torch.arange(layout.levels, device=spread.device) * step
    return Quotes(highest_bid - outwards, lowest_ask + outwards, quantity.to(torch.int32), spread)
