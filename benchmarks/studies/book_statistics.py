"""Statistics of markets on a grid of seconds, each with its source and the values that real markets have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vecenv.benchmarks.studies.book_sessions import Recorded

MINUTE = 60
SIGN_LAGS = 50
"""Lags of the order signs, in seconds with trades."""
FAINT = 0.01
"""Mean autocorrelation of the first ten lags from which on a decay is measured."""


@dataclass(frozen=True)
class Statistic:
    """A statistic of sessions.

    Attributes:
        name: of the row.
        of: returns it from sessions, NaN if they do not tell.
        low: least value of real markets, None if there is no range.
        high: largest value of real markets.
        source: of the range.
        timeless: whether it means something without a clock.
    """

    name: str
    of: Callable[[Recorded], float]
    low: float | None = None
    high: float | None = None
    source: str = ""
    timeless: bool = False

    def distance(self, value: float) -> float:
        """Return how far a value is from the range, 0 inside."""
        if self.low is None or self.high is None or np.isnan(value):
            return float("nan")
        return max(self.low - value, value - self.high, 0.0)


def minute_returns(sessions: Recorded) -> np.ndarray:
    """Return log returns of the mid over minutes, NaN where an end is unknown. Shape: (S, M)."""
    closes = sessions.mid[:, MINUTE - 1 :: MINUTE]
    return np.diff(np.log(closes), axis=1)


def minute_volume(sessions: Recorded) -> np.ndarray:
    """Return what was traded in the minutes of `minute_returns`. Shape: (S, M)."""
    traded = sessions.bought + sessions.sold
    minutes = traded.shape[1] // MINUTE
    return np.nansum(traded[:, : minutes * MINUTE].reshape(len(traded), minutes, MINUTE), -1)[:, 1:]


def autocorrelation(values: np.ndarray, lag: int) -> float:
    """Return the autocorrelation of series at a lag, with one mean and variance for all. Shape: (S, T)."""
    centred = values - np.nanmean(values)
    products = centred[:, lag:] * centred[:, : values.shape[1] - lag]
    return float(np.nanmean(products) / np.nanmean(centred**2))


def power(x: np.ndarray, y: np.ndarray) -> float:
    """Return the exponent of a power law through positive points, by least squares of the logarithms."""
    kept = (x > 0) & (y > 0)
    if kept.sum() < 3:
        return float("nan")
    return float(np.polyfit(np.log(x[kept]), np.log(y[kept]), 1)[0])


def return_autocorrelation(sessions: Recorded) -> float:
    """Return the autocorrelation of minute returns at the first lag."""
    return autocorrelation(minute_returns(sessions), 1)


def later_return_autocorrelation(sessions: Recorded) -> float:
    """Return the mean absolute autocorrelation of minute returns at lags 2 to 10."""
    returns = minute_returns(sessions)
    return float(np.mean([abs(autocorrelation(returns, lag)) for lag in range(2, 11)]))


def absolute_autocorrelation(sessions: Recorded) -> float:
    """Return the mean autocorrelation of absolute minute returns at lags 1 to 10."""
    returns = np.abs(minute_returns(sessions))
    return float(np.mean([autocorrelation(returns, lag) for lag in range(1, 11)]))


def absolute_decay(sessions: Recorded) -> float:
    """Return the exponent β with which the autocorrelation of absolute minute returns decays over lags 1 to 10.

    NaN where they hardly are correlated.
    """
    returns, lags = np.abs(minute_returns(sessions)), range(1, 11)
    found = np.array([autocorrelation(returns, lag) for lag in lags])
    return -power(np.array(lags), found) if found.mean() > FAINT else float("nan")


def tail_index(sessions: Recorded, share: float = 0.05) -> float:
    """Return Hill's estimate of the tail index of absolute minute returns.

    Hill, "A simple general approach to inference about the tail of a distribution", Annals of Statistics 3 (1975).
    """
    returns = minute_returns(sessions)
    size = np.sort(np.abs(returns[~np.isnan(returns)]))[::-1]
    count = max(2, int(share * len(size)))
    if size[count] <= 0:
        return float("nan")
    return float(1 / np.mean(np.log(size[:count] / size[count])))


def volume_correlation(sessions: Recorded) -> float:
    """Return the correlation of a minute's volume with its absolute return."""
    volume, size = minute_volume(sessions), np.abs(minute_returns(sessions))
    kept = ~np.isnan(size)
    return float(np.corrcoef(volume[kept], size[kept])[0, 1])


def sign_autocorrelations(sessions: Recorded) -> np.ndarray:
    """Return the autocorrelations of the signs of net volume, over seconds with trades, at lags 1 to 50. Shape: (50,).

    Lillo and Farmer, "The long memory of the efficient market", Studies in Nonlinear Dynamics & Econometrics 8 (2004).
    """
    net = np.nan_to_num(sessions.bought) - np.nan_to_num(sessions.sold)
    products, squares = np.zeros(SIGN_LAGS), 0.0
    counts = np.zeros(SIGN_LAGS)
    mean = np.mean(np.sign(net[net != 0]))
    for row in net:
        signs = np.sign(row[row != 0]) - mean
        squares += float((signs**2).mean()) * len(signs)
        for lag in range(1, min(SIGN_LAGS, len(signs) - 1) + 1):
            products[lag - 1] += float((signs[lag:] * signs[:-lag]).sum())
            counts[lag - 1] += len(signs) - lag
    variance = squares / max(1, sum((row != 0).sum() for row in net))
    return products / np.maximum(counts, 1) / variance


def first_sign_autocorrelation(sessions: Recorded) -> float:
    """Return the autocorrelation of order signs at the first lag."""
    return float(sign_autocorrelations(sessions)[0])


def sign_decay(sessions: Recorded) -> float:
    """Return the exponent with which order-sign autocorrelations decay over lags 1 to 50.

    NaN where they hardly are correlated.
    """
    found = sign_autocorrelations(sessions)
    return -power(np.arange(1, SIGN_LAGS + 1), found) if found[:10].mean() > FAINT else float("nan")


class Response(NamedTuple):
    """Net volumes of seconds with trades, and the signed moves of the mid after them. Shape of each: (E,).

    Attributes:
        size: absolute net volume, by its mean.
        moves: of the mid over 1, 10 and 60 seconds from before the second, in the direction of the volume.
    """

    size: np.ndarray
    moves: dict[int, np.ndarray]


HORIZONS = (1, 10, 60)
"""Seconds after which the mid is looked at."""


def responses(sessions: Recorded) -> Response:
    """Return how the mid moved after each second with trades."""
    net = np.nan_to_num(sessions.bought) - np.nan_to_num(sessions.sold)
    longest = HORIZONS[-1]
    inner = net[:, 1:-longest]
    before = sessions.mid[:, :-1]
    moves = {
        horizon: (sessions.mid[:, horizon : horizon + inner.shape[1]] - before[:, : inner.shape[1]]) * np.sign(inner)
        for horizon in HORIZONS
    }
    kept = (inner != 0) & ~np.isnan(sum(moves.values()))
    size = np.abs(inner[kept])
    return Response(size / size.mean(), {horizon: move[kept] for horizon, move in moves.items()})


def impact_exponent(sessions: Recorded) -> float:
    """Return the exponent of the move within a second as a power of the volume, over ten quantiles of the volume.

    Concave below 1: Lillo, Farmer and Mantegna, "Master curve for price-impact function", Nature 421 (2003).
    """
    response = responses(sessions)
    edges = np.unique(np.quantile(response.size, np.linspace(0, 1, 11)))
    place = np.clip(np.searchsorted(edges, response.size, side="right") - 1, 0, len(edges) - 2)
    size = np.array([response.size[place == number].mean() for number in range(len(edges) - 1)])
    move = np.array([response.moves[1][place == number].mean() for number in range(len(edges) - 1)])
    return power(size, move)


def impact_left(sessions: Recorded) -> float:
    """Return the mean move after a minute over that after a second.

    Bouchaud, Gefen, Potters and Wyart, "Fluctuations and response in financial markets", Quantitative Finance 4 (2004):
    the response rises for tens of trades and falls back slowly.
    """
    moves = responses(sessions).moves
    first = float(moves[1].mean())
    return float(moves[60].mean()) / first if first > 0 else float("nan")


def _ticks(quantile: float) -> Callable[[Recorded], float]:
    return lambda sessions: float(np.nanquantile(sessions.spread, quantile))


def spread_in_basis_points(sessions: Recorded) -> float:
    """Return the mean spread over the mid, in basis points."""
    return float(np.nanmean(1e4 * sessions.spread / sessions.mid))


def minute_volatility(sessions: Recorded) -> float:
    """Return the standard deviation of minute returns, in basis points."""
    return float(1e4 * np.nanstd(minute_returns(sessions)))


def touch_share(sessions: Recorded) -> float:
    """Return the quantity of the best levels as a share of that on ten levels of both sides."""
    return float(np.nanmedian(2 * sessions.touch / sessions.depth))


def one_sided(sessions: Recorded) -> float:
    """Return the share of seconds after which a side of the book is empty; NaN for books recorded with gaps."""
    return float(np.isnan(sessions.mid).mean()) if not np.isnan(sessions.messages).any() else float("nan")


def messages_a_second(sessions: Recorded) -> float:
    """Return the mean number of messages in a second."""
    return float(np.mean(sessions.messages))


_CONT = "Cont, Quantitative Finance 1 (2001)"
_LILLO = "Lillo and Farmer (2004); Bouchaud et al. (2004)"

STATISTICS = (
    Statistic("messages a second", messages_a_second),
    Statistic("spread, median, ticks", _ticks(0.5), timeless=True),
    Statistic("spread, 90% quantile, ticks", _ticks(0.9), timeless=True),
    Statistic("spread, mean, basis points", spread_in_basis_points, timeless=True),
    Statistic("touch as a share of ten levels", touch_share),
    Statistic("seconds with an empty side", one_sided, 0.0, 0.001, "hardly ever in liquid markets"),
    Statistic("minute returns, standard deviation, basis points", minute_volatility),
    Statistic("minute returns, ACF at lag 1", return_autocorrelation, -0.1, 0.0, _CONT),
    Statistic("minute returns, mean |ACF| at lags 2-10", later_return_autocorrelation, 0.0, 0.02, _CONT),
    Statistic("|minute returns|, mean ACF at lags 1-10", absolute_autocorrelation, 0.05, 0.4, _CONT),
    Statistic("|minute returns|, decay exponent", absolute_decay, 0.2, 0.4, _CONT),
    Statistic("|minute returns|, tail index", tail_index, 2.0, 5.0, _CONT),
    Statistic("volume and |return| of a minute, correlation", volume_correlation, 0.2, 0.8, _CONT),
    Statistic("order signs, ACF at lag 1", first_sign_autocorrelation, 0.1, 0.6, _LILLO),
    Statistic("order signs, decay exponent", sign_decay, 0.36, 0.77, _LILLO),
    Statistic("impact of volume, exponent", impact_exponent, 0.1, 0.9, "Lillo, Farmer and Mantegna (2003)"),
    Statistic(
        "impact after a minute by that after a second",
        impact_left,
        0.5,
        7.0,
        "Bouchaud et al. (2004): rises, then falls",
    ),
)
"""All rows of the table in their order."""
