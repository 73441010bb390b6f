"""Yahoo's wide frames become checked long tables; no test touches the network."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from vecenv.market.fetch import UNIVERSES, fetch_bars, long_from_yahoo
from vecenv.market.sources import read_bars
from vecenv.market.validation import MarketDataError
from vecenv.system.preset_files import preset_path, read_values
from vecenv.tasks.commands.data import FetchSettings, main

COLUMNS = ["date", "symbol", "open", "high", "low", "close", "volume"]


def _wide(listed: dict[str, int], failed: tuple[str, ...] = (), days: int = 4) -> pd.DataFrame:
    """A frame as yfinance 1.7 joins it: symbol -> number of its last days; failed ones are all NaN."""
    dates = pd.DatetimeIndex(pd.bdate_range("2024-01-02", periods=days), name="Date", freq=None)
    frames = {}
    for i, (ticker, bars) in enumerate(listed.items()):
        close = 100.0 * (i + 1) + np.arange(bars)
        values = {"Open": close - 0.5, "High": close + 1, "Low": close - 1, "Close": close, "Volume": 1000 + i}
        frames[ticker] = pd.DataFrame(values, index=dates[days - bars :]).reindex(dates)
    for ticker in failed:
        names = ["Open", "High", "Low", "Close", "Adj Close", "Volume"]
        frames[ticker] = pd.DataFrame(np.nan, index=dates, columns=names)
    wide = pd.concat(frames, axis=1, names=["Ticker", "Price"])
    return wide.swaplevel(0, 1, axis=1).sort_index(level=0, axis=1)


def test_a_wide_frame_becomes_a_long_one():
    """In the order asked for, without rows where there is no bar; without the suffix; from levels in either order."""
    table = long_from_yahoo(_wide({"AAPL": 4, "MSFT": 2, "V": 4}), ["V", "MSFT", "AAPL"])
    assert table["symbol"].tolist() == ["V"] * 4 + ["MSFT"] * 2 + ["AAPL"] * 4
    bars = read_bars(table)
    assert bars.ohlcv[0, 0, bars.symbols.index("V"), 0] == 299.5
    assert bars.listed[0, :, bars.symbols.index("MSFT")].tolist() == [False, False, True, True]
    wide = _wide({"M&M.NS": 4, "BAJAJ-AUTO.NS": 3})
    table = long_from_yahoo(wide, ["M&M", "BAJAJ-AUTO"], suffix=".NS")
    assert list(table.columns) == COLUMNS and str(table["date"].iloc[0].date()) == "2024-01-02"
    assert table["symbol"].tolist() == ["M&M"] * 4 + ["BAJAJ-AUTO"] * 3
    assert table["volume"].tolist() == [1000.0] * 4 + [1001.0] * 3
    assert table["close"].tolist() == [100.0, 101.0, 102.0, 103.0, 200.0, 201.0, 202.0]
    wide = _wide({"AAPL": 4, "V": 3})
    by_ticker = wide.swaplevel(0, 1, axis=1).sort_index(axis=1)
    expected = long_from_yahoo(wide, ["AAPL", "V"])
    pd.testing.assert_frame_equal(long_from_yahoo(by_ticker, ["AAPL", "V"]), expected)
    assert set(long_from_yahoo(wide, ["aapl", "V"])["symbol"]) == {"aapl", "V"}
    broken = _wide({"AAPL": 4})
    broken.iloc[2, broken.columns.get_loc(("Open", "AAPL"))] = np.nan
    for wide, symbols, suffix, words in (
        (_wide({"AAPL": 4}, ("GONE",)), ["AAPL", "GONE"], "", "Yahoo Finance: no data for GONE$"),
        (_wide({"INFY.NS": 4}), ["INFY", "GONE"], ".NS", r"no data for GONE\.NS$"),
        (None, ["A", "B"], "", "no data for A, B"),
        (_wide({}, ("A", "B")).iloc[:0], ["A", "B"], "", "no data for A, B"),
        (broken, ["AAPL"], "", "Yahoo Finance: symbol AAPL, date 2024-01-04, column open: NaN"),
    ):
        with pytest.raises(MarketDataError, match=words):
            long_from_yahoo(wide, symbols, suffix)


def test_a_fetched_universe_carries_the_symbols_of_the_exchange(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def download(tickers: list[str], **options: object) -> pd.DataFrame:
        assert tickers[:2] == ["RELIANCE.NS", "INFY.NS"]
        return _wide(dict.fromkeys(tickers, 4))

    monkeypatch.setitem(sys.modules, "yfinance", SimpleNamespace(download=download))
    settings = FetchSettings(date(2024, 1, 2), date(2024, 1, 5), tmp_path / "nifty.parquet", universe="nifty25")
    result = main(settings)
    assert result["symbols"] == list(UNIVERSES["nifty25"].symbols)
    preset = read_values(preset_path("train", "nifty"))["symbols"]
    assert read_bars(tmp_path / "nifty.parquet", symbols=preset).symbols == tuple(preset)
    told = {name: (len(set(each.symbols)), each.suffix, each.currency) for name, each in UNIVERSES.items()}
    assert told == {"dow30": (30, "", "USD"), "nifty25": (25, ".NS", "INR"), "nifty50": (50, ".NS", "INR")}
    assert UNIVERSES["nifty50"].symbols[:25] == UNIVERSES["nifty25"].symbols


def test_fetch_asks_for_adjusted_prices_and_an_inclusive_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad arguments are refused before anything is asked."""
    asked: dict[str, object] = {}

    def download(tickers: list[str], **options: object) -> pd.DataFrame:
        asked.update(options, tickers=tickers)
        return _wide({"AAPL": 4})

    monkeypatch.setitem(sys.modules, "yfinance", SimpleNamespace(download=download))
    for start, end, interval, words in (
        ("2024-01-02", "2024-01-31", "5m", "unknown interval 5m; known are 1d, 1wk, 1mo"),
        ("2024-02-02", "2024-01-31", "1d", "no span from 2024-02-02 to 2024-01-31"),
        ("01/02/2024", "2024-01-31", "1d", "no span from 01/02/2024"),
    ):
        with pytest.raises(MarketDataError, match=words):
            fetch_bars(["AAPL"], start, end, interval=interval)
    assert not asked
    assert len(fetch_bars(["AAPL"], "2024-01-02", "2024-01-31", interval="1wk")) == 4
    span = {"start": "2024-01-02", "end": "2024-02-01", "interval": "1wk"}
    assert asked == {"tickers": ["AAPL"], "auto_adjust": True, "progress": False, **span}
    monkeypatch.setitem(sys.modules, "yfinance", None)
    with pytest.raises(ImportError, match=r"pip install 'vecenv\[data\]'"):
        fetch_bars(["AAPL"], "2024-01-02", "2024-01-31")
