"""Messages to a book, and what a book reports of each."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

BUY, SELL = 0, 1
"""Sides."""

MAX_PRICE = 2**30
"""Largest price in ticks; the smallest is 1."""


MAX_OWNERS = 2**31 - 1
"""Largest number of owners."""


class Kind(IntEnum):
    """What a message asks for.

    Attributes:
        NOTHING: no message.
        LIMIT: trade up to a price; the rest stays in the book.
        MARKET: trade at any price; the rest is dropped.
        IMMEDIATE: trade up to a price; the rest is dropped (immediate-or-cancel).
        POST_ONLY: stay in the book; rejected if it would meet an order on the other side, one's own included.
        CANCEL: take an order out.
        CANCEL_ALL: take all orders of the owner out.
        MODIFY: another price or quantity of an order, which keeps its id. At the same price and at most the same
            quantity it keeps its place, else it comes in anew as a limit order.
        REPLACE: take an order out, and bring in a limit order on its side under a new id.
        REPLACE_ALL: take all orders of the owner out, and bring in a limit order.
    """

    NOTHING = 0
    LIMIT = 1
    MARKET = 2
    IMMEDIATE = 3
    POST_ONLY = 4
    CANCEL = 5
    CANCEL_ALL = 6
    MODIFY = 7
    REPLACE = 8
    REPLACE_ALL = 9


class Status(IntEnum):
    """What became of a message.

    Attributes:
        NOTHING: there was none.
        DONE: it was carried out.
        INVALID: unknown kind, side or owner, or a price or quantity out of range; nothing happened.
        NOT_FOUND: the owner has no such order in the book; nothing happened.
        WOULD_TRADE: a post-only order met an order on the other side; nothing happened.
        NO_ROOM: its side is full; what it had traded stays, the rest was dropped.
    """

    NOTHING = 0
    DONE = 1
    INVALID = 2
    NOT_FOUND = 3
    WOULD_TRADE = 4
    NO_ROOM = 5


class Message(NamedTuple):
    """One message. Shape of each: (), int32.

    Attributes:
        kind: of `Kind`.
        side: `BUY` or `SELL`; not read by cancellations, modifications and replacements.
        price: in ticks, 1 … `MAX_PRICE`; not read by market orders and cancellations.
        quantity: in shares, from 1; not read by cancellations.
        owner: of the order, from 0.
        target: id of the order to cancel, modify or replace; else not read.
    """

    kind: Tensor
    side: Tensor
    price: Tensor
    quantity: Tensor
    owner: Tensor
    target: Tensor


class Report(NamedTuple):
    """What a message did. Shape of each: (), int32 but for ``notional``.

    Attributes:
        status: of `Status`.
        side: of the order that came in, or -1.
        id: of the order that came in, or -1.
        filled: quantity it traded.
        rested: quantity that stayed in the book.
        notional: sum of price times quantity of its trades, int64.
        cancelled: quantity of orders that this message took out or made smaller.
        prevented: quantity of the owner's orders on the other side, which it would have met.
        evicted_id: id of the order that made room for this one, or -1.
        evicted_owner: its owner, or -1.
        evicted: its quantity.
    """

    status: Tensor
    side: Tensor
    id: Tensor
    filled: Tensor
    rested: Tensor
    notional: Tensor
    cancelled: Tensor
    prevented: Tensor
    evicted_id: Tensor
    evicted_owner: Tensor
    evicted: Tensor


class Trades(NamedTuple):
    """Trades of one message with the K places of the other side, best first. Shape of each: (K,), int32.

    Attributes:
        size: quantity, 0 for no trade.
        price: that of the order in the book; 0 for no trade.
        maker: owner of that order, or -1.
        maker_id: its id, or -1.
    """

    size: Tensor
    price: Tensor
    maker: Tensor
    maker_id: Tensor
