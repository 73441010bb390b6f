"""Matching: one message to one book, exact in int32, without a sort, a loop, a gather or a branch on data.

Rules. The better price is served first, and of equal prices the earlier arrival. A trade is at the price of the order
that was there. An order never meets one of the same owner: where it would, that order is taken out and the incoming one
goes on (self-trade prevention, "cancel resting"). A side with K orders is full: an incoming order that is better than
the worst one takes its place (`evict`), or else its rest is dropped and its status says so.

The work is O(K): trades are a cumulative sum over the other side, and an order comes in by counting the keys that are
as good, finding the first hole, and shifting what lies between by one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book.book import EMPTY, Book, key_of, max_quantity
from vecenv.kernels.order_book.messages import BUY, MAX_OWNERS, MAX_PRICE, SELL, Kind, Message, Report, Status, Trades


class _Change(NamedTuple):
    """What a message does to orders in the book, before one comes in.

    Attributes:
        quantity: of all orders after it. Shape: (2, K).
        cancelled: quantity taken out. Shape: ().
        again: whether the order that was taken out comes in anew. Shape: ().
        side: of that order. Shape: ().
        missing: whether the order is not there. Shape: ().
    """

    quantity: Tensor
    cancelled: Tensor
    again: Tensor
    side: Tensor
    missing: Tensor


class _Incoming(NamedTuple):
    """An order that comes in. Shape of each: ().

    Attributes:
        active: whether there is one.
        side: of it.
        limit: largest key of the other side that it trades with.
        quantity: in shares.
        owner: of it.
        id: of it.
        stays: whether what it does not trade stays in the book.
    """

    active: Tensor
    side: Tensor
    limit: Tensor
    quantity: Tensor
    owner: Tensor
    id: Tensor
    stays: Tensor


class _Match(NamedTuple):
    """What an order meets on the other side.

    Attributes:
        size: of its trades. Shape: (K,).
        prevented: quantities of its owner, taken out. Shape: (K,).
        refused: whether it may not trade, and would. Shape: ().
    """

    size: Tensor
    prevented: Tensor
    refused: Tensor


class _Insertion(NamedTuple):
    """A side after an order has come in.

    Attributes:
        columns: key, quantity, owner and id. Shape of each: (K,).
        fits: whether it found a place. Shape: ().
        evicted: whether another one made room. Shape: ().
    """

    columns: list[Tensor]
    fits: Tensor
    evicted: Tensor


def process(book: Book, message: Message, evict: bool = True, owners: int = MAX_OWNERS) -> tuple[Book, Report, Trades]:
    """Carry out one message.

    Args:
        book: of one sub-environment.
        message: to it.
        evict: on a full side an order that is better than the worst takes its place; else it is rejected.
        owners: number of owners; others than 0 … owners - 1 are invalid.

    Returns:
        The book after it, what it did, and its trades.
    """
    kind, room = message.kind, book.key.shape[-1]
    valid = _valid(message, max_quantity(room), owners)
    change = _changed(book, message, valid)
    book = book._replace(quantity=change.quantity)

    ordered = _ordered(kind) & valid
    side = torch.where(change.again, change.side, message.side)
    numbered = ordered | (change.again & (kind == Kind.REPLACE))
    limit = torch.where(kind == Kind.MARKET, EMPTY - 1, -key_of(message.price, side))
    stays = (kind == Kind.LIMIT) | (kind == Kind.POST_ONLY) | (kind == Kind.REPLACE_ALL) | change.again
    order_id = torch.where(numbered, book.next_id, message.target)
    order = _Incoming(ordered | change.again, side, limit, message.quantity, message.owner, order_id, stays)

    columns = (book.key, book.quantity, book.owner, book.id)
    buys = order.side == BUY
    own = [torch.where(buys, column[BUY], column[SELL]) for column in columns]
    other = [torch.where(buys, column[SELL], column[BUY]) for column in columns]
    key, there, makers, ids = other
    match = _matched(key, there, makers, order, kind == Kind.POST_ONLY)
    other[1] = there - match.size - match.prevented
    filled = match.size.sum(dtype=torch.int32)

    rest = torch.where(order.active & ~match.refused & order.stays, order.quantity - filled, 0)
    insertion = _inserted(own, order, rest, evict)
    rows = [
        torch.stack([torch.where(buys, mine, theirs), torch.where(buys, theirs, mine)])
        for mine, theirs in zip(insertion.columns, other, strict=True)
    ]
    new = Book(rows[0], rows[1], rows[2], rows[3], book.next_id + numbered.to(torch.int32))

    status = torch.where(kind == Kind.NOTHING, Status.NOTHING, Status.DONE)
    for code, holds in (
        (Status.NO_ROOM, (rest > 0) & ~insertion.fits),
        (Status.WOULD_TRADE, match.refused),
        (Status.NOT_FOUND, change.missing),
        (Status.INVALID, ~valid),
    ):
        status = torch.where(holds, code, status)
    price, traded = key.abs(), match.size > 0
    report = Report(
        status=status.to(torch.int32),
        side=torch.where(order.active, side, -1),
        id=torch.where(order.active, order_id, -1),
        filled=filled,
        rested=torch.where(insertion.fits, rest, 0),
        notional=(match.size.to(torch.int64) * price.to(torch.int64)).sum(),
        cancelled=change.cancelled,
        prevented=match.prevented.sum(dtype=torch.int32),
        evicted_id=torch.where(insertion.evicted, own[3][-1], -1),
        evicted_owner=torch.where(insertion.evicted, own[2][-1], -1),
        evicted=torch.where(insertion.evicted, own[1][-1], 0),
    )
    trades = Trades(
        match.size, torch.where(traded, price, 0), torch.where(traded, makers, -1), torch.where(traded, ids, -1)
    )
    return new, report, trades


def _changed(book: Book, message: Message, valid: Tensor) -> _Change:
    """Return what a message cancels, modifies or takes out to replace."""
    kind, live = message.kind, book.quantity > 0
    targeted = ((kind == Kind.CANCEL) | (kind == Kind.MODIFY) | (kind == Kind.REPLACE)) & valid
    found = live & (book.id == message.target) & (book.owner == message.owner) & targeted
    # Sums of int32 instead of any() of bool, which compilers widen to int64.
    by_side = torch.where(found, book.quantity, 0).sum(-1, dtype=torch.int32)
    shown = by_side[BUY] + by_side[SELL]
    known = shown > 0
    side = torch.where(by_side[SELL] > 0, SELL, BUY).to(torch.int32)

    # A modification that asks for no more at the same price stays where it is.
    key = torch.where(found, book.key, -EMPTY).amax()
    kept = (kind == Kind.MODIFY) & (key_of(message.price, side) == key) & (message.quantity <= shown)
    every = live & (book.owner == message.owner) & ((kind == Kind.CANCEL_ALL) | (kind == Kind.REPLACE_ALL)) & valid
    removed = (found & ~kept) | every
    cancelled = torch.where(removed, book.quantity, 0).sum(dtype=torch.int32)
    cancelled = cancelled + torch.where(kept & known, shown - message.quantity, 0)
    quantity = torch.where(removed, 0, book.quantity)
    quantity = torch.where(found & kept, message.quantity, quantity)
    again = ((kind == Kind.MODIFY) | (kind == Kind.REPLACE)) & known & ~kept
    return _Change(quantity, cancelled, again, side, targeted & ~known)


def _matched(key: Tensor, there: Tensor, makers: Tensor, order: _Incoming, post_only: Tensor) -> _Match:
    """Return what an order meets among the keys, quantities and owners of the other side."""
    met = (there > 0) & (key <= order.limit) & order.active
    refused = post_only & (torch.where(met, there, 0).amax() > 0)
    met = met & ~refused
    available = torch.where(met & (makers != order.owner), there, 0)
    before = available.cumsum(0, dtype=torch.int32) - available
    size = torch.minimum((order.quantity - before).clamp(min=0), available)
    reached = met & (makers == order.owner) & (before < order.quantity)
    return _Match(size, torch.where(reached, there, 0), refused)


def _ordered(kind: Tensor) -> Tensor:
    """Whether a kind of message brings in an order on the side that it names. Shape: ()."""
    return ((kind >= Kind.LIMIT) & (kind <= Kind.POST_ONLY)) | (kind == Kind.REPLACE_ALL)


def _valid(message: Message, most: int, owners: int) -> Tensor:
    """Whether a message can be carried out as far as it goes itself. Shape: ()."""
    kind = message.kind
    priced = (message.price >= 1) & (message.price <= MAX_PRICE)
    sized = (message.quantity >= 1) & (message.quantity <= most)
    sided = (message.side == BUY) | (message.side == SELL)
    known = (kind >= Kind.NOTHING) & (kind <= Kind.REPLACE_ALL)
    ordered = _ordered(kind)
    again = (kind == Kind.MODIFY) | (kind == Kind.REPLACE)
    right = known & (message.owner >= 0) & (message.owner < owners)
    right = right & (~(ordered | again) | (sized & (priced | (kind == Kind.MARKET))))
    return (right & (~ordered | sided)) | (kind == Kind.NOTHING)


def _inserted(side: list[Tensor], order: _Incoming, quantity: Tensor, evict: bool) -> _Insertion:
    """Return a side with an order of a quantity in its place; of quantity 0 as it was."""
    key, there = side[0], side[1]
    room = len(key)
    place = torch.arange(room, dtype=torch.int32, device=key.device)
    own_key = -order.limit
    # After all orders of the same price or a better one.
    rank = (key <= own_key).sum(dtype=torch.int32)
    hole = torch.where(there == 0, place, room).amin()
    full, wanted = hole == room, quantity > 0
    evicted = full & wanted & (rank < room) if evict else torch.zeros_like(full)
    fits = wanted & (~full | evicted)
    hole = torch.where(evicted, room - 1, hole)
    rightwards = hole >= rank
    at = torch.where(rightwards, rank, rank - 1)
    from_left = rightwards & (place > rank) & (place <= hole)
    from_right = ~rightwards & (place >= hole) & (place < at)
    columns = []
    for column, value in zip(side, (own_key, quantity, order.owner, order.id), strict=True):
        right = torch.cat([column[:1], column[:-1]])
        left = torch.cat([column[1:], column[-1:]])
        moved = torch.where(from_left, right, torch.where(from_right, left, column))
        moved = torch.where(place == at, value, moved)
        columns.append(torch.where(fits, moved, column))
    return _Insertion(columns, fits, evicted)
