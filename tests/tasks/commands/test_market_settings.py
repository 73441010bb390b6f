"""Markets of the command line: spans, splits, what reaches them, and training paths that are drawn anew."""

import functools
from dataclasses import replace
from datetime import date
from itertools import product

import numpy as np
import pytest
import torch
from rich.console import Console

from tests.tasks.commands.small_runs import changed, parts_of, settings_of, settings_on
from vecenv.market import generators, load
from vecenv.market.bars import VOLUME
from vecenv.market.symbol_subsets import symbol_subsets
from vecenv.registry import task_named
from vecenv.tasks.experiment import markets, planning
from vecenv.tasks.experiment.kinds import AllSymbols, Subsets
from vecenv.tasks.experiment.markets import NoMarket, market_for
from vecenv.tasks.experiment.splits import HEADROOM, SEED_STRIDE, FreshPaths, TapeSplits
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.worldmodel.sampling import generator

CONFIG = StockTradingConfig(features=("rsi_30",), episode_length=10, hmax=10)
DAYS = 300


CPU, TASK = torch.device("cpu"), task_named("stock_trading")


def settings(config=CONFIG, **values):
    """Settings of a market, by default a small one."""
    given = {"market": "synthetic", "symbols": ("A", "B")} | values
    if markets.generator_of(given["market"]) is not None:
        given = {"num_paths": 1, "num_days": DAYS} | given
    return changed(market_for(TASK, config, given), **given)


def test_spans_and_paths_of_training_and_test(monkeypatch):
    tape = settings().tape(CONFIG, CPU)
    dates, day = tape.dates, [each.astype(date) for each in tape.dates]

    def spans(**values) -> list:
        chosen = settings(**values)
        own = chosen.tape(CONFIG, CPU)
        return [
            edge
            for part in (chosen.split.training(own), chosen.split.test(own))
            for edge in (part.dates[0], part.dates[-1])
        ]

    # The last days are the test, after an embargo; dates override the fraction.
    boundary = DAYS - round(0.25 * (DAYS - tape.first_day))
    assert spans(test_fraction=0.25, embargo=7) == [dates[0], dates[boundary - 8], dates[boundary], dates[-1]]
    both = spans(train_end=day[149], test_start=day[200], end=day[250])
    assert both == [dates[0], dates[149], dates[200], dates[250]]
    assert spans(train_end=day[149], embargo=7) == [dates[0], dates[149], dates[157], dates[-1]]
    assert spans(test_start=day[200], embargo=7) == [dates[0], dates[192], dates[200], dates[-1]]
    # A later start keeps the features of the days before.
    late = settings(start=day[100]).tape(CONFIG, CPU)
    assert late.dates[0] == dates[100] and late.first_day == 0
    assert np.array_equal(late.features.numpy(), tape.features[:, 100:].numpy())
    # Other paths are the test of a generated market: all days of each; by dates, all paths.
    chosen = settings(num_paths=10, test_fraction=0.25)
    tape = chosen.tape(CONFIG, CPU)
    training, test = chosen.split.training(tape), chosen.split.test(tape)
    assert (training.num_paths, test.num_paths) == (8, 2)
    for tensor in ("ohlcv", "features", "tradable"):
        parts = [getattr(part, tensor) for part in (training, test)]
        assert np.array_equal(np.concatenate(parts), getattr(tape, tensor).numpy())
    # Dates of real days are refused before anything is drawn.
    monkeypatch.setattr(load, "load_market", None)
    for name, when in product(("start", "end", "train_end", "test_start"), (date(2010, 1, 3), date(2011, 2, 26))):
        with pytest.raises(ValueError, match=f"{name} {when} is outside .* 2010-01-04 to 2011-02-25: give the file"):
            settings(**{name: when}).tape(CONFIG, CPU)
    dated = settings(num_paths=10, train_end=tape.dates[200].astype(date))
    assert dated.split.training(tape).num_paths == dated.split.test(tape).num_paths == 10


@pytest.mark.parametrize(("num_paths", "validation"), [(8, 0.5), (5, 0.25), (2, 0.25)])
def test_validation_is_split_off_the_training_alone(num_paths, validation):
    chosen = settings(market="random_walk", symbols=("A",), num_paths=num_paths, num_days=120)
    splits = TapeSplits(TASK, chosen, chosen.tape(CONFIG, CPU), validation)
    training, validation, test = map(splits.part, ("train", "validation", "test"))
    whole = chosen.split.training(splits.tape)
    assert training.num_paths + validation.num_paths == whole.num_paths + (whole.num_paths == 1)
    assert training.num_paths < whole.num_paths or training.dates[-1] < validation.dates[validation.first_day]
    assert not torch.equal(validation.price_ticks()[0, -1, 0], test.price_ticks()[0, -1, 0])
    if whole.num_paths == 1:
        assert training.num_days + chosen.split.embargo + validation.num_days == whole.num_days
    else:
        assert torch.equal(splits.drawn(0, CONFIG).price_ticks(), training.price_ticks())


@pytest.mark.parametrize("market", ["synthetic", "planted", "random_walk"])
@pytest.mark.parametrize("split", [{}, {"num_paths": 1}, {"train_end": date(2010, 12, 1)}, {"test_fraction": 0.9}])
def test_paths_of_training_alone_are_those_of_the_whole_market(market, split):
    chosen = settings(**{"market": market, "num_paths": 7, "tick_size": 0.01} | split)
    splits = TapeSplits(TASK, chosen, chosen.tape(CONFIG, CPU))
    alone, expected = splits.drawn(0, CONFIG), splits.part("train")
    assert alone.fingerprint() == expected.fingerprint() and alone.num_paths == expected.num_paths


def test_all_settings_reach_the_market_or_are_refused(monkeypatch):
    asked = []
    monkeypatch.setattr(load, "load_market", lambda *given: asked.append(given))
    drawn, signals = {"num_paths": 3, "num_days": 300, "market_seed": 4}, SignalsConfig(features=())
    clock = {"score_delay": 3, "market_close": "15:30 Asia/Kolkata", "early_closes": "e.csv"}
    regime, strength = {"regime": "bull"}, {"planted_strength": 0.002}
    history = regime | {"history": "h.csv", "temperature": 0.5}
    news, dated = {"news_coverage": 0.5, "news_accuracy": 0.25}, {"history_end": date(2020, 1, 2), "clip": True}
    for name, own, arguments, options in (
        ("synthetic", regime, regime, {}),
        ("neural", history | dated, history | {"history_end": "2020-01-02"}, {"clip": True}),
        ("planted", strength | {"planted_kind": "reversal"}, {"kind": "reversal", "strength": 0.002}, {}),
        ("news", strength | news, {"coverage": 0.5, "accuracy": 0.25, "strength": 0.002}, {}),
    ):
        chosen = settings(market=name, symbols=("A",), tick_size=0.5, currency="USD", **drawn, **own)
        chosen.tape(replace(CONFIG, gate="turbulence"), CPU, 2.0)
        own = {"num_paths": 3, "num_days": 300, "seed": 4, "generator": arguments}
        asks = own | {"symbols": ("A",), "features": ("rsi_30",), "context": ("turbulence",), "tick_size": 0.5}
        assert asked.pop() == (name, load.MarketOptions(**asks, **options, currency="USD", headroom=2.0), CPU)
        assert chosen.origin() == {"market": name, "currency": "USD"} | own | options
    chosen = settings(signals, market="a.csv", context_market="v.csv", scores=("s.csv",), news="n.csv", **clock)
    chosen.tape(signals, CPU)
    documents = clock | {"score_files": ("s.csv",), "text_file": "n.csv", "context_market": "v.csv"}
    asks = documents | {"symbols": ("A", "B"), "features": (), "context": (), "scores": True}
    assert asked.pop() == ("a.csv", load.MarketOptions(**asks), CPU)
    assert chosen.origin() == {"market": "a.csv", "currency": None} | documents
    market_for(TASK, CONFIG, {}).tape(CONFIG, CPU)
    assert asked.pop() == ("neural", load.MarketOptions(features=("rsi_30",), num_paths=32, generator={}), CPU)
    # Of documents what differs from the defaults.
    assert settings(signals, market="a.csv").origin() == {"market": "a.csv", "currency": None}
    # Tasks have markets of their own.
    for task, market in (("stock_trading", "neural"), ("news_signals", "news")):
        assert market_for(task_named(task), task_named(task).config(), {}).market == market
    assert market_for(task_named("execution"), None, {"market": "a.csv"}) == NoMarket()
    # What cannot be is refused.
    first, before = date(2020, 1, 1), date(2019, 1, 1)
    scored = {"config": signals, "market": "a.csv"}
    settings(**scored, embargo=0, score_delay=0, start=first, end=date(2020, 1, 2))
    for values, words in (
        *(({"test_fraction": own}, rf"test_fraction must be in \(0, 1\), got {own}") for own in (0.0, 1.0)),
        *(({name: -1}, f"{name} must not be negative, got -1") for name in ("embargo", "score_delay")),
        ({"currency": "Rs."}, "Rs."),
        ({"market_close": "16:00"}, "16:00"),
        ({"start": first, "end": before}, "start 2020-01-01 must be before end 2019-01-01"),
        ({"train_end": first, "test_start": first}, "train_end 2020-01-01 must be before"),
    ):
        with pytest.raises(ValueError, match=words):
            settings(**scored, **values)


def test_a_task_trades_the_symbols_that_a_model_knows(monkeypatch):
    """Its own symbols where the model knows them all; those named by the user stay as they are."""
    known = {"nse": ("TCS", "RELIANCE", "HDFCBANK", "INFY"), "mine": ("AA", "BB", "CC")}
    monkeypatch.setattr(generator, "load_network", lambda path: None)
    monkeypatch.setattr(generator, "_starts", lambda saved, path: known)
    rules = task_named("multi_stock_3").config()

    def symbols(market="m.safetensors", env=rules, **given):
        record = task_named("multi_stock_3")
        return changed(market_for(record, env, {"market": market}), **given).fitted(record, env).symbols

    assert symbols() == rules.symbols == ("RELIANCE", "INFY", "TCS")
    del known["nse"]
    assert symbols() == ("AA", "BB", "CC") and symbols(symbols=("BB",)) == ("BB",)
    known["mine"] = ("AA", "BB", "CC", "DD", "EE")
    assert symbols() == ("AA", "BB", "CC")
    assert symbols(env=replace(rules, symbols=("XX",))) == ("XX",) and symbols("m.parquet") == rules.symbols


WALK = settings(market="random_walk", num_paths=5, num_days=120)


def made(num_envs: int = 16, every: int = 2):
    """An environment on the first round of paths, and what draws the others."""
    splits = TapeSplits(TASK, WALK, WALK.tape(CONFIG, CPU, HEADROOM))
    env = splits.training(num_envs, CONFIG, False, {})
    return env, FreshPaths(splits, CONFIG, env, every)


@pytest.mark.parametrize("num_envs", [4, 16])
def test_rounds_of_paths_begin_at_fixed_updates(num_envs):
    env, fresh = made(num_envs)
    rounds = [env.scenario.shared["close"].clone()]
    for update in range(5):
        env.rollout(3, break_when_any_done=False)
        running = env.rows.elapsed.clone()
        places = {name: tensor.data_ptr() for name, tensor in env.scenario.shared.items()}
        fresh.before_update(update)
        # In place, so that nothing is compiled anew.
        assert places == {name: tensor.data_ptr() for name, tensor in env.scenario.shared.items()}
        rounds.append(env.scenario.shared["close"].clone())
        assert bool((env.rows.elapsed == 0).all()) == (update in (2, 4))
        assert update in (2, 4) or torch.equal(env.rows.elapsed, running)
    tick = fresh.splits.tape.tick_size
    drawn = [replace(WALK, market_seed=number * SEED_STRIDE, tick_size=tick) for number in range(3)]
    expected = [own.split.training(own.tape(CONFIG, CPU)).price_ticks().flatten(0, 1) for own in drawn]
    assert all(map(torch.equal, rounds, [expected[number] for number in (0, 0, 0, 1, 1, 2)]))
    assert not torch.equal(expected[0], expected[1]) and not torch.equal(expected[1], expected[2])
    # A run that resumes in the middle of a round has its paths, and restarts nothing.
    for update, restarted in ((4, True), (5, False)):
        resumed, again = made(num_envs)
        resumed.rollout(3, break_when_any_done=False)
        assert again.due(update) and not again.due(1)
        again.before_update(update)
        assert torch.equal(resumed.scenario.shared["close"], env.scenario.shared["close"]) and again.round == 2
        assert bool((resumed.rows.elapsed == 0).all()) == restarted


def test_later_rounds_may_have_higher_prices(monkeypatch):
    """All rounds count in one tick; prices up to `HEADROOM` times those of the first fit, higher ones are refused."""
    given = settings_of(
        market="random_walk", symbols=("A", "B"), num_days=120, refresh_every=1, env=CONFIG, device="cpu"
    )
    for tick, expected in ((None, 1e-4), (0.01, 0.01)):
        splits = planning._splits(changed(given, tick_size=tick), CONFIG, Console(quiet=True))
        assert splits.market.tick_size == splits.tape.tick_size == expected
    random_walk, factor = generators.generator_of("random_walk"), [1.0]

    @functools.wraps(random_walk)
    def dearer(**arguments):
        bars = random_walk(**arguments | {"seed": 0})
        return replace(bars, ohlcv=torch.cat([bars.ohlcv[..., :VOLUME] * factor[0], bars.ohlcv[..., VOLUME:]], dim=-1))

    monkeypatch.setitem(generators.GENERATORS, "random_walk", dearer)
    env, fresh = made(every=1)
    bits = env.scenario.tape.price_bits
    highest = float(env.scenario.tape.ohlcv[..., :VOLUME].max()) / env.scenario.tape.tick_size
    factor[0] = 0.99 * 2 ** (bits - 1) / highest
    assert factor[0] >= HEADROOM / 2
    fresh.before_update(1)
    assert float(env.scenario.shared["close"].max()) > 0.5 * 2 ** (bits - 1)
    factor[0] *= 1.1
    with pytest.raises(ValueError, match=r"round 2 .* 2\^\d+ ticks .* tick_size"):
        fresh.before_update(2)
    with pytest.raises(ValueError, match="refresh_every must be at least 1, got 0"):
        changed(given, refresh_every=0)
    with pytest.raises(ValueError, match="the shared tensors: close must be"):
        env.write_shared({**env.scenario.shared, "close": torch.zeros(3)})


def test_new_paths_are_subsets_too(place):
    rules = replace(CONFIG, action="tilt")
    drawn = {"market": "random_walk", "num_paths": 5, "num_days": 120, "symbols": ("A", "B", "C", "D")}
    subsets = {"symbols_per_path": 2, "subsets_per_path": 3, "seed": 6, "validation_fraction": 0.25}
    given = settings_of(**drawn, **subsets, env=rules, device="cpu", compile=False, refresh_every=1)
    splits = parts_of(given)[1].of_seed(6)
    whole, env = splits.part("train"), splits.training(8, rules, False, {})
    assert env.scenario.tape.fingerprint() == symbol_subsets(whole, 2, 3, 6).fingerprint()
    assert (whole.num_paths, env.scenario.tape.num_paths, env.scenario.tape.num_symbols) == (3, 9, 2)
    assert splits.part("validation").num_symbols == splits.part("test").num_symbols == 4
    FreshPaths(splits, rules, env, 1).before_update(1)
    expected = symbol_subsets(replace(splits, drawn_symbols=AllSymbols().of).drawn(1, rules), 2, 3, 6)
    assert torch.equal(env.scenario.shared["close"], expected.price_ticks().flatten(0, 1))
    # Runs without subsets train on the whole tape.
    assert Subsets().of(whole, 0) is whole
    few = settings_on(place, symbols_per_path=4)
    with pytest.raises(ValueError, match="subsets of 4 symbols cannot be drawn: 3 of 3 trade on the training days"):
        few.subsets.of(parts_of(few)[1].part("train"), 0)
