"""Snapshots on a regular clock: rows without a fresh book are holes, which have no depth."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from vecenv.market.validation import MarketDataError
from vecenv.tasks.crypto_lob.sources.snapshots import Snapshots


@dataclass(frozen=True, eq=False)
class ClockedBooks:
    """Books at T times of a regular clock; a hole repeats the prices of the last row before that is none.

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
    ``max_age`` seconds old. Raises MarketDataError if fewer than two times have a fresh book.
    """
    gap, oldest = round(step_gap * 1000), max_age * 1000
    if not (gap > 0 and abs(gap - step_gap * 1000) < 1e-9):
        raise ValueError(f"step_gap must be a positive number of milliseconds, got {step_gap} s")
    fresh = snapshots.age <= oldest
    if not fresh.any():
        raise MarketDataError(f"{snapshots.source}: no book is at most {max_age:g} s old")
    first = -(-int(snapshots.time[fresh.argmax()]) // gap) * gap
    time = np.arange(first, int(snapshots.time[-1]) + 1, gap)
    place = np.searchsorted(snapshots.time, time, "right") - 1
    age = snapshots.age[place] + (0 if snapshots.lasting else time - snapshots.time[place])
    is_open = age <= oldest
    if is_open.sum() < 2:
        raise MarketDataError(
            f"{snapshots.source}: on a clock of {step_gap:g} s fewer than two of {len(time)} times have a book that is "
            f"at most {max_age:g} s old"
        )
    # Rows before the first open one have nothing to repeat.
    start = int(is_open.argmax())
    time, place, is_open = time[start:], place[start:], is_open[start:]
    last_open = np.maximum.accumulate(np.where(is_open, np.arange(len(time)), 0))
    source = place[last_open]
    sizes = {
        name: np.where(is_open[:, None], np.nan_to_num(getattr(snapshots, name)[source]), 0.0)
        for name in ("bid_size", "ask_size")
    }
    volumes = {name: np.where(is_open, _taken(getattr(snapshots, name), place), 0.0) for name in ("bought", "sold")}
    books = ClockedBooks(
        time=time,
        open=is_open,
        bid_price=snapshots.bid_price[source],
        ask_price=snapshots.ask_price[source],
        **sizes,
        **volumes,
    )
    assert all(len(getattr(books, item.name)) == len(time) for item in fields(books))
    return books


def _taken(volume: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return what was taken from one time of the clock to the next: the sum of the snapshots between. Shape: (T,)."""
    total = np.cumsum(np.nan_to_num(volume))[place]
    return np.diff(total, prepend=total[0])


def long_holes(is_open: np.ndarray, longest: int) -> list[tuple[int, int]]:
    """Return first row and end (exclusive) of all runs of more than ``longest`` holes. Shape of the flags: (T,)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], is_open, [True]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    return [(int(first), int(end)) for first, end in runs if end - first > longest]
