"""What is forecast: smoothed moves of the mid over several horizons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vecenv.tasks.crypto_lob.factors.series import BookSeries

HORIZONS = (10, 20, 40, 60, 100, 160, 250, 400)
"""Seconds of the horizons."""

LEAST_OPEN = 0.75
"""Share of the rows of a horizon that must be no holes."""


def horizon_rows(series: BookSeries) -> list[int]:
    """Return the rows of each horizon."""
    return [series.rows(seconds) for seconds in HORIZONS]


def smoothed_moves(series: BookSeries) -> np.ndarray:
    """Return the mean logarithm of the mid over the rows of each horizon less that of the row, in basis points.

    Smoothed labels as in Zhang, Zohren and Roberts, "DeepLOB", IEEE Transactions on Signal Processing 67(11), 2019,
    equation (3), from the row's own mid. NaN where the row is a hole, where the tape ends before the horizon, or where
    more than a quarter of its rows are holes. Shape: (T, H), float64.
    """
    level = series.log_mid - series.log_mid[0]
    moves = np.full((len(level), len(HORIZONS)), np.nan)
    for place, rows in enumerate(horizon_rows(series)):
        if rows >= len(level):
            continue
        known = _sums_after(series.open.astype(np.float64), rows) >= LEAST_OPEN * rows
        mean = _sums_after(level, rows) / rows
        now = level[: len(mean)]
        moves[: len(mean), place] = np.where(known & series.open[: len(mean)], mean - now, np.nan)
    return moves


def _sums_after(values: np.ndarray, rows: int) -> np.ndarray:
    """Return the sum of the ``rows`` values after each row that has them. Shape: (T - rows,)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return total[rows + 1 :] - total[1 : len(values) - rows + 1]


def forecast_names(horizons: Sequence[int] = HORIZONS) -> tuple[str, ...]:
    """Return the names of forecasts, those of factors."""
    return tuple(f"forecast_{seconds}" for seconds in horizons)
