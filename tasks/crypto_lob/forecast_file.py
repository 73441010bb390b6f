"""Files of forecasts: Parquet, one row for each row of a tape, with the last time that its models have seen."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.crypto_lob.clock import ClockedBooks
from vecenv.tasks.crypto_lob.factors import LARGEST_VALUE

HORIZONS = (10, 20, 40, 60, 100, 160, 250, 400)
"""Seconds of the horizons."""

FORECAST_NAMES = tuple(f"forecast_{seconds}" for seconds in HORIZONS)
"""Names of forecasts, which are factors."""

TIME, MID, SEEN = "ts_ms", "mid", "models_seen_until_ms"
"""Columns beside the forecasts: of the row, of its best prices, and of the latest price that its models were fitted
to, which is earlier; 0 without a forecast."""

RECORD = b"vecenv_forecasts"
"""Key of the record in the file's metadata."""


def mids(books: ClockedBooks) -> np.ndarray:
    """Return the mid of the best prices. Shape: (T,), float64."""
    return (books.bid_price[:, 0] + books.ask_price[:, 0]) / 2


def write_forecasts(
    path: Path, books: ClockedBooks, forecasts: np.ndarray, seen_until: np.ndarray, record: Mapping[str, Any]
) -> None:
    """Write forecasts in basis points, (T, H), NaN for none, and ``seen_until`` in milliseconds, (T,), 0 for none.

    ``record`` says where they come from, JSON-able. Raises OSError if the file cannot be written.
    """
    # Slow to import, and tapes without forecasts need neither.
    import pandas as pd

    from vecenv.market.parquet_files import write_parquet

    columns = {TIME: books.time, MID: mids(books), SEEN: seen_until}
    columns |= {name: forecasts[:, place] for place, name in enumerate(FORECAST_NAMES)}
    write_parquet(pd.DataFrame(columns), path, {RECORD: json.dumps(dict(record))})


def forecasts_of_rows(path: Path, books: ClockedBooks) -> tuple[np.ndarray, tuple[str, ...]]:
    """Read the forecasts of the rows of a tape, (T, H), float32, 0 where there is none, and their names.

    Raises MarketDataError if there is no such file, it is of another kind, of other books or of another clock, or a
    forecast's model has seen the row.
    """
    from vecenv.market.parquet_files import read_parquet

    try:
        table = read_parquet(path)
    except FileNotFoundError as error:
        raise MarketDataError(f"{path}: no such file of forecasts; vecenv factors train writes one") from error
    except (OSError, ValueError) as error:
        raise MarketDataError(f"{path}: no file of forecasts: {error}") from error
    names = tuple(name for name in table.columns if name.startswith("forecast_"))
    missing = [name for name in (TIME, MID, SEEN) if name not in table]
    if missing or not names:
        raise MarketDataError(f"{path}: missing columns {', '.join(missing) or 'forecast_…'}; not of vecenv factors")
    if not len(table):
        raise MarketDataError(f"{path}: no rows")
    for name in (TIME, MID, SEEN, *names):
        if table[name].dtype.kind not in "iuf":
            raise MarketDataError(f"{path}: {name}: needs numbers, not {table[name].dtype}")
        unknown = ~(table[name] >= 0) & (name not in names)
        if unknown.any():
            raise MarketDataError(f"{path}: row {unknown.argmax()}, {name}: {table[name][unknown.argmax()]}")
    place = np.searchsorted(table[TIME], books.time).clip(max=len(table) - 1)
    rows = table.iloc[place]
    absent = rows[TIME].to_numpy() != books.time
    if absent.any():
        moment = np.datetime64(int(books.time[absent.argmax()]), "ms")
        raise MarketDataError(f"{path}: no row at {moment}, a time of the tape; made with another step_gap or book")
    away = ~np.isclose(rows[MID], mids(books), rtol=1e-9)
    if away.any():
        row = int(away.argmax())
        raise MarketDataError(
            f"{path}: row {place[row]}, {MID}: {rows[MID].iloc[row]:.10g}, but the book has {mids(books)[row]:.10g} "
            "there: made of another book"
        )
    leaks = rows[SEEN].to_numpy() >= books.time
    if leaks.any():
        raise MarketDataError(f"{path}: row {place[leaks.argmax()]}, {SEEN}: not before the row, so its model knows it")
    values, none = rows[list(names)].to_numpy(np.float32, copy=True), rows[SEEN].to_numpy() == 0
    values[none] = 0.0
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise MarketDataError(f"{path}: row {place[row]}, {names[column]}: not a number")
    if none.any():
        warnings.warn(
            f"{path}: no forecast for {none.sum():,} of {len(none):,} rows, the models' first training; they show 0",
            MarketDataWarning,
            stacklevel=2,
        )
    return values.clip(-LARGEST_VALUE, LARGEST_VALUE), names
