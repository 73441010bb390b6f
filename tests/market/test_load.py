"""One door to every market."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from vecenv.market import load
from vecenv.market.bars import CLOSE
from vecenv.market.load import GENERATORS, MarketOptions, load_market
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.market.validation import MarketDataError

CCC_LISTED = "2024-01-05"


def written(frame: pd.DataFrame, path) -> str:
    frame.to_parquet(path)
    return str(path)


@pytest.mark.parametrize("kind", ["frame", "parquet", "csv", "path"])
def test_a_table_is_read_wherever_it_is(long_frame, tmp_path, kind):
    """Ten days of AAA and BBB, the last six of CCC."""
    market = long_frame
    if kind == "csv":
        market = str(tmp_path / "bars.csv")
        long_frame.to_csv(market, index=False)
    elif kind != "frame":
        market = written(long_frame, tmp_path / "bars.parquet")
        market = tmp_path / "bars.parquet" if kind == "path" else market
    tape = load_market(market, MarketOptions(features=("gap",)))
    assert tape.symbols == ("AAA", "BBB", "CCC") and tape.num_days == 10 and tape.num_paths == 1
    closes = long_frame.pivot(index="date", columns="symbol", values="close").to_numpy()
    listed = ~np.isnan(closes)
    np.testing.assert_allclose(tape.ohlcv[0, ..., CLOSE].numpy()[listed], closes[listed], atol=tape.tick_size)
    assert not tape.ohlcv[0, ..., CLOSE].numpy()[~listed].any()
    assert str(tape.dates[listed[:, 2].argmax()]) == CCC_LISTED


def test_symbols_and_dates_are_chosen_before_anything_is_computed(long_frame):
    tape = load_market(
        long_frame, MarketOptions(symbols=["CCC", "AAA"], start="2024-01-03", end="2024-01-09", features=())
    )
    assert tape.symbols == ("CCC", "AAA")
    assert [str(tape.dates[0]), str(tape.dates[-1])] == ["2024-01-03", "2024-01-09"]
    with pytest.raises(MarketDataError, match="ZZZ"):
        load_market(long_frame, MarketOptions(symbols=["AAA", "ZZZ"], features=()))


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_generators_are_named_and_seeded(name):
    options = {"num_paths": 2, "num_days": 90, "features": ("macd", "momentum_10")}
    tape = load_market(name, MarketOptions(seed=3, **options))
    assert tape.num_paths == 2 and tape.num_days == 90 and tape.features.shape[-1] == 2
    assert load_market(name, MarketOptions(seed=3, **options)).fingerprint() == tape.fingerprint()
    assert load_market(name, MarketOptions(seed=4, **options)).fingerprint() != tape.fingerprint()


def test_other_packages_bring_generators(monkeypatch, tmp_path):
    """By a name, or by the suffix of a file, which the generator is given first."""
    asked = []

    def bars(*given, num_paths, seed, device, num_days=70, flavour="plain"):
        asked.append((given, num_paths, num_days, seed, flavour))
        return synthetic_bars(num_paths, num_days, 1, seed)

    class Point:
        def __init__(self, name: str) -> None:
            self.name = name

        def load(self):
            return bars

    monkeypatch.setattr(load, "entry_points", lambda group: [Point("brewed"), Point(".brew")])
    file = tmp_path / "strong.brew"
    options = {"num_paths": 2, "seed": 3, "features": ()}
    assert load_market("brewed", MarketOptions(**options)).num_days == 70
    load_market(file, MarketOptions(num_days=60, generator={"flavour": "sour"}, **options))
    assert asked == [((), 2, 70, 3, "plain"), ((file,), 2, 60, 3, "sour")]
    with pytest.raises(ValueError, match="the generator 'brewed' takes no colour, symbols"):
        load_market("brewed", MarketOptions(symbols=["A"], generator={"colour": "dark"}, **options))


def test_data_take_no_arguments_of_generators(long_frame):
    with pytest.raises(ValueError, match="takes no regime"):
        load_market(long_frame, MarketOptions(generator={"regime": "bull"}, features=()))


def test_the_symbols_of_the_synthetic_market_can_be_named():
    tape = load_market("synthetic", MarketOptions(symbols=["X", "Y"], num_paths=1, num_days=90, features=()))
    assert tape.symbols == ("X", "Y")


def test_symbols_of_a_generator_are_names_or_a_number_and_of_data_names(long_frame):
    options = MarketOptions(symbols=3, num_paths=2, num_days=300)
    assert load_market("synthetic", options).symbols == ("SYN00", "SYN01", "SYN02")
    with pytest.raises(ValueError, match="takes names of symbols, not their number 3"):
        load_market(long_frame, options)
    with pytest.raises(ValueError, match="sequence of names, got the string 'AAPL'"):
        MarketOptions(symbols="AAPL")


def test_a_tape_is_only_moved(long_frame):
    tape = load_market(long_frame, MarketOptions(features=()))
    assert load_market(tape).fingerprint() == tape.fingerprint()
    assert load_market(tape, device="meta").device.type == "meta"


def test_settings_reach_the_tape(long_frame):
    frame = long_frame.assign(score=1.0, rank=2.0)
    tape = load_market(frame, MarketOptions(features=("score", "rank"), tick_size=0.01))
    assert tape.feature_names == ("score", "rank") and tape.tick_size == 0.01
    with pytest.raises(MarketDataError, match="unknown features"):
        load_market(long_frame, MarketOptions(features=("gapp",)))


def index_frame(dates: list[str], closes: list[float]) -> pd.DataFrame:
    close = np.array(closes)
    return pd.DataFrame(
        {"date": dates, "symbol": "VIX", "open": close, "high": close, "low": close, "close": close, "volume": 0.0}
    )


def test_another_market_becomes_a_series_aligned_by_date(long_frame, tmp_path):
    """Values of the same date; a date that is missing carries the last value, never a later one."""
    days = pd.bdate_range("2024-01-01", periods=10).strftime("%Y-%m-%d").tolist()
    kept = [day for index, day in enumerate(days) if index not in (3, 4)]
    vix = written(index_frame(kept, [10.0 + index for index in range(8)]), tmp_path / "vix.parquet")
    tape = load_market(long_frame, MarketOptions(features=(), context=("vix",), context_market=vix))
    assert tape.context_names == ("vix",)
    assert tape.context[0, :, 0].tolist() == [10, 11, 12, 12, 12, 13, 14, 15, 16, 17]


def test_a_series_knows_nothing_of_later_days(long_frame, tmp_path):
    days = pd.bdate_range("2024-01-01", periods=10).strftime("%Y-%m-%d").tolist()
    results = []
    for later in (20.0, 12.0):
        frame = index_frame([days[2], days[6], days[9]], [15.0, later, later])
        vix = written(frame, tmp_path / "vix.parquet")
        results.append(
            load_market(long_frame, MarketOptions(features=(), context=("vix",), context_market=vix)).context[0, :, 0]
        )
    assert torch.equal(results[0][:6], results[1][:6])
    assert results[0].tolist() == [0, 0, 15, 15, 15, 15, 20, 20, 20, 20] and results[1][6] == 12


def test_a_series_of_a_day_without_bars_is_known_on_the_next(long_frame, tmp_path):
    """A value of a Saturday, or of the days before the market begins, is the last known one."""
    vix = written(index_frame(["2023-12-29", "2024-01-06"], [30.0, 40.0]), tmp_path / "vix.parquet")
    tape = load_market(long_frame, MarketOptions(features=(), context=("vix",), context_market=vix))
    assert tape.context[0, :, 0].tolist() == [30.0] * 5 + [40.0] * 5


def test_a_context_of_several_symbols_is_refused(long_frame, tmp_path):
    """Which of them would be the VIX is a guess."""
    several = written(long_frame, tmp_path / "several.parquet")
    with pytest.raises(MarketDataError, match="AAA, BBB, CCC"):
        load_market(long_frame, MarketOptions(features=(), context=("vix",), context_market=several))


def test_the_markets_own_series_wins(long_frame, tmp_path):
    frame = long_frame.assign(vix=25.0)
    vix = written(index_frame(["2024-01-01"], [99.0]), tmp_path / "vix.parquet")
    tape = load_market(frame, MarketOptions(features=(), context=("vix",), context_market=vix))
    assert (tape.context == 25.0).all()


@pytest.mark.parametrize("market", ["nowhere.parquet", "no/such/folder", "syntetic"])
def test_an_unknown_market_is_named(market):
    with pytest.raises(MarketDataError, match=market.split("/")[-1]):
        load_market(market)


def test_a_table_shorter_than_its_warm_up_is_refused(long_frame):
    with pytest.raises(MarketDataError, match="on any of its 10 days"):
        load_market(long_frame)


def test_loading_leaves_the_table_alone(long_frame):
    before = long_frame.copy()
    tape = load_market(long_frame, MarketOptions(features=()))
    pd.testing.assert_frame_equal(long_frame, before)
    assert isinstance(replace(tape, source="x"), MarketTape)
