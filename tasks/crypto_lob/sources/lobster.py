"""Order books from LOBSTER's pairs of files: messages, and a line of the order book after each.

A line of messages is time in seconds after midnight, type, order, size, price and direction; a line of the book is ask
price, ask size, bid price and bid size of each level after that message. Prices are in 1/10,000 of the currency. Types
4 and 5 are executions, of a shown and of a hidden order; the direction is that of the order that waited, 1 for a bid. A
level that does not exist has the price ±9999999999. See lobsterdata.com/info/DataStructure.php.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from vecenv.market.validation import MarketDataError
from vecenv.tasks.crypto_lob.sources.parquet_snapshots import column_numbers
from vecenv.tasks.crypto_lob.sources.snapshots import FaultyRows, Snapshots

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
