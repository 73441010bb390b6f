"""Reading of order books from any file."""

from __future__ import annotations

from pathlib import Path

from vecenv.market.validation import MarketDataError
from vecenv.tasks.crypto_lob.sources.contest_csv import contest_snapshots, is_contest_table
from vecenv.tasks.crypto_lob.sources.lobster import lobster_snapshots
from vecenv.tasks.crypto_lob.sources.parquet_snapshots import read_table, snapshots_of_table
from vecenv.tasks.crypto_lob.sources.snapshots import Snapshots


def read_snapshots(book: str, symbol: str = "", tick: float | None = None, levels: int | None = None) -> Snapshots:
    """Read the snapshots of one coin from a file; raises MarketDataError if it is missing or invalid.

    ``book`` is a Parquet or CSV file of snapshots, a CSV file of the contests, or LOBSTER's file of order books. In a
    file of several coins ``symbol`` says which; ``tick`` is for files that hide it.
    """
    path = Path(book)
    if "orderbook" in path.name and path.suffix == ".csv":
        if symbol:
            raise MarketDataError(f"{book}: one symbol only, so {symbol!r} cannot be chosen")
        return lobster_snapshots(path, levels)
    table = read_table(path)
    if is_contest_table(table):
        if symbol:
            raise MarketDataError(f"{book}: one coin only, so {symbol!r} cannot be chosen")
        return contest_snapshots(table, book, tick, levels)
    return snapshots_of_table(table, book, symbol, levels)
