"""Small tables of order books, as files have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from vecenv.tasks.crypto_lob.sources.parquet_snapshots import snapshots_of_table
from vecenv.tasks.crypto_lob.sources.snapshots import Snapshots


def book_table(rows: int = 50, levels: int = 3, gap_ms: int = 500, seed: int = 0, **columns: Any) -> pd.DataFrame:
    """Return snapshots as `parquet_snapshots` reads them, every ``gap_ms``, with columns replaced."""
    draw = np.random.default_rng(seed)
    ask = 1_000.0 + 0.5 * np.cumsum(draw.integers(-2, 3, rows))
    table: dict[str, Any] = {"ts_ms": 1_000_000 + gap_ms * np.arange(rows), "symbol": "A"}
    for level in range(levels):
        table[f"bid_px_{level}"] = ask - 0.5 * (draw.integers(1, 3, rows) if level == 0 else 3 + level)
        table[f"ask_px_{level}"] = ask + 0.5 * level
        for side in ("bid", "ask"):
            table[f"{side}_qty_{level}"] = draw.integers(1, 90, rows) / 8
    table |= {"buy_qty": draw.integers(0, 9, rows) / 8, "sell_qty": draw.integers(0, 9, rows) / 8}
    return pd.DataFrame(table | {"age_ms": np.zeros(rows, int)} | columns)


def snapshots(**options: Any) -> Snapshots:
    """Return the snapshots of a `book_table`."""
    return snapshots_of_table(book_table(**options), "books.parquet")
