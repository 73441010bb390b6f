"""Snapshots of one coin's order book, and their check."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

import numpy as np

from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.system.memory import check_memory

FaultyRows = Literal["refuse", "hole"]
"""What becomes of rows whose book or time cannot be."""

_ROW_BYTES, _LEVEL_BYTES = 280, 120
"""Bytes that reading takes for a row of the clock and for each of its levels, as measured."""

_OPTION = "; with --env.faulty-rows hole (faulty_rows='hole') such rows are holes, and are counted"


class _Fault(NamedTuple):
    """What may be wrong with books: cells, (R, n), the column's name with ``{}`` for the level, and a text.

    ``numbers`` are what the text tells of the cell, (R, n) each.
    """

    kind: str
    cells: np.ndarray
    column: str
    text: str
    numbers: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, eq=False)
class Snapshots:
    """Snapshots of the order book of one coin: R of them, with L levels a side, the best first.

    A level that a book does not have is NaN in prices and 0 in sizes, behind all that it has. Times are since 1970,
    UTC, ``per_ms`` of them a millisecond, sizes coins. ``bought`` and ``sold`` are coins taken since the snapshot
    before, NaN where unknown, ``age`` milliseconds that the book is older than its time, NaN where unknown: such a book
    is never fresh. For messages are ``source``, ``rows``, the number of each snapshot's row there, and ``columns``,
    names of columns by field, with ``{}`` for the level. ``lasting`` is whether a snapshot stands until the next, as
    where every change of the book is one.

    With ``faulty_rows`` hole, rows are put in the order of their times, of equal times the last one stands, a book that
    is crossed, locked, one-sided, unsorted or newer than its row has an unknown age, and ``faults`` counts both by
    kind. Else, and for negative volumes, raises MarketDataError; the message names source, row and column.
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
    per_ms: int = 1
    faulty_rows: FaultyRows = "refuse"
    faults: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.time) < 2:
            raise MarketDataError(f"{self._place()}: {len(self.time)} snapshots are not enough, a tape needs two")
        self._check_times()
        for name in ("bought", "sold"):
            negative = getattr(self, name) < 0
            if negative.any():
                self._refuse(int(negative.argmax()), name, "a negative volume")
        unfit = np.zeros(len(self.time), bool)
        for fault in self._faulty_books():
            if not fault.cells.any():
                continue
            if self.faulty_rows == "refuse":
                row, level = np.argwhere(fault.cells)[0]
                text = fault.text.format(*(numbers[row, level] for numbers in fault.numbers))
                self._refuse(row, fault.column.replace("{}", str(level)), text + _OPTION)
            wrong = fault.cells.any(1) & ~unfit
            if wrong.any():
                self.faults[fault.kind] = self.faults.get(fault.kind, 0) + int(wrong.sum())
            unfit |= wrong
        if self.faults:
            object.__setattr__(self, "age", np.where(unfit, np.nan, self.age))
            told = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.items())
            warnings.warn(
                f"{self._place()}: faulty rows, of {len(self.time):,}: {told}", MarketDataWarning, stacklevel=4
            )

    @property
    def levels(self) -> int:
        return self.bid_price.shape[1]

    def _check_times(self) -> None:
        step = np.diff(self.time)
        if not (step <= 0).any():
            return
        if self.faulty_rows == "refuse":
            row = int((step <= 0).argmax()) + 1
            before, now = self.time[row - 1], self.time[row]
            what = (
                "the time of the row before again"
                if before == now
                else f"a time before that of the row before, {before}"
            )
            self._refuse(row, "time", f"{now} is {what}{_OPTION}")
        counts = {"with the time of the row before": int((step == 0).sum()), "out of order": int((step < 0).sum())}
        self.faults.update({kind: count for kind, count in counts.items() if count})
        order = np.argsort(self.time, kind="stable")
        for item in fields(self):
            if isinstance(getattr(self, item.name), np.ndarray):
                object.__setattr__(self, item.name, getattr(self, item.name)[order])

    def _faulty_books(self) -> Iterator[_Fault]:
        for side, sign in (("bid", -1), ("ask", 1)):
            price, size = getattr(self, f"{side}_price"), getattr(self, f"{side}_size")
            there = np.isfinite(price) & np.isfinite(size) & (size != 0)
            column = self._column(f"{side}_price")
            yield _Fault("without a side", ~there[:, :1], column, f"the book has no {side}")
            for field_, values in (("price", price), ("size", size)):
                name = self._column(f"{side}_{field_}")
                yield _Fault("with a number below zero", there & ~(values > 0), name, "{:g} is not positive", (values,))
            behind = there & np.roll(~there, 1, 1)
            unsorted = there & np.roll(there, 1, 1) & ~(sign * (price - np.roll(price, 1, 1)) > 0)
            behind[:, 0] = unsorted[:, 0] = False
            yield _Fault("with a level missing", behind, column, "a level behind one that is missing")
            yield _Fault("unsorted", unsorted, column, "levels are not sorted")
        best = self.bid_price[:, :1], self.ask_price[:, :1]
        names = f"{self._column('bid_price')} and {self._column('ask_price')}"
        for kind, wrong in (("crossed", best[0] > best[1]), ("locked", best[0] == best[1])):
            yield _Fault(kind, wrong, names, f"the book is {kind}, bid {{:g}} and ask {{:g}}", best)
        age = self.age[:, None]
        yield _Fault(
            "newer than their time",
            age < 0,
            self._column("age"),
            "{:g} ms: the book would be newer than its row",
            (age,),
        )

    def _column(self, name: str) -> str:
        return self.columns.get(name, name if name == "age" else f"{name}_{{}}")

    def _place(self) -> str:
        return f"{self.source}, {self.symbol}" if self.symbol else self.source

    def _refuse(self, row: int, column: str, fault: str) -> None:
        raise MarketDataError(f"{self._place()}: row {self.rows[row]}, {column}: {fault}")


def check_rows(rows: int, levels: int, what: str) -> None:
    """Raise TooLittleMemoryError if so many rows do not fit into memory; ``what`` says of what, in the plural."""
    needed = rows * (_ROW_BYTES + levels * _LEVEL_BYTES)
    check_memory(needed, "cpu", what, "choose a larger step_gap, fewer levels or fewer hours")
