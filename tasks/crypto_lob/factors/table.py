"""Factors by name, and their table of a tape: each value is known at its row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vecenv.tasks.crypto_lob.clock import ClockedBooks, recordings
from vecenv.tasks.crypto_lob.factors.alphas import ALPHAS
from vecenv.tasks.crypto_lob.factors.book_factors import BOOK_FACTORS
from vecenv.tasks.crypto_lob.factors.series import BookSeries

DEFAULT_FACTORS = (
    "microprice",
    "imbalance_1",
    "imbalance_5",
    "mean_imbalance_30",
    "flow_10",
    "flow_60",
    "trades_60",
    "return_10",
    "return_60",
    "volatility_60",
    "spread",
)

FACTORS = {**BOOK_FACTORS, **ALPHAS}
"""Functions of a `BookSeries` by name; each returns a series of shape (T,)."""

LARGEST_VALUE = 50.0
"""Factors are kept within this, of either sign: learners see nothing extreme."""


def check_factors(names: Sequence[str]) -> None:
    """Raise a ValueError if a factor's name is unknown, or named twice."""
    unknown = [name for name in names if name not in FACTORS]
    if unknown:
        raise ValueError(f"unknown factors {', '.join(unknown)}; there are {', '.join(FACTORS)}")
    if len(set(names)) < len(names):
        raise ValueError(f"factors are named twice: {', '.join(names)}")


def book_series(books: ClockedBooks, step_gap: float) -> BookSeries:
    """Return the series of which factors are made; in holes sizes are those of the last row before that is none."""
    rows = np.arange(len(books.open))
    known = np.maximum.accumulate(np.where(books.open, rows, 0))
    return BookSeries(
        open=books.open,
        bid_price=np.nan_to_num(books.bid_price),
        bid_size=books.bid_size[known],
        ask_price=np.nan_to_num(books.ask_price),
        ask_size=books.ask_size[known],
        bought=books.bought,
        sold=books.sold,
        step_gap=step_gap,
    )


def factor_table(books: ClockedBooks, names: Sequence[str], step_gap: float) -> np.ndarray:
    """Return the factors of all rows. Shape: (T, F), float32."""
    if not names:
        return np.zeros((len(books.open), 0), np.float32)
    # A factor looks back no further than its recording.
    parts = [book_series(part, step_gap) for part in recordings(books, step_gap)]
    columns = [[FACTORS[name](part).clip(-LARGEST_VALUE, LARGEST_VALUE) for name in names] for part in parts]
    return np.concatenate([np.stack(values, axis=1).astype(np.float32) for values in columns])
