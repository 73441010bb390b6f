"""Files of order books that several tests read."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vecenv.tasks.crypto_lob.sources.synthetic import synthetic_snapshots


def write_books(path: Path) -> None:
    """Write an hour of generated order books as snapshots, one a second."""
    books = synthetic_snapshots(hours=1.0)
    table = pd.DataFrame({"ts_ms": books.time, "symbol": "BTC-USD", "buy_qty": books.bought, "sell_qty": books.sold})
    for level in range(books.levels):
        for side in ("bid", "ask"):
            table[f"{side}_px_{level}"] = getattr(books, f"{side}_price")[:, level]
            table[f"{side}_qty_{level}"] = getattr(books, f"{side}_size")[:, level]
    table.to_parquet(path)
