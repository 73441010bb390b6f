"""Matching: one message to one book, exact, without a sort, a loop, a gather or a branch on data.

Rules. The better price is served first, and of equal prices the earlier arrival. A trade is at the price of the order
that was there. An order never meets one of the same owner: where it would, that order is taken out and the incoming one
goes on (self-trade prevention, "cancel resting"). A side with K orders is full: an incoming order that is better than
the worst one takes its place, or else its rest is dropped and its status says so.

The work is O(K), in four passes over the places: which order a message names, what the incoming order meets (a
cumulative sum over the other side), where it belongs (the number of keys that are as good, and the first hole), and one
move. The move writes four numbers to a place and shifts what lies between it and a hole by one. A cancellation or a
smaller quantity is a move too, from a place to itself, and what comes in anew takes the hole that it left.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book.book import EMPTY, Book
from vecenv.kernels.order_book.limits import max_quantity
from vecenv.kernels.order_book.messages import BUY, MAX_OWNERS, MAX_PRICE, SELL, Kind, Message, Report, Status, Trades
from vecenv.kernels.order_book.passes import after, before, count, first, largest, total, written_out

_NOBODY = -2
"""No order's owner: that of a place that has never held one is -1."""


class _Named(NamedTuple):
    """Orders in the book that a message names, by id or by owner. Shape of each: ().

    Attributes:
        place: of the one that is named by its id, counted through both sides; -1 if there is none.
        quantity: of all.
        cleared: owner of which all orders are named, or `_NOBODY`.
        missing: whether an id is named that is not there.
    """

    place: Tensor
    key: Tensor
    id: Tensor
    quantity: Tensor
    cleared: Tensor
    missing: Tensor


class _Incoming(NamedTuple):
    """An order that comes in. Shape of each: ().

    Attributes:
        active: whether there is one.
        anew: whether it has been in the book.
        limit: largest key of the other side that it trades with; none if there is no order.
    """

    active: Tensor
    anew: Tensor
    side: Tensor
    limit: Tensor
    owner: Tensor
    id: Tensor


class _Match(NamedTuple):
    """What an order meets on the other side.

    Attributes:
        size: of its trades. Shape: (K,).
        prevented: quantities of its owner, taken out. Shape: (K,).
        filled: sum of the trades. Shape: ().
        refused: whether it may not trade, and would. Shape: ().
    """

    size: Tensor
    prevented: Tensor
    filled: Tensor
    refused: Tensor


class _Move(NamedTuple):
    """Four numbers that go to a place. Shape of each: ().

    Attributes:
        place: counted through both sides, -1 for none.
        hole: to which what lies between is shifted.
        fits: whether an order has come in.
        evicted: whether another one made room.
    """

    place: Tensor
    hole: Tensor
    key: Tensor
    quantity: Tensor
    id: Tensor
    fits: Tensor
    evicted: Tensor


def process(book: Book, message: Message, owners: int = MAX_OWNERS) -> tuple[Book, Report, Trades]:
    """Carry out one message; return the book after it, what it did, and its trades. Owners are 0 … ``owners`` - 1."""
    kind = message.kind
    valid = _valid(message, max_quantity(book.key.shape[-1]), owners)
    named = _named(book, message, valid)
    # A modification that asks for no more at the same price stays where it is.
    kept = (kind == Kind.MODIFY) & (named.place >= 0)
    kept = kept & (message.price == named.key.abs()) & (message.quantity <= named.quantity)
    remains = torch.where(kept, message.quantity, 0)

    book = book._replace(quantity=torch.where(book.owner == named.cleared, 0, book.quantity))
    order = _incoming(book, message, valid, named, kept)
    buys = order.side == BUY
    key, there, makers, ids = (torch.where(buys, column[SELL], column[BUY]) for column in book[:4])
    match = _matched(key, there, makers, order, message.quantity, kind == Kind.POST_ONLY)
    stays = (kind == Kind.LIMIT) | (kind == Kind.POST_ONLY) | (kind == Kind.REPLACE_ALL) | order.anew
    rest = torch.where(order.active & stays & ~match.refused, message.quantity - match.filled, 0)
    move = _placed(book, order, named, rest, remains)
    numbered = order.active & (kind != Kind.MODIFY)
    new = _moved(book, move, order, match.size + match.prevented, numbered)

    status = torch.full_like(kind, Status.DONE)
    for code, holds in (
        (Status.NOTHING, kind == Kind.NOTHING),
        (Status.NO_ROOM, (rest > 0) & ~move.fits),
        (Status.WOULD_TRADE, match.refused),
        (Status.NOT_FOUND, named.missing),
        (Status.INVALID, ~valid),
    ):
        status = torch.where(holds, code, status)
    price, traded = key.abs(), match.size > 0
    last = [torch.where(buys, column[BUY, -1], column[SELL, -1]) for column in book[:4]]
    report = Report(
        status=status,
        side=torch.where(order.active, order.side, -1),
        id=torch.where(order.active, order.id, -1),
        filled=match.filled,
        rested=torch.where(move.fits, rest, 0),
        notional=total(match.size.to(torch.int64) * price.to(torch.int64)),
        cancelled=named.quantity - remains,
        prevented=total(match.prevented),
        evicted_id=torch.where(move.evicted, last[3], -1),
        evicted_owner=torch.where(move.evicted, last[2], -1),
        evicted=torch.where(move.evicted, last[1], 0),
    )
    trades = Trades(
        match.size, torch.where(traded, price, 0), torch.where(traded, makers, -1), torch.where(traded, ids, -1)
    )
    return new, report, trades


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


def _named(book: Book, message: Message, valid: Tensor) -> _Named:
    every = valid & ((message.kind == Kind.CANCEL_ALL) | (message.kind == Kind.REPLACE_ALL))
    one = valid & (message.kind >= Kind.CANCEL) & ~every
    owner, cleared, target = written_out(
        torch.where(one, message.owner, _NOBODY), torch.where(every, message.owner, _NOBODY), message.target
    )
    key, quantity, owners, ids = (column.reshape(-1) for column in book[:4])
    found = torch.where(((owners == owner) & (ids == target)) | (owners == cleared), quantity, 0)
    shown = total(found)
    known = one & (shown > 0)
    return _Named(
        place=torch.where(known, first(found > 0), -1),
        key=largest(torch.where(found > 0, key, -EMPTY)),
        id=target,
        quantity=shown,
        cleared=cleared,
        missing=one & ~known,
    )


def _incoming(book: Book, message: Message, valid: Tensor, named: _Named, kept: Tensor) -> _Incoming:
    kind = message.kind
    anew = ((kind == Kind.MODIFY) | (kind == Kind.REPLACE)) & (named.place >= 0) & ~kept
    active = (_ordered(kind) & valid) | anew
    # Keys of asks are positive, those of bids negative.
    side = torch.where(anew, (named.key > 0).to(torch.int32), message.side)
    limit = torch.where(side == BUY, message.price, -message.price)
    limit = torch.where(active, torch.where(kind == Kind.MARKET, EMPTY - 1, limit), -EMPTY)
    side, limit, owner = written_out(side, limit, message.owner)
    order_id = torch.where(kind == Kind.MODIFY, message.target, book.next_id)
    return _Incoming(active, anew, side, limit, owner, order_id)


def _matched(
    key: Tensor, there: Tensor, makers: Tensor, order: _Incoming, quantity: Tensor, post_only: Tensor
) -> _Match:
    """Return what an order of a quantity meets among the keys, quantities and owners of the other side."""
    met = torch.where(key <= order.limit, there, 0)
    available = torch.where(makers == order.owner, 0, met)
    refused = post_only & (count(met > 0) > 0)
    wanted = torch.where(order.active & ~refused, quantity, 0)
    within = available.cumsum(0, dtype=torch.int32)
    ahead = within - available
    size = torch.minimum((wanted - ahead).clamp(min=0), available)
    prevented = torch.where(ahead < wanted, met - available, 0)
    return _Match(size, prevented, torch.minimum(wanted, within[-1]), refused)


def _placed(book: Book, order: _Incoming, named: _Named, rest: Tensor, remains: Tensor) -> _Move:
    """Return where the rest of an order goes, or where what remains of a named one is."""
    buys, room = order.side == BUY, book.key.shape[-1]
    own_key = -order.limit
    # After all orders of the same price or a better one.
    rank = count(torch.where(buys, book.key[BUY], book.key[SELL]) <= own_key)
    hole = first(torch.where(buys, book.quantity[BUY], book.quantity[SELL]) == 0)
    full, wanted = (hole == room) & ~order.anew, rest > 0
    evicted = full & wanted & (rank < room)
    fits = wanted & (~full | evicted)
    start = (~buys).to(torch.int32) * room
    hole = torch.where(order.anew, named.place, torch.where(evicted, room - 1, hole) + start)
    rank = rank + start
    place, hole, key, quantity, order_id = written_out(
        torch.where(fits, torch.where(hole >= rank, rank, rank - 1), named.place),
        torch.where(fits, hole, named.place),
        torch.where(fits, own_key, named.key),
        torch.where(fits, rest, remains),
        torch.where(fits, order.id, named.id),
    )
    return _Move(place, hole, key, quantity, order_id, fits, evicted)


def _moved(book: Book, move: _Move, order: _Incoming, gone: Tensor, numbered: Tensor) -> Book:
    room, device = book.key.shape[-1], book.key.device
    side = torch.arange(2, dtype=torch.int32, device=device).unsqueeze(-1)
    place = side * room + torch.arange(room, dtype=torch.int32, device=device)
    here = place == move.place
    later, earlier = (place > move.place) & (place <= move.hole), (place < move.place) & (place >= move.hole)

    def moved(column: Tensor, number: Tensor) -> Tensor:
        shifted = torch.where(later, before(column), torch.where(earlier, after(column), column))
        return torch.where(here, number, shifted)

    quantity = moved(book.quantity, move.quantity) - torch.where(side == order.side, 0, gone)
    key, owner, ids = moved(book.key, move.key), moved(book.owner, order.owner), moved(book.id, move.id)
    return Book(key, quantity, owner, ids, book.next_id + numbered.to(torch.int32))
