"""Prices to try recipes on: `sample_prices` writes a file as a data vendor would."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vecenv.market.synthetic import synthetic_bars
from vecenv.market.validation import OHLCV


def sample_prices(file: str = "prices.csv", days: int = 750) -> str:
    """Write daily bars of five invented stocks in long form, unless the file is there; return its name."""
    bars = synthetic_bars(num_paths=1, num_days=days, symbols=5, seed=7)
    tables = [
        pd.DataFrame(bars.ohlcv[0, :, place].numpy(), columns=OHLCV).assign(date=bars.dates, symbol=symbol)
        for place, symbol in enumerate(bars.symbols)
    ]
    if not Path(file).exists():
        pd.concat(tables).to_csv(file, index=False)
    return file
