"""A market for the tests of validation: its training, validation and test days, with symbols that lack some."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars

TRAIN, VALIDATION, TEST, SYMBOLS = 260, 20, 110, 4


def market_file(folder: Path) -> Path:
    """Write bars of six symbols; the last has none in the training days, and the fifth none on one test day."""
    days = TRAIN + VALIDATION + TEST
    bars = synthetic_bars(1, days, SYMBOLS + 2, seed=3)
    table = pd.DataFrame(bars.ohlcv[0].reshape(-1, 5).numpy(), columns=["open", "high", "low", "close", "volume"])
    table.insert(0, "symbol", np.tile([f"S{number}" for number in range(SYMBOLS + 2)], days))
    table.insert(0, "date", np.repeat(bars.dates, SYMBOLS + 2))
    late = (table["symbol"] == "S5") & (table["date"] < bars.dates[TRAIN])
    absent = (table["symbol"] == "S4") & (table["date"] == bars.dates[TRAIN + VALIDATION + 3])
    path = folder / "prices.parquet"
    table[~late & ~absent].sort_values(["symbol", "date"]).to_parquet(path, index=False)
    return path


def split_ends(file: Path) -> tuple[str, str]:
    """Return the last day of training and of validation."""
    dates = read_bars(file).dates
    return str(dates[TRAIN - 1]), str(dates[TRAIN + VALIDATION - 1])
