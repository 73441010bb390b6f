"""Snapshots on a regular clock: rows without a fresh book are holes, which have no depth."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from vecenv.market.validation import MarketDataError
from vecenv.tasks.crypto_lob.snapshots import Snapshots, check_rows

LONGEST_HOLE = 900.0
"""Seconds of the longest hole that a clock runs through: the rows of longer ones are left out, and what comes after is
a recording of its own."""


@dataclass(frozen=True, eq=False)
class ClockedBooks:
    """Books at T times of a clock, regular but for holes of more than `LONGEST_HOLE`, which are left out.

    A hole repeats the prices of the last row before that is none.

    ``time`` is milliseconds since 1970, ``open`` whether the row has a fresh book, and is no hole. Prices and sizes,
    (T, L), are NaN and 0 where there is no level; sizes are 0 in holes. ``bought`` and ``sold`` are coins taken since
    the row before, 0 in holes and where unknown.
    """

    time: np.ndarray
    open: np.ndarray
    bid_price: np.ndarray
    bid_size: np.ndarray
    ask_price: np.ndarray
    ask_size: np.ndarray
    bought: np.ndarray
    sold: np.ndarray


def clocked(snapshots: Snapshots, step_gap: float, max_age: float) -> ClockedBooks:
    """Read the last book at or before each time of a clock of ``step_gap`` seconds.

    The clock starts at the first multiple of ``step_gap`` that is not before the first fresh snapshot, one at most
    ``max_age`` seconds old, and leaves out holes of more than `LONGEST_HOLE`. Raises MarketDataError if fewer than two
    times have a fresh book, TooLittleMemoryError before there are more than fit into memory.
    """
    gap, oldest = round(step_gap * 1000), max_age * 1000
    if not (gap > 0 and abs(gap - step_gap * 1000) < 1e-9):
        raise ValueError(f"step_gap must be a positive number of milliseconds, got {step_gap} s")
    gap, oldest = gap * snapshots.per_ms, oldest * snapshots.per_ms
    age = snapshots.age * snapshots.per_ms
    fresh = age <= oldest
    if not fresh.any():
        told = f"; {sum(snapshots.faults.values()):,} rows are faulty" if snapshots.faults else ""
        raise MarketDataError(f"{snapshots.source}: no book is at most {max_age:g} s old{told}")
    lasts = np.where(fresh, np.minimum(np.floor(oldest - age), 2.0**62), -1.0).astype(np.int64)
    number = _clock_numbers(snapshots, gap, lasts, step_gap)
    time = number * gap
    place = np.searchsorted(snapshots.time, time, "right") - 1
    is_open = age[place] + (0 if snapshots.lasting else time - snapshots.time[place]) <= oldest
    if is_open.sum() < 2:
        raise MarketDataError(
            f"{snapshots.source}: on a clock of {step_gap:g} s fewer than two of {len(time)} times have a book that is "
            f"at most {max_age:g} s old"
        )
    last_open = np.maximum.accumulate(np.where(is_open, np.arange(len(time)), 0))
    source = place[last_open]
    sizes = {
        name: np.where(is_open[:, None], np.nan_to_num(getattr(snapshots, name)[source]), 0.0)
        for name in ("bid_size", "ask_size")
    }
    # What was taken while nothing was recorded is no volume of the row after.
    begins = np.diff(number, prepend=number[0] - 2) > 1
    volumes = {
        name: np.where(is_open & ~begins, _taken(getattr(snapshots, name), place), 0.0) for name in ("bought", "sold")
    }
    books = ClockedBooks(
        time=time // snapshots.per_ms,
        open=is_open,
        bid_price=snapshots.bid_price[source],
        ask_price=snapshots.ask_price[source],
        **sizes,
        **volumes,
    )
    assert all(len(getattr(books, item.name)) == len(time) for item in fields(books))
    return books


def _clock_numbers(snapshots: Snapshots, gap: int, lasts: np.ndarray, step_gap: float) -> np.ndarray:
    """Return the numbers of the clock's times, those of long holes left out, and those before a fresh book.

    ``lasts`` is how long each snapshot is fresh, negative if never, in units of the times. Shapes: (R,) -> (T,).
    """
    time = snapshots.time
    until = np.append(time[1:] - 1, time[-1])
    if not snapshots.lasting:
        until = np.minimum(until, time + lasts)
    first, last = -(-time // gap), until // gap
    shown = np.flatnonzero((lasts >= 0) & (first <= last))
    if not len(shown):
        # The caller tells that there are too few.
        return first[(lasts >= 0).argmax(), None]
    first, last, end = first[shown], last[shown], int(time[-1]) // gap
    longest = int(LONGEST_HOLE / step_gap)
    cuts = np.flatnonzero(first[1:] - last[:-1] - 1 > longest)
    starts = np.append(first[0], first[1:][cuts])
    ends = np.append(last[cuts], end if end - last[-1] <= longest else last[-1])
    rows = int((ends - starts + 1).sum())
    what = f"{snapshots.source}: {rows:,} rows of {snapshots.levels} levels every {step_gap:g} s"
    check_rows(rows, snapshots.levels, what)
    return np.concatenate([np.arange(start, stop + 1) for start, stop in zip(starts, ends, strict=True)])


def moment(time: int) -> str:
    """Return milliseconds since 1970 as a time, UTC, to the second."""
    return str(np.datetime64(int(time), "ms").astype("datetime64[s]")).replace("T", " ")


def cuts(time: np.ndarray, step_gap: float) -> np.ndarray:
    """Return the rows before which a long hole is left out of a clock. Shape of the times: (T,)."""
    return np.flatnonzero(np.diff(time) > round(step_gap * 1000)) + 1


def recordings(books: ClockedBooks, step_gap: float) -> list[ClockedBooks]:
    """Return the parts of books between which long holes are left out."""
    parts = [slice(low, high) for low, high in pairwise([0, *cuts(books.time, step_gap), len(books.time)])]
    return [ClockedBooks(**{item.name: getattr(books, item.name)[part] for item in fields(books)}) for part in parts]


def _taken(volume: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return what was taken from one time of the clock to the next: the sum of the snapshots between. Shape: (T,)."""
    total = np.cumsum(np.nan_to_num(volume))[place]
    return np.diff(total, prepend=total[0])


def long_holes(is_open: np.ndarray, longest: int) -> list[tuple[int, int]]:
    """Return first row and end (exclusive) of all runs of more than ``longest`` holes. Shape of the flags: (T,)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], is_open, [True]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    return [(int(first), int(end)) for first, end in runs if end - first > longest]
