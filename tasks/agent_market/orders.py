"""Lists of orders, which every action of a seat becomes, and the messages that carry them out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book.messages import BUY, SELL, Kind, Message
from vecenv.tasks.agent_market.seat import Own, SeatState, own_orders

UNKNOWN = -1
"""Kind of a message that no book carries out."""


class Order(IntEnum):
    """What an order of a list asks for; the rest of a limit order waits in the book.

    ``BID``: have a bid of a price and at most a quantity. The best own bid keeps its place if it is at the price, and
    is made smaller if it is too large; at another price it is moved; without one a bid is placed that does not trade at
    once. A quantity of 0 cancels it. A second one of a list is ignored. ``ASK``: likewise. ``CANCEL``: cancel all own
    orders. ``INVALID``: nothing; the step counts as one with an invalid action.
    """

    NONE = 0
    BUY = 1
    SELL = 2
    BUY_LIMIT = 3
    SELL_LIMIT = 4
    BID = 5
    ASK = 6
    CANCEL = 7
    INVALID = 8


def order(kind: Tensor | int, price: Tensor | int, quantity: Tensor | int, like: Tensor) -> Tensor:
    """Return an order: kind, price in price ticks, shares. Shape: (3,), int64."""
    zero = (like * 0).to(torch.int64)
    return torch.stack([zero + kind, zero + price, zero + quantity])


class _Left(NamedTuple):
    """What the orders of a list so far have left of one side. Shape of each: ().

    ``room``: shares that may still be traded, with those in the book; ``waiting``: shares of own orders in the book;
    ``quotes``: a quote may still be asked for; ``kept``: the orders in the book have not been cancelled.
    """

    room: Tensor
    waiting: Tensor
    quotes: Tensor
    kept: Tensor


def order_messages(state: SeatState, orders: Tensor, room: Sequence[Tensor], seat: Tensor | int = 0) -> list[Message]:
    """Return the messages of a list of orders, in turn. Shape of each: (), int32.

    ``orders`` are kind, price in price ticks and shares, (M, 3), int64. Quantities are cut to the room (shares that may
    be bought and sold) that the orders before and those in the book leave, even if all of them are filled; an order
    without room is left out. What no book accepts becomes a message that the book refuses and counts.
    """
    own = [own_orders(state, side) for side in (BUY, SELL)]
    yes = state.tick == state.tick
    left = [_Left(shares, orders.quantity.to(torch.int64), yes, yes) for shares, orders in zip(room, own, strict=True)]
    sent = []
    for words in orders:
        buys = (words[0] == Order.BUY) | (words[0] == Order.BUY_LIMIT) | (words[0] == Order.BID)
        here = Own(*_chosen(buys, own)), _Left(*_chosen(buys, left))
        message, after = _carried_over(words, torch.where(buys, BUY, SELL), seat, *here)
        sent.append(message)
        cancels = words[0] == Order.CANCEL
        left = [
            _Left(
                room=torch.where(mine, after.room, side.room),
                waiting=torch.where(cancels, 0, torch.where(mine, after.waiting, side.waiting)),
                quotes=torch.where(mine, after.quotes, side.quotes),
                kept=side.kept & ~cancels,
            )
            for mine, side in zip((buys, ~buys), left, strict=True)
        ]
    return sent


def _chosen(buys: Tensor, sides: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    return [torch.where(buys, bid, ask) for bid, ask in zip(*sides, strict=True)]


def _carried_over(words: Tensor, side: Tensor, seat: Tensor | int, own: Own, left: _Left) -> tuple[Message, _Left]:
    kind, price, quantity = words.unbind()
    at_market = (kind == Order.BUY) | (kind == Order.SELL)
    enters = at_market | (kind == Order.BUY_LIMIT) | (kind == Order.SELL_LIMIT)
    asks_quote = (kind == Order.BID) | (kind == Order.ASK)
    quotes = asks_quote & left.quotes
    ignored = (kind == Order.NONE) | (kind == Order.INVALID) | (asks_quote & ~left.quotes)
    cancels = kind == Order.CANCEL

    there = (own.quantity > 0) & left.kept
    waiting = left.waiting - torch.where(quotes & there, own.size, 0)
    asked = quantity.clamp(0, 2**31 - 1)
    size = torch.minimum(asked, left.room - waiting).clamp(min=0)
    wanted = size > 0
    stays = there & (own.price == price) & (own.size <= size)

    placed = torch.where(there, torch.where(stays, Kind.NOTHING, Kind.MODIFY), Kind.POST_ONLY)
    quote = torch.where(wanted, placed, torch.where(there, Kind.CANCEL, Kind.NOTHING))
    entry = torch.where(at_market, Kind.MARKET, Kind.LIMIT)
    entry = torch.where((asked > 0) & ~wanted, Kind.NOTHING, entry)
    rest = torch.where(cancels, Kind.CANCEL_ALL, torch.where(ignored, Kind.NOTHING, UNKNOWN))
    asks_for = torch.where(enters, entry, torch.where(quotes, quote, rest))
    level = torch.where(at_market | cancels, 1, price.clamp(0, 2**31 - 1))
    sent = (asks_for, side, level, size, kind * 0 + seat, own.id)

    spent = torch.where(quotes & stays, own.size, size)
    return Message(*(word.to(torch.int32) for word in sent)), _Left(
        room=left.room - torch.where(enters | quotes, spent, 0),
        waiting=waiting,
        quotes=left.quotes & ~quotes,
        kept=left.kept,
    )
