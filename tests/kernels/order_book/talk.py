"""One book spoken to in words."""

from __future__ import annotations

import torch

from vecenv.kernels.order_book.book import Book, empty_book
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, Kind, Message, Report


def orders_in(book: Book, one: int, side: int) -> list[tuple[int, int, int, int]]:
    """Price, quantity, owner and id of the orders of a side, best first."""
    live = book.quantity[one, side] > 0
    columns = (book.key[one, side].abs(), book.quantity[one, side], book.owner[one, side], book.id[one, side])
    return list(zip(*(column[live].tolist() for column in columns), strict=True))


class Talk:
    """One book spoken to in words, each order known by its id."""

    def __init__(self, room: int = 4, evict: bool = True) -> None:
        self.book, self.evict, self.trades = empty_book(room), evict, None

    def say(
        self, kind: Kind, side: int = BUY, price: int = 0, quantity: int = 0, owner: int = 0, target: int = -1
    ) -> Report:
        words = (torch.tensor(word, dtype=torch.int32) for word in (kind, side, price, quantity, owner, target))
        self.book, report, self.trades = process(self.book, Message(*words), self.evict)
        return report

    def orders(self, side: int) -> list[tuple[int, int, int, int]]:
        return orders_in(Book(*(leaf.unsqueeze(0) for leaf in self.book)), 0, side)

    def traded(self) -> list[tuple[int, int, int]]:
        """Price, size and order of each trade of the last message."""
        trades = self.trades
        columns = (trades.price, trades.size, trades.maker_id)
        return [told for told in zip(*(column.tolist() for column in columns), strict=True) if told[1]]
