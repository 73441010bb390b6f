"""Order books from Parquet or CSV files with a row for each snapshot, of one coin or several.

Columns: ``ts_ms``, ``{bid,ask}_{px,qty}_0 …`` from the best level on, and, where there are such, ``symbol``,
``buy_qty``, ``sell_qty`` and ``age_ms``, how old the book was at the row's time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenv.market.csv_files import read_csv
from vecenv.market.validation import MarketDataError
from vecenv.tasks.crypto_lob.sources.snapshots import Snapshots

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    f"{side}_{field}": f"{side}_{short}_{{}}"
    for side in ("bid", "ask")
    for field, short in (("price", "px"), ("size", "qty"))
}
"""Names of the columns of a level, by field of `Snapshots`."""

RECENT_MS, FUTURE_MS = 631_152_000_000, 4_102_444_800_000
"""Milliseconds since 1970 of the years 1990 and 2100."""

UNITS = (("seconds", "multiply", 1e-3), ("microseconds", "divide", 1e3), ("nanoseconds", "divide", 1e6))
"""Units that times may have by mistake, what leads back, and how many of them are a millisecond."""


def snapshots_of_table(table: pd.DataFrame, source: str, symbol: str = "", levels: int | None = None) -> Snapshots:
    """Return the snapshots of one coin; ``symbol`` may be left out where there is one.

    Raises MarketDataError if a column is missing, there are several coins and none is chosen, or the books are invalid.
    """
    rows = np.arange(len(table))
    if "symbol" in table:
        known = [str(name) for name in table["symbol"].unique()]
        if symbol and symbol not in known:
            raise MarketDataError(f"{source}: no coin {symbol!r}; there are {', '.join(known)}")
        if not symbol and len(known) != 1:
            raise MarketDataError(f"{source}: several coins, choose one as symbol: {', '.join(known)}")
        symbol = symbol or known[0]
        chosen = (table["symbol"].astype(str) == symbol).to_numpy()
        table, rows = table[chosen], rows[chosen]
    elif symbol:
        raise MarketDataError(f"{source}: no column symbol, so {symbol!r} cannot be chosen")
    depth = 0
    while all(name.format(depth) in table for name in COLUMNS.values()):
        depth += 1
    depth = depth if levels is None else min(depth, levels)
    missing = [name for name in ("ts_ms", *(column.format(0) for column in COLUMNS.values())) if name not in table]
    if missing:
        raise MarketDataError(f"{source}: missing columns {', '.join(missing)}")

    def numbers(name: str) -> np.ndarray:
        return _numbers(table, name, source, rows)

    sides: dict[str, Any] = {
        field: np.stack([numbers(column.format(level)) for level in range(depth)], 1)
        for field, column in COLUMNS.items()
    }
    unknown = np.full(len(table), np.nan)
    return Snapshots(
        source=source,
        symbol=symbol,
        time=_milliseconds(numbers("ts_ms"), source, rows),
        **sides,
        bought=numbers("buy_qty") if "buy_qty" in table else unknown,
        sold=numbers("sell_qty") if "sell_qty" in table else unknown,
        age=numbers("age_ms") if "age_ms" in table else np.zeros(len(table)),
        rows=rows,
        columns=COLUMNS | {"age": "age_ms"},
    )


def _numbers(table: pd.DataFrame, name: str, source: str, rows: np.ndarray) -> np.ndarray:
    """Return a column as float64, NaN where it is missing; raises MarketDataError naming the first text."""
    import pandas as pd

    values = pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = np.isnan(values) & table[name].notna().to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise MarketDataError(f"{source}: row {rows[row]}, {name}: {str(table[name].iloc[row])!r} is no number")
    return values


def _milliseconds(times: np.ndarray, source: str, rows: np.ndarray) -> np.ndarray:
    """Return the times of the rows; raises MarketDataError naming the first that is none, or is in another unit."""
    wrong = ~(np.isfinite(times) & (times == np.floor(times)))
    if wrong.any():
        row = int(wrong.argmax())
        raise MarketDataError(f"{source}: row {rows[row]}, ts_ms: {times[row]} is no whole number")
    for unit, remedy, per_millisecond in UNITS:
        other = (times / per_millisecond >= RECENT_MS) & (times / per_millisecond < FUTURE_MS)
        if other.any():
            row = int(other.argmax())
            raise MarketDataError(
                f"{source}: row {rows[row]}, ts_ms: {times[row]:.0f} is a time from 1990 to 2100 in {unit}; "
                f"milliseconds are needed, so {remedy} it by {max(per_millisecond, 1 / per_millisecond):,.0f}"
            )
    return times.astype(np.int64)


def read_table(path: Path) -> pd.DataFrame:
    """Read a Parquet or CSV file; raises MarketDataError if there is none, or it cannot be read."""
    import pandas as pd

    if not path.is_file():
        raise MarketDataError(f"{path}: no such file")
    try:
        return pd.read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)
    except MarketDataError:
        raise
    except Exception as error:
        raise MarketDataError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
