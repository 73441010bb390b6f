"""Walk-forward folds: a model learns from rows whose outcomes are known before the first row that it forecasts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


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
