"""The formulaic alphas that one book supports, on bars of `factors.BAR_SECONDS` that end at every row.

Kakushadze, "101 formulaic alphas", Wilmott 2016(84), appendix A. A day of the formulas is a bar, ``close`` the mid,
volume what was traded. Ranks across stocks, which one coin does not have, are ranks over the last `RANK_BARS` bars;
alphas that need industries or market values are left out. Prices in a result are divided by the mid and in basis
points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vecenv.tasks.crypto_lob.factors import BookSeries


RANK_BARS = 20
"""Bars of a rank that the formulas take across stocks."""

_EPSILON = 1e-12


def _delay(book: BookSeries, values: np.ndarray, bars: int) -> np.ndarray:
    return book.before(values, bars * book.bar)


def _delta(book: BookSeries, values: np.ndarray, bars: int) -> np.ndarray:
    return values - _delay(book, values, bars)


def _lags(book: BookSeries, values: np.ndarray, bars: int) -> Iterator[np.ndarray]:
    """Return the values at the ends of the last bars, the newest first; those before the tape are its first row's."""
    return (_delay(book, values, bar) for bar in range(bars))


def _rank(book: BookSeries, values: np.ndarray, bars: int = RANK_BARS) -> np.ndarray:
    """Return the mean rank of the newest value among those of the last bars, divided by their number. Shape: (T,)."""
    below, equal = np.zeros(len(values)), np.zeros(len(values))
    for lag in _lags(book, values, bars):
        below += lag < values
        equal += lag == values
    return (below + 0.5 * (equal + 1)) / bars


def _sum(book: BookSeries, values: np.ndarray, bars: int) -> np.ndarray:
    return sum(_lags(book, values, bars), np.zeros(len(values)))


def _lowest(book: BookSeries, values: np.ndarray, bars: int) -> np.ndarray:
    return reduce(np.minimum, _lags(book, values, bars))


def _highest(book: BookSeries, values: np.ndarray, bars: int) -> np.ndarray:
    return reduce(np.maximum, _lags(book, values, bars))


def _correlation(book: BookSeries, left: np.ndarray, right: np.ndarray, bars: int) -> np.ndarray:
    """Return Pearson's correlation over the last bars, 0 where one of them does not vary. Shape: (T,)."""
    middles = _sum(book, left, bars) / bars, _sum(book, right, bars) / bars
    products, squares = np.zeros(len(left)), (np.zeros(len(left)), np.zeros(len(left)))
    for first, second in zip(_lags(book, left, bars), _lags(book, right, bars), strict=True):
        away = first - middles[0], second - middles[1]
        products += away[0] * away[1]
        for square, part in zip(squares, away, strict=True):
            square += part**2
    # A sum of squares of equal values is not 0 but a rounding error.
    varies = (squares[0] > _EPSILON * middles[0] ** 2) & (squares[1] > _EPSILON * middles[1] ** 2)
    varies &= (squares[0] > 0) & (squares[1] > 0)
    scale = np.sqrt(squares[0] * squares[1])
    return np.where(varies, products / np.where(varies, scale, 1.0), 0.0)


def _in_basis_points(book: BookSeries, values: np.ndarray) -> np.ndarray:
    return 1e4 * values / book.mid


def alpha_006(book: BookSeries) -> np.ndarray:
    """Minus the correlation of open and volume over ten bars."""
    return -_correlation(book, book.bar_open, book.bar_volume, 10)


def alpha_007(book: BookSeries) -> np.ndarray:
    """Where volume is above its mean of 20 bars, minus the rank of the move of 7 bars by its sign; else -1."""
    move = _delta(book, book.mid, 7)
    mean = _sum(book, book.bar_volume, 20) / 20
    return np.where(mean < book.bar_volume, -_rank(book, np.abs(move), 60) * np.sign(move), -1.0)


def alpha_009(book: BookSeries) -> np.ndarray:
    """The move of a bar where the last five had one sign, else against it."""
    move = _delta(book, book.mid, 1)
    same = (_lowest(book, move, 5) > 0) | (_highest(book, move, 5) < 0)
    return _in_basis_points(book, np.where(same, move, -move))


def alpha_012(book: BookSeries) -> np.ndarray:
    """Against the move of a bar with more volume than the one before, with it otherwise."""
    return _in_basis_points(book, -np.sign(_delta(book, book.bar_volume, 1)) * _delta(book, book.mid, 1))


def alpha_023(book: BookSeries) -> np.ndarray:
    """Against the move of the high over two bars, where it is above its mean of 20 bars."""
    high = book.bar_high
    above = _sum(book, high, 20) / 20 < high
    return _in_basis_points(book, np.where(above, -_delta(book, high, 2), 0.0))


def alpha_026(book: BookSeries) -> np.ndarray:
    """Minus the highest of three correlations over five bars of the ranks of volume and high."""
    pair = _correlation(book, _rank(book, book.bar_volume, 5), _rank(book, book.bar_high, 5), 5)
    return -_highest(book, pair, 3)


def alpha_041(book: BookSeries) -> np.ndarray:
    """Geometric mean of high and low minus the mean price by volume."""
    return _in_basis_points(book, np.sqrt(book.bar_high * book.bar_low) - book.bar_vwap)


def alpha_042(book: BookSeries) -> np.ndarray:
    """Rank of mean price minus close over that of their sum."""
    return _rank(book, book.bar_vwap - book.mid) / _rank(book, book.bar_vwap + book.mid)


def alpha_043(book: BookSeries) -> np.ndarray:
    """Rank of volume over its mean, times the rank of minus the move of 7 bars."""
    mean = _sum(book, book.bar_volume, 20) / 20
    relative = book.bar_volume / np.maximum(mean, _EPSILON)
    return _rank(book, relative, 20) * _rank(book, -_delta(book, book.mid, 7), 8)


def alpha_049(book: BookSeries) -> np.ndarray:
    """1 where the move of the last 10 bars is far below that of the 10 before, else against the last bar's.

    The threshold of the formula is an absolute price; here it is one basis point a bar.
    """
    last = _in_basis_points(book, _delta(book, book.mid, 10))
    before = _delay(book, last, 10)
    return np.where((before - last) / 10 < -1.0, 1.0, -_in_basis_points(book, _delta(book, book.mid, 1)))


def alpha_053(book: BookSeries) -> np.ndarray:
    """Minus the change over 9 bars of where the close is between low and high."""
    above, below = book.bar_high - book.mid, book.mid - book.bar_low
    place = np.where(below > _EPSILON, (below - above) / np.where(below > _EPSILON, below, 1.0), 0.0)
    return -_delta(book, place.clip(-10.0, 10.0), 9)


def alpha_054(book: BookSeries) -> np.ndarray:
    """(low - close) open⁵ over (low - high) close⁵, with a minus; 0 in a bar without a move."""
    width = book.bar_low - book.bar_high
    moved = width < -_EPSILON
    ratio = (book.bar_low - book.mid) / np.where(moved, width, 1.0) * (book.bar_open / book.mid) ** 5
    return np.where(moved, -ratio, 0.0)


def alpha_101(book: BookSeries) -> np.ndarray:
    """Move of the bar over its range; 0 without one."""
    width = book.bar_high - book.bar_low
    moved = width > _EPSILON
    return np.where(moved, (book.mid - book.bar_open) / np.where(moved, width, 1.0), 0.0)


ALPHAS: dict[str, Callable[[BookSeries], np.ndarray]] = {
    function.__name__: function
    for function in (
        alpha_006, alpha_007, alpha_009, alpha_012, alpha_023, alpha_026, alpha_041,
        alpha_042, alpha_043, alpha_049, alpha_053, alpha_054, alpha_101,
    )
}  # fmt: skip
