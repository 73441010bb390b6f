"""The benchmark of reading counts the rows that there are, and writes what it prints."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from vecenv.benchmarks.throughput.market_reading import MarketReadingConfig, main


def test_rows_are_counted_and_figures_written(tmp_path, capsys):
    days = pd.bdate_range("2020-01-01", periods=90).strftime("%Y-%m-%d")
    close = 50 * np.exp(np.random.default_rng(0).normal(0, 0.01, 90).cumsum())
    frame = pd.DataFrame({"date": days, "open": close, "high": close * 1.01, "low": close * 0.99, "close": close})
    frames = [frame.iloc[first:].assign(symbol=name, volume=1e5) for name, first in (("A", 0), ("B", 7))]
    file = tmp_path / "two_stocks.csv"
    pd.concat(frames).to_csv(file, index=False)
    result = main(MarketReadingConfig(file, repeats=1, out=tmp_path))
    assert result["rows"] == 90 + 83
    assert result["rows_per_second"] == pytest.approx(173 / result["seconds_to_read"])
    assert json.loads((tmp_path / "market-reading-two-stocks.json").read_text()) == result
    assert "173 rows read" in capsys.readouterr().out


def test_nothing_to_repeat_is_refused(tmp_path):
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        main(MarketReadingConfig(tmp_path / "none.csv", repeats=0))
