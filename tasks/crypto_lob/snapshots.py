"""Snapshots of a source: read from a file, or generated."""

from __future__ import annotations

from pathlib import Path

from vecenv.market.validation import MarketDataError
from vecenv.tasks.crypto_lob.config import SYNTHETIC, BookSource
from vecenv.tasks.crypto_lob.sources.contest_csv import contest_snapshots, is_contest_table
from vecenv.tasks.crypto_lob.sources.lobster import is_lobster_file, lobster_snapshots
from vecenv.tasks.crypto_lob.sources.parquet_snapshots import read_table, snapshots_of_table
from vecenv.tasks.crypto_lob.sources.snapshots import FaultyRows, Snapshots
from vecenv.tasks.crypto_lob.sources.synthetic import synthetic_snapshots


def snapshots_of(source: BookSource) -> Snapshots:
    """Read or generate the snapshots of one coin; raises MarketDataError if the file is missing or invalid."""
    if source.book == SYNTHETIC:
        return synthetic_snapshots(
            source.synthetic_hours,
            source.step_gap,
            source.levels,
            source.synthetic_strength,
            source.synthetic_seed,
        )
    return read_snapshots(source.book, source.symbol, source.tick_size, source.levels, source.faulty_rows)


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
