"""One door to every market; Yahoo's wide frames become checked long tables, and no test touches the network."""

import sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from vecenv.market import generators
from vecenv.market.bars import CLOSE
from vecenv.market.fetch import UNIVERSES, fetch_bars, long_from_yahoo
from vecenv.market.generators import GENERATORS, fitting_symbols, known_days
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.validation import MarketDataError
from vecenv.system.preset_files import preset_path, read_values
from vecenv.tasks.commands.data import FetchSettings, main


def written(frame: pd.DataFrame, path) -> str:
    frame.to_parquet(path)
    return str(path)


def test_a_table_is_read_wherever_it_is(long_frame, tmp_path):
    """Another market becomes a series: a date that is missing carries the last value, never a later one."""
    closes = long_frame.pivot(index="date", columns="symbol", values="close").to_numpy()
    listed = ~np.isnan(closes)
    for market in (long_frame, written(long_frame, tmp_path / "bars.parquet"), tmp_path / "bars.parquet"):
        tape = load_market(market, MarketOptions(features=("gap",)))
        assert tape.symbols == ("AAA", "BBB", "CCC") and tape.num_days == 10 and tape.num_paths == 1
        np.testing.assert_allclose(tape.ohlcv[0, ..., CLOSE].numpy()[listed], closes[listed], atol=tape.tick_size)
        assert not tape.ohlcv[0, ..., CLOSE].numpy()[~listed].any()
        assert str(tape.dates[listed[:, 2].argmax()]) == "2024-01-05"
    options = MarketOptions(symbols=["CCC", "AAA"], start="2024-01-03", end="2024-01-09", features=())
    tape = load_market(long_frame, options)
    assert tape.symbols == ("CCC", "AAA")
    assert [str(tape.dates[0]), str(tape.dates[-1])] == ["2024-01-03", "2024-01-09"]
    days = pd.bdate_range("2024-01-01", periods=10).strftime("%Y-%m-%d").tolist()
    kept = [day for index, day in enumerate(days) if index not in (3, 4)]
    # A value of a Saturday, or of the days before the market begins, is the last known one.
    for dates, closes, expected in (
        (kept, [10.0 + index for index in range(8)], [10, 11, 12, 12, 12, 13, 14, 15, 16, 17]),
        (["2023-12-29", "2024-01-06"], [30.0, 40.0], [30] * 5 + [40] * 5),
        ([days[2], days[6], days[9]], [15.0, 20.0, 20.0], [0, 0, 15, 15, 15, 15, 20, 20, 20, 20]),
    ):
        prices = dict.fromkeys(("open", "high", "low", "close"), closes)
        vix = written(pd.DataFrame({"date": dates, "symbol": "VIX", **prices, "volume": 0.0}), tmp_path / "vix.parquet")
        options = MarketOptions(features=(), context=("vix", "turbulence"), context_market=vix)
        tape = load_market(long_frame, options)
        assert tape.context_names == ("vix", "turbulence") and tape.context[0].T.tolist() == [expected, [0.0] * 10]
    assert (load_market(long_frame.assign(vix=25.0), options).context[..., 0] == 25).all(), "the market's series wins"


def test_generators_and_options_reach_the_tape(long_frame, monkeypatch, tmp_path):
    """The table is left alone, a tape only moved; generators of others are given the file whose suffix names them."""
    for name in sorted(GENERATORS):
        options = {"num_paths": 2, "num_days": 90, "features": ("macd", "momentum_10")}
        tape = load_market(name, MarketOptions(seed=3, **options))
        assert tape.num_paths == 2 and tape.num_days == 90 and tape.features.shape[-1] == 2
        assert load_market(name, MarketOptions(seed=3, **options)).fingerprint() == tape.fingerprint()
        assert load_market(name, MarketOptions(seed=4, **options)).fingerprint() != tape.fingerprint()
    frame = long_frame.assign(score=1.0, rank=2.0)
    before = frame.copy()
    tape = load_market(frame, MarketOptions(features=("score", "rank"), tick_size=0.01))
    assert tape.feature_names == ("score", "rank") and tape.tick_size == 0.01
    pd.testing.assert_frame_equal(frame, before)
    assert load_market(tape).fingerprint() == tape.fingerprint()
    assert load_market(tape, device="meta").device.type == "meta"
    for symbols in (["X", "Y"], 2):
        tape = load_market("synthetic", MarketOptions(symbols=symbols, num_paths=1, num_days=90, features=()))
        assert tape.symbols == (("X", "Y") if symbols != 2 else ("SYN00", "SYN01"))
    assert MarketOptions().updated({"seed": 7, "start": "2020"}) == MarketOptions(seed=7, start="2020")
    asked = []

    def bars(*given, num_paths, seed, device, num_days=70, flavour="plain"):
        asked.append((given, num_paths, num_days, seed, flavour))
        return synthetic_bars(num_paths, num_days, 1, seed)

    points = [SimpleNamespace(name=name, load=lambda: bars) for name in ("brewed", ".brew")]
    monkeypatch.setattr(generators, "entry_points", lambda group: points)
    file = tmp_path / "strong.brew"
    options = {"num_paths": 2, "seed": 3, "features": ()}
    assert load_market("brewed", MarketOptions(**options)).num_days == 70
    load_market(file, MarketOptions(num_days=60, generator={"flavour": "sour"}, **options))
    assert asked == [((), 2, 70, 3, "plain"), ((file,), 2, 60, 3, "sour")]
    with pytest.raises(ValueError, match="the generator 'brewed' takes no colour, symbols"):
        load_market("brewed", MarketOptions(symbols=["A"], generator={"colour": "dark"}, **options))
    assert fitting_symbols(file, ["X"]) == ("X",) and known_days(file) == {}
    bars.fitting_symbols = lambda path, wanted: [path.stem, *wanted]
    bars.known_days = lambda path: {path.stem: "2020-01-02"}
    assert fitting_symbols(file, ["X"]) == ("strong", "X") and known_days(file) == {"strong": "2020-01-02"}
    assert fitting_symbols("brewed", ["X"]) == ("X",) and known_days(tmp_path / "bars.csv") == {}


def test_what_cannot_be_loaded_is_refused(long_frame, tmp_path):
    for market, options, words in (
        (None, {"generator": {"regime": "bull"}}, "a market of data takes no regime: only generators do"),
        (None, {"symbols": 3}, "a market of data takes names of symbols, not their number 3"),
        (None, {"symbols": "AAPL"}, "symbols must be a sequence of names, got the string 'AAPL'"),
        (None, {"score_delay": -1}, "score_delay must not be negative, got -1"),
        (None, {"features": ("rsi_30",)}, "no symbol has rsi_30 on any of its 10 days"),
        (None, {"context": ("vix",), "context_market": "SEVERAL"}, "a file of one symbol, this has AAA, BBB, CCC"),
        ("synthetic", {"start": "2020-01-01", "score_files": ("a",)}, "'synthetic' takes no start, score_files"),
        ("nowhere.parquet", {}, "nowhere.parquet: there is no such file"),
        ("syntetic", {}, "syntetic"),
    ):
        if "context_market" in options:
            options = options | {"context_market": written(long_frame, tmp_path / "several.parquet")}
        with pytest.raises(ValueError, match=words):
            load_market(long_frame if market is None else market, MarketOptions(**({"features": ()} | options)))
    with pytest.raises(
        ValueError, match=r"unknown market options seeds, ends .did you mean seed or end.*there are symbols, start, end"
    ):
        MarketOptions().updated({"seeds": 1, "ends": 2, "seed": 3})


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
    assert list(table.columns) == ["date", "symbol", "open", "high", "low", "close", "volume"]
    assert str(table["date"].iloc[0].date()) == "2024-01-02"
    assert table["symbol"].tolist() == ["M&M"] * 4 + ["BAJAJ-AUTO"] * 3
    assert table["volume"].tolist() == [1000.0] * 4 + [1001.0] * 3
    assert table["close"].tolist() == [100.0, 101.0, 102.0, 103.0, 200.0, 201.0, 202.0]
    wide = _wide({"AAPL": 4, "V": 3})
    by_ticker = wide.swaplevel(0, 1, axis=1).sort_index(axis=1)
    expected = long_from_yahoo(wide, ["AAPL", "V"])
    pd.testing.assert_frame_equal(long_from_yahoo(by_ticker, ["AAPL", "V"]), expected)
    assert set(long_from_yahoo(wide, ["aapl", "V"])["symbol"]) == {"aapl", "V"}
    broken, crossed = _wide({"AAPL": 4}), _wide({"AAPL": 4}).rename(columns={"High": "Low", "Low": "High"})
    broken.iloc[2, broken.columns.get_loc(("Open", "AAPL"))] = np.nan
    for wide, symbols, suffix, words in (
        (_wide({"AAPL": 4}, ("GONE",)), ["AAPL", "GONE"], "", "Yahoo Finance: no data for GONE$"),
        (_wide({"INFY.NS": 4}), ["INFY", "GONE"], ".NS", r"no data for GONE\.NS$"),
        (None, ["A", "B"], "", "no data for A, B"),
        (_wide({}, ("A", "B")).iloc[:0], ["A", "B"], "", "no data for A, B"),
        (broken, ["AAPL"], "", "Yahoo Finance: symbol AAPL, date 2024-01-04, column open: NaN"),
        (crossed, ["AAPL"], "", "Yahoo Finance: symbol AAPL, date 2024-01-02, column high: high 99.0 is below the low"),
    ):
        with pytest.raises(MarketDataError, match=words):
            long_from_yahoo(wide, symbols, suffix)


def test_fetch_asks_for_adjusted_prices_and_an_inclusive_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Bad arguments are refused before anything is asked; a universe carries the symbols of the exchange."""

    def download(tickers: list[str], **options: object) -> pd.DataFrame:
        assert tickers[:2] == ["RELIANCE.NS", "INFY.NS"]
        return _wide(dict.fromkeys(tickers, 4))

    monkeypatch.setitem(sys.modules, "yfinance", SimpleNamespace(download=download))
    settings = FetchSettings(date(2024, 1, 2), date(2024, 1, 5), tmp_path / "nifty.parquet", universe="nifty25")
    assert main(settings)["symbols"] == list(UNIVERSES["nifty25"].symbols)
    preset = read_values(preset_path("train", "nifty"))["symbols"]
    assert read_bars(tmp_path / "nifty.parquet", symbols=preset).symbols == tuple(preset)
    told = {name: (len(set(each.symbols)), each.suffix, each.currency) for name, each in UNIVERSES.items()}
    assert told == {"dow30": (30, "", "USD"), "nifty25": (25, ".NS", "INR"), "nifty50": (50, ".NS", "INR")}
    assert UNIVERSES["nifty50"].symbols[:25] == UNIVERSES["nifty25"].symbols
    asked: dict[str, object] = {}

    def download(tickers: list[str], **options: object) -> pd.DataFrame:
        asked.update(options, tickers=tickers)
        return _wide({"AAPL": 4})

    monkeypatch.setitem(sys.modules, "yfinance", SimpleNamespace(download=download))
    for start, end, interval, words in (
        ("2024-01-02", "2024-01-31", "5m", "unknown interval 5m; known are 1d, 1wk, 1mo"),
        ("2024-02-02", "2024-01-31", "1d", "no span from 2024-02-02 to 2024-01-31"),
        ("01/02/2024", "2024-01-31", "1d", "start '01/02/2024' is 2024-01-02 or 2024-02-01: write"),
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
