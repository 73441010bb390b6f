"""Markets of the command line: spans, splits, what reaches them, and what a record names."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import numpy as np
import pytest
import torch

from vecenv.market.load import MarketOptions
from vecenv.registry import task_named
from vecenv.tasks.commands import market_settings
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.commands.market_settings import MarketSettings, default_market, market_origin
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.worldmodel.sampling import generator

CONFIG = StockTradingConfig(features=("rsi_30",))
DAYS = 300


def settings(**values) -> MarketSettings:
    given = {"market": "synthetic", "symbols": ("A", "B"), "num_paths": 1, "num_days": DAYS, "device": "cpu"}
    return MarketSettings(**given | values)


@pytest.fixture(scope="module")
def dates():
    """The days of the market."""
    return settings().tape(CONFIG).dates


def day(dates, index: int) -> date:
    return dates[index].astype(date)


def spans(chosen: MarketSettings) -> list:
    """First and last day of training and of the test."""
    tape = chosen.tape(CONFIG)
    parts = (chosen.training(tape), chosen.test(tape))
    return [edge for part in parts for edge in (part.dates[0], part.dates[-1])]


def test_the_last_days_are_the_test_after_an_embargo(dates):
    tape = settings().tape(CONFIG)
    boundary = DAYS - round(0.25 * (DAYS - tape.first_day))
    expected = [dates[0], dates[boundary - 8], dates[boundary], dates[-1]]
    assert spans(settings(test_fraction=0.25, embargo=7)) == expected


def test_other_paths_are_the_test_of_a_generated_market():
    """All days of each; by dates, all paths."""
    chosen = settings(num_paths=10, test_fraction=0.25)
    tape = chosen.tape(CONFIG)
    training, test = chosen.training(tape), chosen.test(tape)
    assert (training.num_paths, test.num_paths) == (8, 2)
    for tensor in ("ohlcv", "features", "tradable"):
        parts = [getattr(part, tensor) for part in (training, test)]
        assert np.array_equal(np.concatenate(parts), getattr(tape, tensor).numpy())
    dated = settings(num_paths=10, train_end=tape.dates[200].astype(date))
    assert dated.training(tape).num_paths == dated.test(tape).num_paths == 10


@pytest.mark.parametrize(("num_paths", "validation"), [(8, 0.5), (5, 0.25), (2, 0.25)])
def test_validation_is_split_off_the_training_alone(num_paths, validation):
    """Training, validation and test share no path, or no day of the only training path."""
    given = {"market": "random_walk", "symbols": ("A",), "num_paths": num_paths, "num_days": 120, "device": "cpu"}
    chosen = TrainSettings(env=CONFIG, validation_fraction=validation, **given)
    tape = chosen.tape(CONFIG)
    training, held_out, test = chosen.training(tape), chosen.validation(tape), chosen.test(tape)
    whole = MarketSettings(**given).training(tape)
    assert training.num_paths + held_out.num_paths == whole.num_paths + (whole.num_paths == 1)
    assert training.num_paths < whole.num_paths or training.dates[-1] < held_out.dates[held_out.first_day]
    closes = {name: part.price_ticks()[..., 0] for name, part in (("held", held_out), ("test", test))}
    assert not torch.equal(closes["held"][0, -1], closes["test"][0, -1])
    if whole.num_paths > 1:
        assert torch.equal(chosen.training_alone(CONFIG).price_ticks(), training.price_ticks())
    assert TrainSettings(env=CONFIG, **given).validation(tape) is None


@pytest.mark.parametrize("market", ["synthetic", "planted", "random_walk"])
@pytest.mark.parametrize("split", [{}, {"num_paths": 1}, {"train_end": date(2010, 12, 1)}, {"test_fraction": 0.9}])
def test_paths_of_training_alone_are_those_of_the_whole_market(market, split):
    chosen = settings(**{"market": market, "num_paths": 7, "tick_size": 0.01} | split)
    alone, expected = chosen.training_alone(CONFIG), chosen.training(chosen.tape(CONFIG))
    assert alone.fingerprint() == expected.fingerprint() and alone.num_paths == expected.num_paths


def test_all_settings_reach_the_market(monkeypatch):
    asked = []
    monkeypatch.setattr(market_settings, "load_market", lambda *given: asked.append(given))
    made = {"context_market": "v.csv", "num_paths": 3, "num_days": 300, "tick_size": 0.5, "currency": "USD"}
    documents = {"score_delay": 3, "market_close": "15:30 Asia/Kolkata"}
    chosen = settings(
        **made, **documents, symbols=("A",), market_seed=4, scores=("s.csv",), news="n.csv", history="h.csv",
        history_end=date(2020, 1, 2), temperature=0.5, regime="bull", planted_kind="reversal", planted_strength=0.002,
        news_coverage=0.5, news_accuracy=0.25,
    )  # fmt: skip
    generator = {"history": "h.csv", "history_end": "2020-01-02", "temperature": 0.5, "regime": "bull"}
    generator |= {"kind": "reversal", "strength": 0.002, "coverage": 0.5, "accuracy": 0.25}
    documents |= {"score_files": ("s.csv",), "text_file": "n.csv"}
    options = MarketOptions(
        **made, **documents, symbols=("A",), features=("rsi_30",), context=("turbulence",), seed=4, generator=generator,
        headroom=2.0,
    )  # fmt: skip
    chosen.tape(replace(CONFIG, gate="turbulence"), 2.0)
    chosen.tape(SignalsConfig(features=()))
    MarketSettings(device="cpu").tape(CONFIG)
    device = torch.device("cpu")
    assert asked[0] == ("synthetic", options, device)
    assert asked[1] == ("synthetic", replace(options, features=(), context=(), headroom=1.0, scores=True), device)
    assert asked[2] == ("neural", MarketOptions(features=("rsi_30",), num_paths=32, generator={}), device)
    plain = {"market": "synthetic", "seed": 4, "generator": generator, "context_market": "v.csv", "currency": "USD"}
    assert market_origin(chosen) == plain | documents | {"num_paths": 3, "num_days": 300}
    # Of documents what differs from the defaults.
    assert not {"score_files", "text_file", "score_delay", "market_close"} & market_origin(MarketSettings()).keys()


def test_tasks_have_markets_of_their_own():
    tasks = ("stock_trading", "news_signals", "execution")
    assert [default_market(task) for task in tasks] == ["neural", "news", "neural"]


def test_dates_override_the_fraction(dates):
    both = settings(train_end=day(dates, 149), test_start=day(dates, 200), end=day(dates, 250))
    assert spans(both) == [dates[0], dates[149], dates[200], dates[250]]
    assert spans(settings(train_end=day(dates, 149), embargo=7)) == [dates[0], dates[149], dates[157], dates[-1]]
    assert spans(settings(test_start=day(dates, 200), embargo=7)) == [dates[0], dates[192], dates[200], dates[-1]]


def test_a_later_start_keeps_the_features_of_the_days_before(dates):
    whole, late = settings().tape(CONFIG), settings(start=day(dates, 100)).tape(CONFIG)
    assert late.dates[0] == dates[100] and late.first_day == 0
    assert np.array_equal(late.features.numpy(), whole.features[:, 100:].numpy())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"test_fraction": 1.0}, "test_fraction must be between 0 and 1, got 1.0"),
        ({"test_fraction": 0.0}, "test_fraction must be between 0 and 1, got 0.0"),
        ({"embargo": -1}, "embargo must not be negative, got -1"),
        ({"score_delay": -1}, "score_delay must not be negative, got -1"),
        ({"currency": "Rs."}, "Rs."),
        ({"market_close": "16:00"}, "16:00"),
        ({"start": date(2020, 1, 1), "end": date(2019, 1, 1)}, "start 2020-01-01 must be before end 2019-01-01"),
        ({"train_end": date(2020, 1, 1), "test_start": date(2020, 1, 1)}, "train_end 2020-01-01 must be before"),
    ],
)
def test_what_cannot_be_is_refused(values, words):
    settings(embargo=0, score_delay=0, start=date(2020, 1, 1), end=date(2020, 1, 2))
    with pytest.raises(ValueError, match=words):
        settings(**values)


def test_a_task_trades_the_symbols_that_a_model_knows(monkeypatch):
    """Its own symbols where the model knows them all; those named by the user stay as they are."""
    known = {"nse": ("TCS", "RELIANCE", "HDFCBANK", "INFY"), "mine": ("AA", "BB", "CC")}
    monkeypatch.setattr(generator, "load_network", lambda path: None)
    monkeypatch.setattr(generator, "_starts", lambda saved, path: known)
    task = task_named("multi_stock_3")

    def symbols(**given):
        settings = EvaluateSettings(market="m.safetensors", task="multi_stock_3", env=task.config(), **given)
        return settings.with_symbols(settings.env).symbols

    usual = task.config().symbols
    assert symbols() == (usual if set(usual) <= set(known["nse"]) else known["nse"][:3])
    del known["nse"]
    assert symbols() == ("AA", "BB", "CC") and symbols(symbols=("BB",)) == ("BB",)
    known["mine"] = ("AA", "BB", "CC", "DD", "EE")
    assert symbols() == ("AA", "BB", "CC")
    chosen = EvaluateSettings(market="m.safetensors", task="multi_stock_3", env=replace(task.config(), symbols=("XX",)))
    assert chosen.with_symbols(chosen.env).symbols == ("XX",)
    data = EvaluateSettings(market="m.parquet", task="multi_stock_3", env=task.config())
    assert data.with_symbols(data.env).symbols == usual
