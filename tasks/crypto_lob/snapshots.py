"""Snapshots of a source: read from a file, or generated."""

from __future__ import annotations

from vecenv.tasks.crypto_lob.config import SYNTHETIC, BookSource
from vecenv.tasks.crypto_lob.sources.load import read_snapshots
from vecenv.tasks.crypto_lob.sources.snapshots import Snapshots
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
    return read_snapshots(source.book, source.symbol, source.tick_size, source.levels)
