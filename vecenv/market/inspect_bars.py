"""Summary statistics of a file of daily bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vecenv.market.bars import CLOSE, HIGH, LOW, Bars, periods_per_year
from vecenv.market.long_table import MarketSource
from vecenv.market.path_folders import path_files, read_paths
from vecenv.market.sources import read_bars

_LARGEST_MOVES = 5


def inspect(source: MarketSource) -> dict[str, Any]:
    """Summarise the bars of a source.

    Returns:
        JSON-able dict: ``source``; ``span`` (first and last date); ``paths``, ``days``, ``symbols`` and ``rows``,
        the numbers of paths, dates, symbols and bars; ``periods_per_year``, dates of a year;
        ``columns`` and ``context``, names; ``price_range``, the
        lowest low and the highest high; of the first path ``largest_moves``, the five largest relative moves between
        successive closes of a symbol, largest first; ``listings``, per symbol the first and last date,
        the number of bars and of dates without one between first and last.

    Raises:
        MarketDataError: for a fault in the source.
    """
    bars = read_paths(Path(str(source)), None) if path_files(source) else read_bars(source)
    ohlcv, listed = bars.ohlcv.numpy(), bars.listed[0].numpy()
    return {
        "source": bars.source,
        "span": [str(bars.dates[0]), str(bars.dates[-1])],
        "paths": len(ohlcv),
        "days": len(bars.dates),
        "periods_per_year": periods_per_year(bars.dates),
        "symbols": len(bars.symbols),
        "rows": int(bars.listed.sum()),
        "columns": list(bars.columns),
        "context": list(bars.context),
        "price_range": [float(np.nanmin(ohlcv[..., LOW])), float(np.nanmax(ohlcv[..., HIGH]))],
        "largest_moves": _largest_moves(bars),
        "listings": {symbol: _listing(bars.dates, listed[:, k]) for k, symbol in enumerate(bars.symbols)},
    }


def _listing(dates: np.ndarray, listed: np.ndarray) -> dict[str, Any]:
    days = np.flatnonzero(listed)
    first, last = days[0], days[-1]
    return {
        "first": str(dates[first]),
        "last": str(dates[last]),
        "bars": len(days),
        "missing": int(last - first + 1 - len(days)),
    }


def _largest_moves(bars: Bars) -> list[dict[str, Any]]:
    close = bars.ohlcv[0, :, :, CLOSE].numpy()
    moves: list[tuple[float, str, str]] = []
    for k, symbol in enumerate(bars.symbols):
        days = np.flatnonzero(~np.isnan(close[:, k]))
        move = close[days[1:], k] / close[days[:-1], k] - 1
        for i in np.argsort(-np.abs(move))[:_LARGEST_MOVES]:
            moves.append((float(move[i]), symbol, str(bars.dates[days[i + 1]])))
    largest = sorted(moves, key=lambda entry: -abs(entry[0]))[:_LARGEST_MOVES]
    return [{"symbol": symbol, "date": day, "move": move} for move, symbol, day in largest]
