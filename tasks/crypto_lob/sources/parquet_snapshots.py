"""Order books from Parquet or CSV files with a row for each snapshot, of one coin or several.

Columns: ``ts_ms``, ``{bid,ask}_{px,qty}_0 …`` from the best level on, and, where there are such, ``symbol``,
``buy_qty``, ``sell_qty`` and ``age_ms``, how old the book was at the row's time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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


def snapshots_of_table(table: pd.DataFrame, source: str, symbol: str = "", levels: int | None = None) -> Snapshots:
    """Return the snapshots of one coin; ``symbol`` may be left out where there is one.

    Raises MarketDataError if a column is missing, there are several coins and none is chosen, or the books are invalid.
    """
    numbers = np.arange(len(table))
    if "symbol" in table:
        known = [str(name) for name in table["symbol"].unique()]
        if symbol and symbol not in known:
            raise MarketDataError(f"{source}: no coin {symbol!r}; there are {', '.join(known)}")
        if not symbol and len(known) != 1:
            raise MarketDataError(f"{source}: several coins, choose one as symbol: {', '.join(known)}")
        symbol = symbol or known[0]
        chosen = (table["symbol"] == symbol).to_numpy()
        table, numbers = table[chosen], numbers[chosen]
    elif symbol:
        raise MarketDataError(f"{source}: no column symbol, so {symbol!r} cannot be chosen")
    depth = 0
    while all(name.format(depth) in table for name in COLUMNS.values()):
        depth += 1
    depth = depth if levels is None else min(depth, levels)
    missing = [name for name in ("ts_ms", *(column.format(0) for column in COLUMNS.values())) if name not in table]
    if missing:
        raise MarketDataError(f"{source}: missing columns {', '.join(missing)}")
    sides = {
        field: table[[column.format(level) for level in range(depth)]].to_numpy(np.float64)
        for field, column in COLUMNS.items()
    }
    unknown = np.full(len(table), np.nan)
    return Snapshots(
        source=source,
        symbol=symbol,
        time=_milliseconds(table, source, numbers),
        **sides,
        bought=table["buy_qty"].to_numpy(np.float64) if "buy_qty" in table else unknown,
        sold=table["sell_qty"].to_numpy(np.float64) if "sell_qty" in table else unknown,
        age=table["age_ms"].to_numpy(np.float64) if "age_ms" in table else np.zeros(len(table)),
        rows=numbers,
        columns=COLUMNS | {"age": "age_ms"},
    )


def _milliseconds(table: pd.DataFrame, source: str, numbers: np.ndarray) -> np.ndarray:
    """Return the times of the rows; raises MarketDataError naming the first that is no whole number."""
    times = table["ts_ms"].to_numpy(np.float64)
    wrong = ~(np.isfinite(times) & (times == np.floor(times)))
    if wrong.any():
        row = int(wrong.argmax())
        raise MarketDataError(f"{source}: row {numbers[row]}, ts_ms: {times[row]} is no whole number")
    return times.astype(np.int64)


def read_table(path: Path) -> pd.DataFrame:
    """Read a Parquet or CSV file; raises MarketDataError if there is none, or it cannot be read."""
    import pandas as pd

    if not path.is_file():
        raise MarketDataError(f"{path}: no such file")
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else read_csv(path)
    except MarketDataError:
        raise
    except Exception as error:
        raise MarketDataError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
