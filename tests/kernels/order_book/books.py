"""Books for tests: one spoken to in words, and random messages to many, near one price, of few owners, some wrong."""

from __future__ import annotations

import numpy as np
import torch

from vecenv.kernels.order_book.book import Book, empty_book, max_quantity
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, Kind, Message, Report


def books(count: int, room: int) -> Book:
    return Book(*(leaf.expand(count, *leaf.shape).clone() for leaf in empty_book(room)))


def drawn(random: np.random.Generator, count: int, next_id: np.ndarray, room: int) -> np.ndarray:
    """Messages to ``count`` books. Shape: (6, count), int32."""
    kinds = [Kind.LIMIT, Kind.MARKET, Kind.IMMEDIATE, Kind.POST_ONLY, Kind.CANCEL, Kind.CANCEL_ALL, Kind.MODIFY]
    odds = np.array([0.419, 0.06, 0.06, 0.08, 0.12, 0.006, 0.13, 0.09, 0.005, 0.02, 0.01])
    kind = random.choice([*kinds, Kind.REPLACE, Kind.REPLACE_ALL, Kind.NOTHING, 99], count, p=odds)
    side = random.integers(0, 2, count)
    # Buyers below and sellers above the middle, with an overlap.
    price = 100 + np.where(side == BUY, -1, 1) * random.integers(-3, 9, count)
    quantity = random.integers(1, 12, count)
    owner = random.integers(0, 4, count)
    target = next_id - 1 - random.integers(0, 3 * room, count)
    wrong = random.random(count) < 0.03
    column = random.integers(0, 4, count)
    values = np.array([2, 0, -1, -5, MAX_PRICE + 1, max_quantity(room) + 1, 2**31 - 1, -(2**31)])
    bad = values[random.integers(0, len(values), count)]
    side, price, quantity, owner = (
        np.where(wrong & (column == place), bad, words) for place, words in enumerate((side, price, quantity, owner))
    )
    return np.stack([kind, side, price, quantity, owner, target]).astype(np.int32)


def orders_in(book: Book, one: int, side: int) -> list[tuple[int, int, int, int]]:
    """Price, quantity, owner and id of the orders of a side, best first."""
    live = book.quantity[one, side] > 0
    columns = (book.key[one, side].abs(), book.quantity[one, side], book.owner[one, side], book.id[one, side])
    return list(zip(*(column[live].tolist() for column in columns), strict=True))


class Talk:
    """One book, each order known by its id."""

    def __init__(self, room: int = 4) -> None:
        self.book, self.trades = empty_book(room), None

    def say(
        self, kind: Kind, side: int = BUY, price: int = 0, quantity: int = 0, owner: int = 0, target: int = -1
    ) -> Report:
        words = (torch.tensor(word, dtype=torch.int32) for word in (kind, side, price, quantity, owner, target))
        self.book, report, self.trades = process(self.book, Message(*words))
        return report

    def orders(self, side: int) -> list[tuple[int, int, int, int]]:
        return orders_in(Book(*(leaf.unsqueeze(0) for leaf in self.book)), 0, side)

    def traded(self) -> list[tuple[int, int, int]]:
        """Price, size and order of each trade of the last message."""
        trades = self.trades
        columns = (trades.price, trades.size, trades.maker_id)
        return [told for told in zip(*(column.tolist() for column in columns), strict=True) if told[1]]
