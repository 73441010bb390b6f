"""Order books from files: Parquet or CSV with a row for each snapshot, CSV of the FinRL contests, pairs of LOBSTER.

Snapshots are of one coin or several. Columns: ``ts_ms``, ``{bid,ask}_{px,qty}_0 …`` from the best level on, and, where
there are such, ``symbol``, ``buy_qty``, ``sell_qty`` and ``age_ms``, how old the book was at the row's time.

The files of the contests of 2024 and 2025 have ``system_time``, ``midpoint``, ``spread``, ``buys``, ``sells``, and for
levels 0 to 14 of bids and asks ``_distance_``, the distance of the price from the mid as a fraction of it (negative for
bids), and ``_notional_``, the value shown there, in the currency. ``buys`` and ``sells`` are values too. The prices lie
on ticks, which the file's rounding of distances hides: they are rounded to them.

LOBSTER's pairs are messages, and a line of the order book after each. A line of messages is time in seconds after
midnight, type, order, size, price and direction; a line of the book is ask price, ask size, bid price and bid size of
each level after that message. Prices are in 1/10,000 of the currency. Types 4 and 5 are executions, of a shown and of a
hidden order; the direction is that of the order that waited, 1 for a bid. A level that does not exist has the price
±9999999999. See lobsterdata.com/info/DataStructure.php.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenv.market.csv_files import read_csv
from vecenv.market.validation import MarketDataError
from vecenv.tasks.crypto_lob.snapshots import FaultyRows, Snapshots

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


def read_snapshots(
    book: str,
    symbol: str = "",
    tick: float | None = None,
    levels: int | None = None,
    faulty_rows: FaultyRows = "refuse",
) -> Snapshots:
    """Read the snapshots of one coin from a file; raises MarketDataError if it is missing or invalid.

    ``book`` is a Parquet or CSV file of snapshots, a CSV file of the contests, or LOBSTER's file of order books. In a
    file of several coins ``symbol`` says which; ``tick`` is for files that hide it, ``faulty_rows`` as of `Snapshots`.
    """
    path = Path(book)
    if is_lobster_file(path):
        if symbol:
            raise MarketDataError(f"{book}: one symbol only, so {symbol!r} cannot be chosen")
        return lobster_snapshots(path, levels, faulty_rows)
    table = read_table(path)
    if is_contest_table(table):
        if symbol:
            raise MarketDataError(f"{book}: one coin only, so {symbol!r} cannot be chosen")
        return contest_snapshots(table, book, tick, levels, faulty_rows)
    return snapshots_of_table(table, book, symbol, levels, faulty_rows)


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


TICK = 0.01
"""Tick of the coins of the contests, which were recorded at Coinbase."""

_BASE = ("system_time", "midpoint", "buys", "sells")


def is_contest_table(table: pd.DataFrame) -> bool:
    """Whether a table has the columns of the contests."""
    return "midpoint" in table and "bids_distance_0" in table


def contest_snapshots(
    table: pd.DataFrame,
    source: str,
    tick: float | None = None,
    levels: int | None = None,
    faulty_rows: FaultyRows = "refuse",
) -> Snapshots:
    """Return the snapshots of a contest's table; ``tick`` is that of the prices, by default `TICK`.

    Raises MarketDataError if a column is missing, a time or number cannot be read, or the books are invalid.
    """
    import pandas as pd

    tick = TICK if tick is None else tick
    depth = 0
    while all(f"{side}_{what}_{depth}" in table for side in ("bids", "asks") for what in ("distance", "notional")):
        depth += 1
    depth = depth if levels is None else min(depth, levels)
    needed = (*_BASE, *(f"{side}_{what}_0" for side in ("bids", "asks") for what in ("distance", "notional")))
    missing = [name for name in needed if name not in table]
    if missing:
        raise MarketDataError(f"{source}: missing columns {', '.join(missing)}")
    read = pd.to_datetime(table["system_time"], utc=True, errors="coerce", format="ISO8601")
    if read.isna().any():
        row = int(read.isna().to_numpy().argmax())
        raise MarketDataError(f"{source}: row {row}, system_time: {table['system_time'].iloc[row]!r} is no time")
    rows = np.arange(len(table))

    def numbers(name: str) -> np.ndarray:
        return column_numbers(table[name], name, source, rows)

    mid = numbers("midpoint")
    wrong = ~(np.isfinite(mid) & (mid > 0))
    if wrong.any():
        raise MarketDataError(f"{source}: row {int(wrong.argmax())}, midpoint: not a positive number")
    columns: dict[str, str] = {}
    prices, sizes = [], []
    for side, name in (("bid", "bids"), ("ask", "asks")):
        distance, notional = (
            np.stack([numbers(f"{name}_{what}_{level}") for level in range(depth)], 1)
            for what in ("distance", "notional")
        )
        price = np.round(mid[:, None] * (1 + distance) / tick) * tick
        prices.append(price)
        sizes.append(notional / price)
        columns |= {f"{side}_price": f"{name}_distance_{{}}", f"{side}_size": f"{name}_notional_{{}}"}
    return Snapshots(
        source=source,
        symbol="",
        # Of any unit that pandas chose.
        time=read.dt.as_unit("ms").astype("int64").to_numpy(),
        bid_price=prices[0],
        ask_price=prices[1],
        bid_size=sizes[0],
        ask_size=sizes[1],
        bought=numbers("buys") / mid,
        sold=numbers("sells") / mid,
        age=np.zeros(len(table), np.int64),
        rows=rows,
        columns=columns,
        faulty_rows=faulty_rows,
    )


PRICE_UNIT = 1e-4
"""Currency per unit of a price."""

DAY = 24 * 3600
"""Seconds of a day."""

_COLUMNS = ("time", "type", "order", "size", "price", "direction")
_EXECUTIONS = (4, 5)
_NO_LEVEL = 9_999_999_999


def messages_of(book: Path) -> Path:
    """Return where the messages of a file of order books lie."""
    return book.parent / book.name.replace("orderbook", "message")


def is_lobster_file(path: Path) -> bool:
    """Return whether a file has LOBSTER's name and, as its files do, no header."""
    if "orderbook" not in path.name or path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as lines:
        first = next((line for line in lines if line.strip()), "")
    return bool(first) and not any(letter.isalpha() for letter in first)


def lobster_snapshots(book: Path, levels: int | None = None, faulty_rows: FaultyRows = "refuse") -> Snapshots:
    """Return the snapshots after the last message of each millisecond.

    The message file lies beside the order-book file, with ``message`` in its name for ``orderbook``. Raises
    MarketDataError if a file is missing or cannot be read, the two do not fit, or the books are invalid.
    """
    messages = messages_of(book)
    if messages == book or not messages.is_file():
        raise MarketDataError(f"{book}: the file of messages beside it is missing: {messages.name}")
    lines, events = _numbers(book), _numbers(messages, columns=6)
    if len(lines) != len(events):
        raise MarketDataError(f"{book}: {len(lines)} lines, but {messages.name} has {len(events)}")
    if lines.shape[1] % 4 or events.shape[1] < 6:
        raise MarketDataError(
            f"{book}: {lines.shape[1]} columns, which is no multiple of 4"
            if lines.shape[1] % 4
            else f"{messages}: {events.shape[1]} columns instead of 6"
        )
    for wrong, fault in (
        (np.isnan(events), "missing"),
        (~((events >= 0) & (events < DAY)) & (np.arange(6) == 0), "no seconds after midnight"),
    ):
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise MarketDataError(f"{messages}: row {row}, {_COLUMNS[column]}: {fault}")
    day = re.search(r"\d{4}-\d{2}-\d{2}", book.name)
    midnight = np.datetime64(day.group() if day else "1970-01-01", "ms").astype(np.int64)
    time = midnight + np.floor(events[:, 0] * 1000).astype(np.int64)
    backwards = np.diff(events[:, 0]) < 0
    if backwards.any():
        raise MarketDataError(f"{messages}: row {int(backwards.argmax()) + 1}, time: before that of the row before")
    executed = np.where(np.isin(events[:, 1], _EXECUTIONS), events[:, 3], 0.0)
    last = np.flatnonzero(np.append(np.diff(time) > 0, True))
    # The taker is on the other side of the order that waited.
    sold, bought = (_between(np.where(events[:, 5] == side, executed, 0.0), last) for side in (1, -1))
    shown = lines.reshape(len(lines), -1, 2, 2)[last, : levels or lines.shape[1] // 4]
    prices, sizes = shown[..., 0], shown[..., 1]
    there = np.abs(prices) != _NO_LEVEL
    prices, sizes = np.where(there, prices * PRICE_UNIT, np.nan), np.where(there, sizes, 0.0)
    return Snapshots(
        source=str(book),
        symbol=book.name.split("_")[0],
        time=time[last],
        bid_price=prices[:, :, 1],
        bid_size=sizes[:, :, 1],
        ask_price=prices[:, :, 0],
        ask_size=sizes[:, :, 0],
        bought=bought,
        sold=sold,
        age=np.zeros(len(last), np.int64),
        rows=last,
        columns={},
        lasting=True,
        faulty_rows=faulty_rows,
    )


def _between(volume: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the sums of a column up to each of some rows since the one before."""
    return np.diff(np.cumsum(volume)[last], prepend=0.0)


def _numbers(path: Path, columns: int | None = None) -> np.ndarray:
    """Return the numbers of the first columns of a CSV file without header, float64, NaN where they are missing.

    Raises MarketDataError if it cannot be read, or naming the first that is no number.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path, header=None)
    except Exception as error:
        raise MarketDataError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    rows = np.arange(len(table))
    return np.stack([column_numbers(table[at], f"column {at}", str(path), rows) for at in table.columns[:columns]], 1)
