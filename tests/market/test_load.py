"""One door to every market."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from vecenv.market import load
from vecenv.market.bars import CLOSE
from vecenv.market.load import GENERATORS, MarketOptions, load_market
from vecenv.market.synthetic import synthetic_bars


def written(frame: pd.DataFrame, path) -> str:
    frame.to_parquet(path)
    return str(path)


def test_a_table_is_read_wherever_it_is(long_frame, tmp_path):
    """Ten days of AAA and BBB, the last six of CCC; symbols and dates are chosen before anything is computed."""
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


def test_generators_and_options_reach_the_tape(long_frame):
    """The table is left alone, and a tape is only moved."""
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


def test_another_market_becomes_a_series_aligned_by_date(long_frame, tmp_path):
    """Values of the same date; a date that is missing carries the last value, never a later one."""
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
        options = MarketOptions(features=(), context=("vix",), context_market=vix)
        tape = load_market(long_frame, options)
        assert tape.context_names == ("vix",) and tape.context[0, :, 0].tolist() == expected
    assert (load_market(long_frame.assign(vix=25.0), options).context == 25.0).all(), "the market's own series wins"


def test_other_packages_bring_generators(monkeypatch, tmp_path):
    """By a name, or by the suffix of a file, which the generator is given first; it may know its symbols and days."""
    asked = []

    def bars(*given, num_paths, seed, device, num_days=70, flavour="plain"):
        asked.append((given, num_paths, num_days, seed, flavour))
        return synthetic_bars(num_paths, num_days, 1, seed)

    points = [SimpleNamespace(name=name, load=lambda: bars) for name in ("brewed", ".brew")]
    monkeypatch.setattr(load, "entry_points", lambda group: points)
    file = tmp_path / "strong.brew"
    options = {"num_paths": 2, "seed": 3, "features": ()}
    assert load_market("brewed", MarketOptions(**options)).num_days == 70
    load_market(file, MarketOptions(num_days=60, generator={"flavour": "sour"}, **options))
    assert asked == [((), 2, 70, 3, "plain"), ((file,), 2, 60, 3, "sour")]
    with pytest.raises(ValueError, match="the generator 'brewed' takes no colour, symbols"):
        load_market("brewed", MarketOptions(symbols=["A"], generator={"colour": "dark"}, **options))
    assert load.fitting_symbols(file, ["X"]) == ("X",) and load.known_days(file) == {}
    bars.fitting_symbols = lambda path, wanted: [path.stem, *wanted]
    bars.known_days = lambda path: {path.stem: "2020-01-02"}
    assert load.fitting_symbols(file, ["X"]) == ("strong", "X") and load.known_days(file) == {"strong": "2020-01-02"}
    assert load.fitting_symbols("brewed", ["X"]) == ("X",) and load.known_days(tmp_path / "bars.csv") == {}


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
        with pytest.raises(ValueError, match="unknown market options seeds, ends; there are symbols, start, end"):
            MarketOptions().updated({"seeds": 1, "ends": 2, "seed": 3})
