"""A tick of one market in PyTorch: the reference, which runs everywhere."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.kernels.order_book.accounts import Accounts, Transfers, settled, transfers_of
from vecenv.kernels.order_book.book import Book, best_prices, levels, queue_ahead
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, SELL, Kind, Message, Status, Trades
from vecenv.kernels.order_book.messages import Report as Told
from vecenv.kernels.order_book.passes import count, first, largest, least, total
from vecenv.kernels.order_book.requoting import requoted, without_owner
from vecenv.tasks.agent_market.dynamics import Tick, advanced, closed, repeated, reported
from vecenv.tasks.agent_market.market import DEPTH, Layout, Market, MarketStream, Report, Rules
from vecenv.tasks.agent_market.traders import MAKER, View, maker_quotes, trader_message, view_of


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


def ticked(market: Market, orders: Message, rules: Rules, layout: Layout, ticks: int = 1) -> tuple[Market, Report]:
    """Return the market after some ticks, and what is seen of it; the seats' messages, (J,), come in the first."""
    return repeated(_one_tick, market, orders, rules, layout, ticks)


def _one_tick(market: Market, orders: Message, rules: Rules, layout: Layout) -> tuple[Market, Report]:
    key, tick = EpisodeKey(*market.words.unbind()), market.tick
    moved = advanced(market.fundamental, market.log_volatility, market.news, key, tick, rules)
    value = moved.value
    arrivals = random_bits(key, MarketStream.ARRIVALS, tick)
    backlog = market.backlog + _wakes(torch.stack(arrivals[:3]), market.noise_wakes, tick, rules)

    book = Book(market.key, market.quantity, market.owner, market.id, market.next_id)
    trading = _Trading(book, (), _no_flow(tick, layout))
    for number in range(len(orders.kind)):
        trading = _carried_out(trading, Message(*(words[number] for words in orders)), layout)

    trading, spreads, requote = _requoted(trading, market, value, backlog, rules, layout)
    backlog = torch.cat([backlog[:1] - requote.due, backlog[1:]])

    noise_served = market.noise_served
    for slot in range(layout.slots):
        now = _view(trading.book, value)
        wake = trader_message(backlog, noise_served, now, market.views, market.samples, key, tick, slot, rules, layout)
        trading = _carried_out(trading, wake.message, layout)
        backlog, noise_served = wake.backlog, wake.noise_served

    book, transfers, flow = trading
    accounts = settled(Accounts(market.cash, market.shares), transfers)
    bid, ask = best_prices(book).to(torch.int64).unbind()
    close = (bid > 0) & (ask > 0) & (ask - bid <= rules.number("max_spread"))
    doubled_mid = torch.where(close, bid + ask, market.doubled_mid)
    counted = (flow.messages + requote.due, flow.rejected, flow.evicted + requote.evicted, requote.unplaced)
    done = Tick(bid, ask, doubled_mid, flow.high, flow.low, flow.bought, flow.sold, flow.trades)
    after = market.replace(
        **closed(market, moved, done, rules),
        key=book.key,
        quantity=book.quantity,
        owner=book.owner,
        id=book.id,
        next_id=book.next_id,
        cash=accounts.cash,
        shares=accounts.shares,
        backlog=backlog,
        noise_served=noise_served,
        spreads=spreads,
        counts=market.counts + torch.stack([*(count.to(torch.int64) for count in counted), backlog[1:].sum()]),
    )
    noise = rules.normal[arrivals[3] >> 20].to(torch.int64) * rules.number("fair_noise")
    return after, _report(after, done, flow, value + noise, layout)


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


def _flow_after(flow: _Flow, message: Message, told: Told, trades: Trades, layout: Layout) -> _Flow:
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
    trading: _Trading, market: Market, value: Tensor, backlog: Tensor, rules: Rules, layout: Layout
) -> tuple[_Trading, Tensor, _Requoting]:
    """Return book, transfers and flow after a maker's requote, if one waits, the makers' spreads, and what it did."""
    due = backlog[MAKER] > 0
    if layout.makers == 0:
        none = due.to(torch.int64)
        return trading, market.spreads, _Requoting(none, none, none)
    key = EpisodeKey(*market.words.unbind())
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


def _report(market: Market, done: Tick, flow: _Flow, estimate: Tensor, layout: Layout) -> Report:
    book = Book(market.key, market.quantity, market.owner, market.id, market.next_id)
    shown = [levels(book, side, DEPTH) for side in (BUY, SELL)]
    own = [_own_orders(book, seat, side) for seat in range(layout.seats) for side in (BUY, SELL)]
    quantity, price, size, ahead, order = (
        torch.stack(column).view(layout.seats, 2) for column in zip(*own, strict=True)
    )
    return reported(
        market,
        done,
        estimate,
        layout,
        notional=flow.notional,
        prices=torch.stack([level.price for level in shown]),
        quantities=torch.stack([level.quantity for level in shown]),
        seat_traded=flow.seats,
        own_quantity=quantity,
        own_price=price,
        own_size=size,
        own_ahead=ahead,
        own_id=order,
    )


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
