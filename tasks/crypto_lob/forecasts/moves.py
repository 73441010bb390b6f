"""What is forecast, smoothed moves of the mid over several horizons, and from which rows.

Folds walk forward: a model learns from rows whose outcomes are known before the first row that it forecasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vecenv.tasks.crypto_lob.factors.series import BookSeries
from vecenv.tasks.crypto_lob.forecast_file import HORIZONS

LEAST_OPEN = 0.75
"""Share of the rows of a horizon that must be no holes."""


def smoothed_moves(series: BookSeries) -> np.ndarray:
    """Return the mean logarithm of the mid over the rows of each horizon less that of the row, in basis points.

    Smoothed labels as in Zhang, Zohren and Roberts, "DeepLOB", IEEE Transactions on Signal Processing 67(11), 2019,
    equation (3), from the row's own mid. NaN where the row is a hole, where the tape ends before the horizon, or where
    more than a quarter of its rows are holes. Shape: (T, H), float64.
    """
    level = series.log_mid - series.log_mid[0]
    moves = np.full((len(level), len(HORIZONS)), np.nan)
    for place, rows in enumerate(map(series.rows, HORIZONS)):
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


@dataclass(frozen=True)
class Fold:
    """Rows of one model. A move of a row before ``learned`` ends before ``first``, where the forecasts begin.

    Weights are fitted to rows before ``fitted``; those from ``judged`` to ``learned`` choose among weights. Rows
    between share moves with both.
    """

    fitted: int
    judged: int
    learned: int
    first: int
    end: int


def fold_before(first: int, end: int, purge: int, judged_share: float) -> Fold:
    """Return the fold of a model that forecasts from a row on.

    ``purge`` is the rows of the longest horizon, ``judged_share`` the share of the rows before, their end, that chooses
    among weights.
    """
    learned = first - purge
    judged = learned - round(judged_share * learned)
    return Fold(fitted=judged - purge, judged=judged, learned=learned, first=first, end=end)


def walk_forward(num_rows: int, count: int, first_share: float, purge: int, judged_share: float) -> list[Fold]:
    """Divide a tape: the first share is only learned from, the rest is forecast in blocks of equal length.

    Raises ValueError if a fold has no rows to learn from, or to judge by.
    """
    first = round(first_share * num_rows)
    edges = [first + (num_rows - first) * number // count for number in range(count + 1)]
    folds = [fold_before(low, high, purge, judged_share) for low, high in pairwise(edges)]
    if folds[0].fitted < purge or folds[0].learned <= folds[0].judged or edges[0] == edges[1]:
        raise ValueError(
            f"{num_rows:,} rows are too few for {count} folds after the first {first_share:.0%} of them, with "
            f"{purge:,} rows between what is learned from and what is forecast"
        )
    return folds
