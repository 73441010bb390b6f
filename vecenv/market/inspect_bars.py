"""Summary statistics of a file of daily bars."""

from __future__ import annotations

import calendar
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from vecenv.market.bar_form import BarForm
from vecenv.market.bars import CLOSE, HIGH, LOW, periods_per_year
from vecenv.market.long_table import MarketSource
from vecenv.market.path_folders import path_files, read_paths
from vecenv.market.sources import read_arrays, read_bars

_LARGEST_MOVES = 5
_LONGEST_RUNS = 5
# Fewer unchanged bars are common where little is traded.
_FROZEN = 10


def inspect(source: MarketSource, form: BarForm | None = None) -> dict[str, Any]:
    """Summarise the bars of a source.

    Returns:
        JSON-able dict: ``source``; ``span`` (first and last date); ``paths``, ``days``, ``symbols`` and ``rows``,
        the numbers of paths, dates, symbols and bars; ``periods_per_year``, dates of a year;
        ``columns`` and ``context``, names; ``price_range``, the
        lowest low and the highest high; ``adjusted``, whether prices were scaled to a column of adjusted closes; of the
        first path ``largest_moves``, the five largest relative moves between
        successive closes of a symbol, largest first; ``listings``, per symbol the first and last date,
        the number of bars and of dates without one between first and last; ``calendar``, see `_calendar`; ``frozen``,
        the five longest runs of ten or more bars of a symbol that are equal to the one before.

    Raises:
        MarketDataError: for a fault in the source.
    """
    # PyTorch, which takes seconds to import, is needed for several paths alone.
    several = bool(path_files(source))
    bars = read_paths(source, partial(read_bars, form=form)) if several else read_arrays(source, form=form)
    ohlcv = np.asarray(bars.ohlcv)
    listed = ~np.isnan(ohlcv[..., CLOSE])
    return {
        "source": bars.source,
        "span": [str(bars.dates[0]), str(bars.dates[-1])],
        "paths": len(ohlcv),
        "days": len(bars.dates),
        "periods_per_year": periods_per_year(bars.dates),
        "symbols": len(bars.symbols),
        "rows": int(listed.sum()),
        "columns": list(bars.columns),
        "context": list(bars.context),
        "price_range": [float(np.nanmin(ohlcv[..., LOW])), float(np.nanmax(ohlcv[..., HIGH]))],
        "adjusted": bars.adjusted,
        "largest_moves": _largest_moves(bars.symbols, bars.dates, ohlcv[0, ..., CLOSE]),
        "listings": {symbol: _listing(bars.dates, listed[0, :, k]) for k, symbol in enumerate(bars.symbols)},
        "calendar": _calendar(bars.dates),
        "frozen": _frozen(bars.symbols, bars.dates, ohlcv[0], listed[0]),
    }


def _calendar(dates: np.ndarray) -> dict[str, Any] | None:
    """Return the weekdays on which the data has bars, and the days of them on which no symbol has one.

    A weekday counts that has at least half as many bars as the most frequent one. None for bars that are further apart
    than weeks. ``days`` is the number of days that should have a bar, ``missing`` that of those without one, ``runs``
    are the five longest of them: first and last date and number of days.
    """
    if len(dates) < 2 or np.median(np.diff(dates).astype(int)) > 7:
        return None
    # 1970-01-05 was a Monday.
    counts = np.bincount((dates.astype(int) - 4) % 7, minlength=7)
    usual = counts >= counts.max() / 2
    span = np.arange(dates[0], dates[-1] + 1)
    span = span[usual[(span.astype(int) - 4) % 7]]
    missing = ~np.isin(span, dates)
    runs: list[dict[str, Any]] = [
        {"first": str(span[low]), "last": str(span[high - 1]), "days": int(high - low)} for low, high in _runs(missing)
    ]
    names = [calendar.day_name[int(k)] for k in np.flatnonzero(usual)]
    longest = sorted(runs, key=lambda run: -run["days"])[:_LONGEST_RUNS]
    return {"weekdays": names, "days": len(span), "missing": int(missing.sum()), "runs": longest}


def _frozen(symbols: Sequence[str], dates: np.ndarray, ohlcv: np.ndarray, listed: np.ndarray) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    for k, symbol in enumerate(symbols):
        days = np.flatnonzero(listed[:, k])
        prices = ohlcv[days, k, : CLOSE + 1]
        for low, high in _runs((prices[1:] == prices[:-1]).all(axis=1)):
            first, last = (str(dates[days[row]]) for row in (low, high))
            runs.append({"symbol": symbol, "first": first, "last": last, "bars": int(high - low + 1)})
    return sorted((run for run in runs if run["bars"] >= _FROZEN), key=lambda run: -run["bars"])[:_LONGEST_RUNS]


def _runs(marked: np.ndarray) -> list[tuple[int, int]]:
    """Return the first positions of runs of marked ones, and the positions after them."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]])))
    return list(zip(ends[::2].tolist(), ends[1::2].tolist(), strict=True))


def _listing(dates: np.ndarray, listed: np.ndarray) -> dict[str, Any]:
    days = np.flatnonzero(listed)
    first, last = days[0], days[-1]
    return {
        "first": str(dates[first]),
        "last": str(dates[last]),
        "bars": len(days),
        "missing": int(last - first + 1 - len(days)),
    }


def _largest_moves(symbols: Sequence[str], dates: np.ndarray, close: np.ndarray) -> list[dict[str, Any]]:
    moves: list[tuple[float, str, str]] = []
    for k, symbol in enumerate(symbols):
        days = np.flatnonzero(~np.isnan(close[:, k]))
        move = close[days[1:], k] / close[days[:-1], k] - 1
        for i in np.argsort(-np.abs(move))[:_LARGEST_MOVES]:
            moves.append((float(move[i]), symbol, str(dates[days[i + 1]])))
    largest = sorted(moves, key=lambda entry: -abs(entry[0]))[:_LARGEST_MOVES]
    return [{"symbol": symbol, "date": day, "move": move} for move, symbol, day in largest]
