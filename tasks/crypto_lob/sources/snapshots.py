"""Snapshots of one coin's order book, and their check."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vecenv.market.validation import MarketDataError


@dataclass(frozen=True, eq=False)
class Snapshots:
    """Snapshots of the order book of one coin: R of them, with L levels a side, the best first.

    A level that a book does not have is NaN in prices and 0 in sizes, behind all that it has. Times are milliseconds
    since 1970, UTC, sizes coins. ``bought`` and ``sold`` are coins taken since the snapshot before, NaN where unknown,
    ``age`` milliseconds that the book is older than its time, NaN where unknown: such a book is never fresh. For
    messages are ``source``, ``rows``, the number of each snapshot's row there, and ``columns``, names of columns by
    field, with ``{}`` for the level. ``lasting`` is whether a snapshot stands until the next, as where every change of
    the book is one.

    Raises MarketDataError if the snapshots are invalid; the message names source, row and column.
    """

    source: str
    symbol: str
    time: np.ndarray
    bid_price: np.ndarray
    bid_size: np.ndarray
    ask_price: np.ndarray
    ask_size: np.ndarray
    bought: np.ndarray
    sold: np.ndarray
    age: np.ndarray
    rows: np.ndarray
    columns: dict[str, str]
    lasting: bool = False

    def __post_init__(self) -> None:
        if len(self.time) < 2:
            raise MarketDataError(f"{self._place()}: {len(self.time)} snapshots are not enough, a tape needs two")
        self._check_times()
        for side, sign in (("bid", -1), ("ask", 1)):
            self._check_side(side, sign)
        crossed = self.bid_price[:, 0] >= self.ask_price[:, 0]
        if crossed.any():
            row = int(crossed.argmax())
            self._refuse(
                row,
                f"{self._name('bid_price', 0)} and {self._name('ask_price', 0)}",
                f"the book is crossed, bid {self.bid_price[row, 0]:g} and ask {self.ask_price[row, 0]:g}",
            )
        for name in ("bought", "sold"):
            negative = getattr(self, name) < 0
            if negative.any():
                self._refuse(int(negative.argmax()), name, "a negative volume")
        newer = self.age < 0
        if newer.any():
            row = int(newer.argmax())
            self._refuse(row, self._name("age", 0), f"{self.age[row]:g} ms: the book would be newer than its row")

    @property
    def levels(self) -> int:
        return self.bid_price.shape[1]

    def _check_times(self) -> None:
        step = np.diff(self.time)
        if (step <= 0).any():
            row = int((step <= 0).argmax()) + 1
            before, now = self.time[row - 1], self.time[row]
            what = (
                "the time of the row before again"
                if before == now
                else f"a time before that of the row before, {before}"
            )
            self._refuse(row, "time", f"{now} is {what}")

    def _check_side(self, side: str, sign: int) -> None:
        """Check the levels of one side: a best price, positive numbers, none behind a missing level, sorted prices."""
        price, size = getattr(self, f"{side}_price"), getattr(self, f"{side}_size")
        there = np.isfinite(price) & np.isfinite(size) & (size != 0)
        if not there[:, 0].all():
            self._refuse(int((~there[:, 0]).argmax()), self._name(f"{side}_price", 0), f"the book has no {side}")
        for field, values in ((f"{side}_price", price), (f"{side}_size", size)):
            wrong = there & ~(values > 0)
            if wrong.any():
                row, level = np.argwhere(wrong)[0]
                self._refuse(row, self._name(field, level), f"{values[row, level]:g} is not positive")
        if price.shape[1] == 1:
            return
        behind = there[:, 1:] & ~there[:, :-1]
        unsorted = there[:, 1:] & there[:, :-1] & ~(sign * np.diff(price, axis=1) > 0)
        for wrong, fault in ((behind, "a level behind one that is missing"), (unsorted, "levels are not sorted")):
            if wrong.any():
                row, level = np.argwhere(wrong)[0]
                self._refuse(row, self._name(f"{side}_price", level + 1), fault)

    def _name(self, field: str, level: int) -> str:
        return self.columns.get(field, f"{field}_{{}}").format(level)

    def _place(self) -> str:
        return f"{self.source}, {self.symbol}" if self.symbol else self.source

    def _refuse(self, row: int, column: str, fault: str) -> None:
        raise MarketDataError(f"{self._place()}: row {self.rows[row]}, {column}: {fault}")
