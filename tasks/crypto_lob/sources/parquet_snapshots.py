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
from vecenv.tasks.crypto_lob.sources.snapshots import FaultyRows, Snapshots

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

UNITS = {1: "milliseconds", 1_000: "microseconds", 1_000_000: "nanoseconds"}
"""Units of times, by how many of them are a millisecond."""


def snapshots_of_table(
    table: pd.DataFrame, source: str, symbol: str = "", levels: int | None = None, faulty_rows: FaultyRows = "refuse"
) -> Snapshots:
    """Return the snapshots of one coin; ``symbol`` may be left out where there is one.

    Times are milliseconds; those that would lie beyond 2100, and are of 1990 to 2100 as microseconds or nanoseconds,
    are read as such. Raises MarketDataError if a column is missing, there are several coins and none is chosen, or the
    books are invalid.
    """
    rows = np.arange(len(table))
    if "symbol" in table:
        names = _symbols(table["symbol"], source)
        known = list(names.unique())
        if symbol and symbol not in known:
            raise MarketDataError(f"{source}: no coin {symbol!r}; there are {', '.join(known)}")
        if not symbol and len(known) != 1:
            raise MarketDataError(f"{source}: several coins, choose one as symbol: {', '.join(known)}")
        symbol = symbol or known[0]
        chosen = (names == symbol).to_numpy()
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
        return column_numbers(table[name], name, source, rows)

    sides: dict[str, Any] = {
        field: np.stack([numbers(column.format(level)) for level in range(depth)], 1)
        for field, column in COLUMNS.items()
    }
    time, per_ms = _times(table["ts_ms"], source, rows)
    unknown = np.full(len(table), np.nan)
    return Snapshots(
        source=source,
        symbol=symbol,
        time=time,
        **sides,
        bought=numbers("buy_qty") if "buy_qty" in table else unknown,
        sold=numbers("sell_qty") if "sell_qty" in table else unknown,
        age=numbers("age_ms") if "age_ms" in table else np.zeros(len(table)),
        rows=rows,
        columns=COLUMNS | {"age": "age_ms"},
        per_ms=per_ms,
        faulty_rows=faulty_rows,
    )


def column_numbers(column: pd.Series, name: str, source: str, rows: np.ndarray) -> np.ndarray:
    """Return a column as float64, NaN where it is missing; raises MarketDataError naming the row of the first text."""
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = np.isnan(values) & column.notna().to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise MarketDataError(f"{source}: row {rows[row]}, {name}: {str(column.iloc[row])!r} is no number")
    return values


def _symbols(column: pd.Series, source: str) -> pd.Series:
    """Return the names of the coins, of numbers without a fraction; raises MarketDataError if one is missing."""
    if column.isna().any():
        raise MarketDataError(f"{source}: row {int(column.isna().to_numpy().argmax())}, symbol: missing")
    if column.dtype.kind == "f" and (column % 1 == 0).all():
        column = column.astype(np.int64)
    return column.astype(str)


def _times(column: pd.Series, source: str, rows: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the times of the rows, int64, and how many of their unit are a millisecond.

    Raises MarketDataError naming the first that is no time, or is in another unit than the others.
    """
    import pandas as pd

    read = column
    if column.dtype.kind not in "iuf":
        read = pd.to_datetime(column, utc=True, errors="coerce", format="ISO8601")
    if read.dtype.kind == "M" and read.notna().all():
        return read.dt.as_unit("ns").astype("int64").to_numpy(), 1_000_000
    numbers = column_numbers(column, "ts_ms", source, rows)

    def refuse(wrong: np.ndarray, fault: str) -> None:
        if wrong.any():
            row = int(wrong.argmax())
            raise MarketDataError(f"{source}: row {rows[row]}, ts_ms: {column.iloc[row]!s} {fault}")

    refuse(~(np.isfinite(numbers) & (numbers == np.floor(numbers))), "is no whole number")
    unit = np.where((numbers >= 0) & (numbers < FUTURE_MS), 1, 0)
    for per_ms in list(UNITS)[1:]:
        unit[(numbers >= RECENT_MS * per_ms) & (numbers < FUTURE_MS * per_ms)] = per_ms
    seconds = (numbers >= RECENT_MS / 1000) & (numbers < FUTURE_MS / 1000)
    # A recording of more than a week may count from its own beginning.
    seconds &= seconds.all() | (numbers >= RECENT_MS).any()
    refuse(seconds, "is a time from 1990 to 2100 in seconds, in milliseconds one of January 1970: multiply by 1,000")
    refuse(unit == 0, "is no time from 1970 to 2100 in milliseconds, nor from 1990 in microseconds or nanoseconds")
    refuse(unit != unit[0], f"is in another unit than that of row {rows[0]}, {UNITS[int(unit[0])]}")
    exact = column.dtype.kind in "iu"
    return (column.to_numpy() if exact else numbers).astype(np.int64), int(unit[0])


def read_table(path: Path) -> pd.DataFrame:
    """Read a Parquet or CSV file; raises MarketDataError if there is none, or it cannot be read."""
    import pandas as pd

    if not path.is_file():
        raise MarketDataError(f"{path}: no such file")
    try:
        return pd.read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path, dtype={"symbol": str})
    except MarketDataError:
        raise
    except Exception as error:
        raise MarketDataError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
