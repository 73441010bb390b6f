"""Requoting: all orders of one owner leave a book, and presorted quotes on both sides come in, as one operation.

Quotes are merged with the orders there: each order moves by the number of quotes before it, each quote stands after the
orders of its price. So a ladder of L quotes costs one merge of O(K L) comparisons instead of 2 L messages.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book import passes
from vecenv.kernels.order_book.book import EMPTY, Book, best_prices
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL


class Requote(NamedTuple):
    """What a requote did. Shape of each: (), int32.

    Attributes:
        placed: number of quotes that stand in the book.
        evicted: number of orders of others for which there was no more room.
        cancelled: quantity of the owner's orders that were taken out.
    """

    placed: Tensor
    evicted: Tensor
    cancelled: Tensor


def without_owner(book: Book, owner: Tensor) -> Book:
    """Return the book without the orders of an owner. Shape of the owner: ()."""
    return book._replace(quantity=torch.where(book.owner == owner, 0, book.quantity))


def requoted(book: Book, owner: Tensor, bids: Tensor, asks: Tensor, quantity: Tensor) -> tuple[Book, Requote]:
    """Take all orders of an owner out, and bring in L quotes a side: bids falling, asks rising, (L,), int64.

    A quote with a price out of range, or that would meet an order on the other side, is not placed. Bid number i has
    the id ``next_id + i``, ask number i ``next_id + L + i``, placed or not. The sides close their holes. Of a side with
    more orders than room the worst are taken out.
    """
    others = without_owner(book, owner)
    bid, ask = best_prices(others)
    # Without an order on the other side every price will do.
    wanted = ((bids >= 1) & (bids < torch.where(ask > 0, ask, MAX_PRICE + 1)), (asks <= MAX_PRICE) & (asks > bid))
    count = len(bids)
    sides, placed, evicted = [], [], []
    quotes = passes.written_out(
        *(torch.where(valid, key, EMPTY).to(torch.int32) for valid, key in zip(wanted, (-bids, asks), strict=True))
    )
    for side, keys, valid in ((BUY, quotes[BUY], wanted[BUY]), (SELL, quotes[SELL], wanted[SELL])):
        ids = others.next_id + side * count + torch.arange(count, dtype=torch.int32, device=keys.device)
        columns, stands, gone = _merged(others, side, keys, valid, (quantity, owner, ids))
        sides.append(columns)
        placed.append(stands)
        evicted.append(gone)
    key, there, owners, numbers = (torch.stack(pair) for pair in zip(*sides, strict=True))
    cancelled = passes.total((book.quantity - others.quantity).reshape(-1))
    told = Requote(placed[BUY] + placed[SELL], evicted[BUY] + evicted[SELL], cancelled)
    return Book(key, there, owners, numbers, book.next_id + 2 * count), told


def _merged(
    book: Book, side: int, keys: Tensor, valid: Tensor, told: tuple[Tensor, Tensor, Tensor]
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return key, quantity, owner and id of a side with quotes, how many were placed, and how many orders evicted."""
    key, live = book.key[side], book.quantity[side] > 0
    room = len(key)
    # Quote by quote: a sum over them for each order takes longer. One that is not valid is never better.
    better = torch.zeros_like(key)
    for quote in keys.unbind():
        better = better + (quote < key).to(torch.int32)
    as_good = live & (key <= keys[:, None])
    order_place = live.cumsum(0, dtype=torch.int32) - 1 + better
    quote_place = valid.cumsum(0, dtype=torch.int32) - 1 + passes.count(as_good)
    # One place more, which is cut off, takes what has none.
    order_place = torch.where(live, order_place, room).clamp(max=room)
    quote_place = torch.where(valid, quote_place, room).clamp(max=room)
    place = torch.cat([order_place, quote_place]).to(torch.int64)
    quantity, owner, ids = told
    pairs = (
        (key, keys, EMPTY),
        (book.quantity[side], quantity.expand_as(keys), 0),
        (book.owner[side], owner.expand_as(keys), -1),
        (book.id[side], ids, -1),
    )
    columns = []
    for old, new, empty in pairs:
        values = torch.cat([old, new.to(torch.int32)])
        columns.append(torch.full_like(values[:1], empty).expand(room + 1).scatter(0, place, values)[:room])
    return columns, passes.count(quote_place < room), passes.count(live & (order_place == room))
