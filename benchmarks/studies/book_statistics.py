"""Statistics of markets on a grid of seconds, each with its source and the values that real markets have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vecenv.benchmarks.studies.book_sessions import Recorded

MINUTE = 60
SIGN_LAGS = 50
"""Lags of the order signs, in seconds with trades."""
FAINT = 0.01
"""Mean autocorrelation of the first ten lags from which on a decay is measured."""
NAN = float("nan")


class Statistic(NamedTuple):
    """A statistic of sessions with its range in the literature.

    A real book needs a span of at least `minutes` for it to mean something; without them no real book has it. Positive
    quantities whose ratios count are `scaled`.
    """

    name: str
    of: Callable[[Recorded], float]
    low: float = NAN
    high: float = NAN
    source: str = ""
    minutes: float = math.inf
    scaled: bool = False
    ranged: bool = True


def minute_returns(sessions: Recorded) -> np.ndarray:
    """Return log returns of the mid over minutes, NaN where an end is unknown. Shape: (S, M)."""
    return np.diff(np.log(sessions.mid[:, MINUTE - 1 :: MINUTE]), axis=1)


def deviation(sessions: Recorded) -> float:
    """Return the root mean square of log returns of the mid over all spans of a minute, in basis points."""
    price = np.log(sessions.mid)
    return float(1e4 * np.sqrt(np.nanmean((price[:, MINUTE:] - price[:, :-MINUTE]) ** 2)))


def mean_spread(sessions: Recorded) -> float:
    return float(np.nanmean(1e4 * sessions.spread / sessions.mid))


def autocorrelations(values: np.ndarray, first: int, last: int) -> np.ndarray:
    """Return the autocorrelations of series at some lags, with one mean and variance for all. Shape: (S, T)."""
    centred = values - np.nanmean(values)
    length = values.shape[1]
    products = [np.nanmean(centred[:, lag:] * centred[:, : max(0, length - lag)]) for lag in range(first, last + 1)]
    return np.array(products) / np.nanmean(centred**2)


def power(x: np.ndarray, y: np.ndarray) -> float:
    """Return the exponent of a power law through positive points, by least squares of the logarithms."""
    kept = (x > 0) & (y > 0)
    return float(np.polyfit(np.log(x[kept]), np.log(y[kept]), 1)[0]) if kept.sum() >= 3 else NAN


def decay(found: np.ndarray) -> float:
    """Return the exponent with which autocorrelations from lag 1 on decay; NaN where they are hardly correlated."""
    return -power(np.arange(1, len(found) + 1), found) if found[:10].mean() > FAINT else NAN


def tail_index(sessions: Recorded, share: float = 0.05) -> float:
    """Return Hill's estimate of the tail index of absolute minute returns.

    Hill, "A simple general approach to inference about the tail of a distribution", Annals of Statistics 3 (1975).
    """
    returns = minute_returns(sessions)
    size = np.sort(np.abs(returns[~np.isnan(returns)]))[::-1]
    count = max(2, int(share * len(size)))
    known = len(size) > count and size[count] > 0
    return float(1 / np.mean(np.log(size[:count] / size[count]))) if known else NAN


def volume_correlation(sessions: Recorded) -> float:
    traded, size = sessions.bought + sessions.sold, np.abs(minute_returns(sessions))
    minutes = traded.shape[1] // MINUTE
    volume = np.nansum(traded[:, : minutes * MINUTE].reshape(len(traded), minutes, MINUTE), -1)[:, 1:]
    kept = ~np.isnan(size)
    return float(np.corrcoef(volume[kept], size[kept])[0, 1])


def volume_clustering(sessions: Recorded) -> float:
    """Return the mean autocorrelation of the volume of a second at lags 1 to 10."""
    return float(autocorrelations(sessions.bought + sessions.sold, 1, 10).mean())


def sign_autocorrelations(sessions: Recorded) -> np.ndarray:
    """Return the autocorrelations of the signs of net volume, over seconds with trades, at lags 1 to 50. Shape: (50,).

    Lillo and Farmer, "The long memory of the efficient market", Studies in Nonlinear Dynamics & Econometrics 8 (2004).
    """
    net = np.nan_to_num(sessions.bought) - np.nan_to_num(sessions.sold)
    products, counts, squares = np.zeros(SIGN_LAGS), np.zeros(SIGN_LAGS), 0.0
    mean = np.mean(np.sign(net[net != 0]))
    for row in net:
        signs = np.sign(row[row != 0]) - mean
        squares += float((signs**2).sum())
        for lag in range(1, min(SIGN_LAGS, len(signs) - 1) + 1):
            products[lag - 1] += float((signs[lag:] * signs[:-lag]).sum())
            counts[lag - 1] += len(signs) - lag
    return products / np.maximum(counts, 1) / (squares / max(1, int((net != 0).sum())))


def responses(sessions: Recorded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return net volumes of seconds with trades, by their mean, and the moves of the mid in their direction after them.

    Moves are over 1 and 60 seconds from before the second, where the mid after 10 is known too. Shape of each: (E,).
    """
    net = np.nan_to_num(sessions.bought) - np.nan_to_num(sessions.sold)
    inner = net[:, 1:-60]
    length = inner.shape[1]
    near, middle, far = (
        (sessions.mid[:, horizon : horizon + length] - sessions.mid[:, :length]) * np.sign(inner)
        for horizon in (1, 10, 60)
    )
    kept = (inner != 0) & ~np.isnan(near + middle + far)
    size = np.abs(inner[kept])
    return size / size.mean(), near[kept], far[kept]


def impact_exponent(sessions: Recorded) -> float:
    """Return the exponent of the move within a second as a power of the volume, over ten quantiles of the volume.

    Concave below 1: Lillo, Farmer and Mantegna, "Master curve for price-impact function", Nature 421 (2003).
    """
    size, move, _ = responses(sessions)
    if not len(size):
        return NAN
    edges = np.unique(np.quantile(size, np.linspace(0, 1, 11)))
    place = np.clip(np.searchsorted(edges, size, side="right") - 1, 0, len(edges) - 2)
    means = [[each[place == number].mean() for number in range(len(edges) - 1)] for each in (size, move)]
    return power(*map(np.array, means))


def impact_left(sessions: Recorded) -> float:
    """Return the mean move after a minute over that after a second.

    Bouchaud, Gefen, Potters and Wyart, "Fluctuations and response in financial markets", Quantitative Finance 4 (2004):
    the response rises for tens of trades and falls back slowly.
    """
    _, near, far = responses(sessions)
    return float(far.mean() / near.mean()) if near.mean() > 0 else NAN


def _of_returns(first: int, last: int, absolute: bool = False) -> Callable[[Recorded], np.ndarray]:
    return lambda sessions: autocorrelations(
        np.abs(minute_returns(sessions)) if absolute else minute_returns(sessions), first, last
    )


_CONT = "Cont, Quantitative Finance 1 (2001)"
_LILLO = "Lillo and Farmer (2004); Bouchaud et al. (2004)"
_FIRST, _LATER, _SIZES = _of_returns(1, 1), _of_returns(2, 10), _of_returns(1, 10, absolute=True)

SHORT, HALF, HOUR, HOURS = 5, 30, 59, 240
"""Minutes of a real book that statistics of seconds, of pairs of minutes, and of their correlations need."""

STATISTICS = (
    Statistic("messages a second", lambda own: float(np.mean(own.messages))),
    Statistic("spread, median, ticks", lambda own: float(np.nanquantile(own.spread, 0.5)), minutes=SHORT, ranged=False),
    Statistic(
        "spread, 90% quantile, ticks", lambda own: float(np.nanquantile(own.spread, 0.9)), minutes=SHORT, ranged=False
    ),
    Statistic("spread, mean, basis points", mean_spread, minutes=SHORT, scaled=True),
    Statistic("touch, mean quantity of a side", lambda own: float(np.nanmean(own.touch)), minutes=SHORT, ranged=False),
    Statistic(
        "touch as a share of ten levels",
        lambda own: float(np.nanmedian(2 * own.touch / own.depth)),
        minutes=SHORT,
        scaled=True,
    ),
    Statistic(
        "seconds with an empty side",
        lambda own: float(np.isnan(own.mid).mean()),
        0.0,
        0.001,
        "hardly ever in liquid markets",
    ),
    Statistic("minute moves, deviation, basis points", deviation, minutes=2 * SHORT, scaled=True),
    Statistic(
        "minute deviation by spread", lambda own: deviation(own) / mean_spread(own), minutes=2 * SHORT, scaled=True
    ),
    Statistic("minute returns, ACF at lag 1", lambda own: float(_FIRST(own)[0]), -0.1, 0.0, _CONT, HOUR),
    # Not of absolute values, which are the larger the shorter a book is.
    Statistic("minute returns, mean ACF at lags 2-10", lambda own: float(_LATER(own).mean()), -0.02, 0.02, _CONT, HOUR),
    Statistic(
        "absolute minute returns, mean ACF at lags 1-10", lambda own: float(_SIZES(own).mean()), 0.05, 0.4, _CONT, HOUR
    ),
    Statistic("absolute minute returns, decay exponent", lambda own: decay(_SIZES(own)), 0.2, 0.4, _CONT, HOURS),
    Statistic("absolute minute returns, tail index", tail_index, 2.0, 5.0, _CONT, HOURS, scaled=True),
    Statistic("volume and absolute return of a minute, correlation", volume_correlation, 0.2, 0.8, _CONT, HALF),
    Statistic("volume of a second, mean ACF at lags 1-10", volume_clustering, minutes=SHORT),
    Statistic("order signs, ACF at lag 1", lambda own: float(sign_autocorrelations(own)[0]), 0.1, 0.6, _LILLO, SHORT),
    Statistic("order signs, decay exponent", lambda own: decay(sign_autocorrelations(own)), 0.36, 0.77, _LILLO, HOURS),
    Statistic("impact of volume, exponent", impact_exponent, 0.1, 0.9, "Lillo, Farmer and Mantegna (2003)", HALF),
    Statistic("impact after a minute by that after a second", impact_left, 0.5, 7.0, "Bouchaud et al. (2004)", HOURS),
)
"""All rows of the table in their order."""
