"""The book as sorted arrays, and what is seen of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book import passes

EMPTY = 2**31 - 1
"""Key of a place that has never held an order."""


class Book(NamedTuple):
    """Orders of both sides, K places each, sorted by price and then by arrival.

    A place whose quantity is 0 is a hole. It keeps its key, so that the keys stay sorted: nothing moves when an order
    leaves.

    Attributes:
        key: of asks the price, of bids minus the price: lower is better. Shape: (2, K), int32.
        quantity: in shares. Shape: (2, K), int32.
        owner: Shape: (2, K), int32.
        id: Shape: (2, K), int32.
        next_id: of the next order that comes in; none is given twice. Shape: (), int32.
    """

    key: Tensor
    quantity: Tensor
    owner: Tensor
    id: Tensor
    next_id: Tensor


class Levels(NamedTuple):
    """Best prices of a side in ticks, 0 for no further level, and what each offers. Shape of each: (L,), int32."""

    price: Tensor
    quantity: Tensor
    orders: Tensor


def empty_book(room: int, device: torch.device | str = "cpu") -> Book:
    """Return a book without orders, with room for K of each side; ValueError below one."""
    if room < 1:
        raise ValueError(f"a book needs room for at least 1 order a side, got {room}")
    places = torch.zeros(2, room, dtype=torch.int32, device=device)
    return Book(places + EMPTY, places, places - 1, places - 1, places.new_zeros(()))


def best_prices(book: Book) -> Tensor:
    """Return the best bid and the best ask, 0 where there is none. Shape: (2,), int32."""
    best = passes.least(torch.where(book.quantity > 0, book.key, EMPTY))
    signs = torch.stack([-torch.ones_like(best[0]), torch.ones_like(best[1])])
    return torch.where(best == EMPTY, 0, best * signs)


def levels(book: Book, side: int, count: int) -> Levels:
    """Return the best prices of a side, `BUY` or `SELL`, with what is offered there."""
    key, live = book.key[side], book.quantity[side] > 0
    # Holes lie between the orders of a level: an order opens a level if no order before it has its key.
    known = torch.where(live, key, -EMPTY).cummax(0).values
    before = torch.cat([torch.full_like(known[:1], -EMPTY), known[:-1]])
    rank = (live & (key > before)).to(torch.int32).cumsum(0, dtype=torch.int32) - 1
    within = live & (rank == torch.arange(count, device=key.device)[:, None])
    price = passes.largest(torch.where(within, key.abs(), 0))
    return Levels(price, passes.total(torch.where(within, book.quantity[side], 0)), passes.count(within))


def queue_ahead(book: Book, order: Tensor) -> Tensor:
    """Return the quantity before an order at its price, 0 if it is not in the book. Shapes: () -> (), int32."""
    mine = (book.id == order) & (book.quantity > 0)
    place = torch.arange(book.key.shape[-1], device=book.key.device)
    own = passes.largest(torch.where(mine, place, -1).reshape(-1))
    side = mine.any(-1, keepdim=True)
    key = passes.largest(torch.where(mine, book.key, -EMPTY).reshape(-1))
    ahead = side & (book.key == key) & (place < own)
    return passes.total(torch.where(ahead, book.quantity, 0).reshape(-1))
