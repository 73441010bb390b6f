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
        values = {
            "Open": close - 0.5,
            "High": close + 1,
            "Low": close - 1,
            "Close": close,
            "Volume": 1000 + i,
        }
        frames[ticker] = pd.DataFrame(values, index=dates[days - bars :]).reindex(dates)
    for ticker in failed:
        names = ["Open", "High", "Low", "Close", "Adj Close", "Volume"]
        frames[ticker] = pd.DataFrame(np.nan, index=dates, columns=names)
    wide = pd.concat(frames, axis=1, names=["Ticker", "Price"])
    return wide.swaplevel(0, 1, axis=1).sort_index(level=0, axis=1)


def test_one_symbol() -> None:
    table = long_from_yahoo(_wide({"RELIANCE.NS": 4}), ["RELIANCE.NS"])
    assert list(table.columns) == COLUMNS
    assert table["symbol"].tolist() == ["RELIANCE.NS"] * 4
    assert table["date"].dt.strftime("%Y-%m-%d").tolist()[0] == "2024-01-02"
    assert table["close"].tolist() == [100.0, 101.0, 102.0, 103.0]
    assert table["volume"].tolist() == [1000.0] * 4


def test_several_symbols_keep_the_order_asked_for_and_have_no_rows_where_there_is_no_bar() -> None:
    table = long_from_yahoo(_wide({"AAPL": 4, "MSFT": 2, "V": 4}), ["V", "MSFT", "AAPL"])
    assert table.groupby("symbol", observed=True, sort=True).size().to_dict() == {
        "V": 4,
        "MSFT": 2,
        "AAPL": 4,
    }
    assert table["symbol"].tolist() == ["V"] * 4 + ["MSFT"] * 2 + ["AAPL"] * 4
    bars = read_bars(table)
    assert bars.ohlcv[0, 0, bars.symbols.index("V"), 0] == 299.5
    assert bars.listed[0, :, bars.symbols.index("MSFT")].tolist() == [False, False, True, True]


def test_the_suffix_of_the_tickers_is_left_out_of_the_table() -> None:
    wide = _wide({"M&M.NS": 4, "BAJAJ-AUTO.NS": 3})
    table = long_from_yahoo(wide, ["M&M", "BAJAJ-AUTO"], suffix=".NS")
    assert table["symbol"].tolist() == ["M&M"] * 4 + ["BAJAJ-AUTO"] * 3
    assert table["close"].tolist() == [100.0, 101.0, 102.0, 103.0, 200.0, 201.0, 202.0]


def test_either_order_of_the_column_levels_and_any_case_of_the_symbol() -> None:
    wide = _wide({"AAPL": 4, "V": 3})
    by_ticker = wide.swaplevel(0, 1, axis=1).sort_index(axis=1)
    expected = long_from_yahoo(wide, ["AAPL", "V"])
    pd.testing.assert_frame_equal(long_from_yahoo(by_ticker, ["AAPL", "V"]), expected)
    assert set(long_from_yahoo(wide, ["aapl", "V"])["symbol"]) == {"aapl", "V"}


@pytest.mark.parametrize("failed", [("GONE",), ()])
def test_a_symbol_without_data_is_named(failed: tuple[str, ...]) -> None:
    with pytest.raises(MarketDataError, match=r"Yahoo Finance: no data for GONE$"):
        long_from_yahoo(_wide({"AAPL": 4}, failed), ["AAPL", "GONE"])


def test_a_symbol_without_data_is_named_by_its_ticker() -> None:
    with pytest.raises(MarketDataError, match=r"no data for GONE\.NS$"):
        long_from_yahoo(_wide({"INFY.NS": 4}), ["INFY", "GONE"], suffix=".NS")


def test_no_data_at_all_names_every_symbol() -> None:
    for frame in (None, _wide({}, ("A", "B")).iloc[:0]):
        with pytest.raises(MarketDataError, match="no data for A, B"):
            long_from_yahoo(frame, ["A", "B"])


def test_a_fault_in_the_bars_is_refused() -> None:
    wide = _wide({"AAPL": 4})
    wide.iloc[2, wide.columns.get_loc(("Open", "AAPL"))] = np.nan
    with pytest.raises(MarketDataError, match="Yahoo Finance: symbol AAPL, date 2024-01-04, column open: NaN"):
        long_from_yahoo(wide, ["AAPL"])


def test_fetch_asks_for_adjusted_prices_and_an_inclusive_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def download(tickers: list[str], **options: object) -> pd.DataFrame:
        asked.update(options, tickers=tickers)
        return _wide({"AAPL": 4})

    monkeypatch.setitem(sys.modules, "yfinance", SimpleNamespace(download=download))
    table = fetch_bars(["AAPL"], "2024-01-02", "2024-01-31", interval="1wk")
    assert len(table) == 4
    assert asked["tickers"] == ["AAPL"]
    assert (asked["start"], asked["end"], asked["interval"]) == ("2024-01-02", "2024-02-01", "1wk")
    assert asked["auto_adjust"] is True


def test_a_fetched_universe_carries_the_symbols_of_the_exchange(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def download(tickers: list[str], **options: object) -> pd.DataFrame:
        assert tickers[:2] == ["RELIANCE.NS", "INFY.NS"]
        return _wide(dict.fromkeys(tickers, 4))

    monkeypatch.setitem(sys.modules, "yfinance", SimpleNamespace(download=download))
    settings = FetchSettings(date(2024, 1, 2), date(2024, 1, 5), tmp_path / "nifty.parquet", universe="nifty25")
    result = main(settings)
    assert result["symbols"] == list(UNIVERSES["nifty25"].symbols)
    preset = read_values(preset_path("train", "nifty"))["symbols"]
    assert read_bars(tmp_path / "nifty.parquet", symbols=preset).symbols == tuple(preset)


def test_fetch_without_yfinance_tells_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yfinance", None)
    with pytest.raises(ImportError, match=r"pip install 'vecenv\[data\]'"):
        fetch_bars(["AAPL"], "2024-01-02", "2024-01-31")


@pytest.mark.parametrize(
    ("start", "end", "interval", "what"),
    [
        ("2024-01-02", "2024-01-31", "5m", "unknown interval 5m; known are 1d, 1wk, 1mo"),
        ("2024-02-02", "2024-01-31", "1d", "no span from 2024-02-02 to 2024-01-31"),
        ("01/02/2024", "2024-01-31", "1d", "no span from 01/02/2024"),
    ],
)
def test_fetch_refuses_bad_arguments(
    start: str, end: str, interval: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yfinance", SimpleNamespace(download=pytest.fail))
    with pytest.raises(MarketDataError, match=what):
        fetch_bars(["AAPL"], start, end, interval=interval)


def test_universes() -> None:
    assert {name: len(set(universe.symbols)) for name, universe in UNIVERSES.items()} == {
        "dow30": 30,
        "nifty25": 25,
        "nifty50": 50,
    }
    assert UNIVERSES["nifty50"].symbols[:25] == UNIVERSES["nifty25"].symbols
    assert {name: universe.suffix for name, universe in UNIVERSES.items()} == {
        "dow30": "",
        "nifty25": ".NS",
        "nifty50": ".NS",
    }
    assert not any("." in symbol for universe in UNIVERSES.values() for symbol in universe.symbols)
