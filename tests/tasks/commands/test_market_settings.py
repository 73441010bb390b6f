"""Markets of the command line: spans, splits, what reaches them, and training paths that are drawn anew."""

import functools
from dataclasses import replace
from datetime import date
from itertools import product

import numpy as np
import pytest
import torch

import vecenv
from tests.tasks.commands.small_runs import settings_on
from vecenv.market import load
from vecenv.market.bars import VOLUME
from vecenv.market.symbol_subsets import symbol_subsets
from vecenv.registry import task_named
from vecenv.tasks.commands import market_settings
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.commands.fresh_paths import HEADROOM, SEED_STRIDE, FreshPaths, first_round
from vecenv.tasks.commands.market_settings import MarketSettings, default_market, market_origin
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.worldmodel.sampling import generator

CONFIG = StockTradingConfig(features=("rsi_30",), episode_length=10, hmax=10)
DAYS = 300


def settings(**values) -> MarketSettings:
    given = {"market": "synthetic", "symbols": ("A", "B"), "num_paths": 1, "num_days": DAYS, "device": "cpu"}
    return MarketSettings(**given | values)


def test_spans_and_paths_of_training_and_test(monkeypatch):
    tape = settings().tape(CONFIG)
    dates, day = tape.dates, [each.astype(date) for each in tape.dates]

    def spans(**values) -> list:
        chosen = settings(**values)
        own = chosen.tape(CONFIG)
        return [edge for part in (chosen.training(own), chosen.test(own)) for edge in (part.dates[0], part.dates[-1])]

    # The last days are the test, after an embargo; dates override the fraction.
    boundary = DAYS - round(0.25 * (DAYS - tape.first_day))
    assert spans(test_fraction=0.25, embargo=7) == [dates[0], dates[boundary - 8], dates[boundary], dates[-1]]
    both = spans(train_end=day[149], test_start=day[200], end=day[250])
    assert both == [dates[0], dates[149], dates[200], dates[250]]
    assert spans(train_end=day[149], embargo=7) == [dates[0], dates[149], dates[157], dates[-1]]
    assert spans(test_start=day[200], embargo=7) == [dates[0], dates[192], dates[200], dates[-1]]
    # A later start keeps the features of the days before.
    late = settings(start=day[100]).tape(CONFIG)
    assert late.dates[0] == dates[100] and late.first_day == 0
    assert np.array_equal(late.features.numpy(), tape.features[:, 100:].numpy())
    # Other paths are the test of a generated market: all days of each; by dates, all paths.
    chosen = settings(num_paths=10, test_fraction=0.25)
    tape = chosen.tape(CONFIG)
    training, test = chosen.training(tape), chosen.test(tape)
    assert (training.num_paths, test.num_paths) == (8, 2)
    for tensor in ("ohlcv", "features", "tradable"):
        parts = [getattr(part, tensor) for part in (training, test)]
        assert np.array_equal(np.concatenate(parts), getattr(tape, tensor).numpy())
    # Dates of real days are refused before anything is drawn.
    monkeypatch.setattr(market_settings, "load_market", None)
    for name, when in product(("start", "end", "train_end", "test_start"), (date(2010, 1, 3), date(2011, 2, 26))):
        with pytest.raises(ValueError, match=f"{name} {when} is outside .* 2010-01-04 to 2011-02-25: give the file"):
            settings(**{name: when}).tape(CONFIG)
    dated = settings(num_paths=10, train_end=tape.dates[200].astype(date))
    assert dated.training(tape).num_paths == dated.test(tape).num_paths == 10


@pytest.mark.parametrize(("num_paths", "validation"), [(8, 0.5), (5, 0.25), (2, 0.25)])
def test_validation_is_split_off_the_training_alone(num_paths, validation):
    given = {"market": "random_walk", "symbols": ("A",), "num_paths": num_paths, "num_days": 120, "device": "cpu"}
    chosen = TrainSettings(env=CONFIG, validation_fraction=validation, **given)
    tape = chosen.tape(CONFIG)
    training, validation, test = chosen.training(tape), chosen.validation(tape), chosen.test(tape)
    whole = MarketSettings(**given).training(tape)
    assert training.num_paths + validation.num_paths == whole.num_paths + (whole.num_paths == 1)
    assert training.num_paths < whole.num_paths or training.dates[-1] < validation.dates[validation.first_day]
    assert not torch.equal(validation.price_ticks()[0, -1, 0], test.price_ticks()[0, -1, 0])
    if whole.num_paths > 1:
        assert torch.equal(chosen.training_alone(CONFIG).price_ticks(), training.price_ticks())
    assert TrainSettings(env=CONFIG, **given).validation(tape) is None


@pytest.mark.parametrize("market", ["synthetic", "planted", "random_walk"])
@pytest.mark.parametrize("split", [{}, {"num_paths": 1}, {"train_end": date(2010, 12, 1)}, {"test_fraction": 0.9}])
def test_paths_of_training_alone_are_those_of_the_whole_market(market, split):
    chosen = settings(**{"market": market, "num_paths": 7, "tick_size": 0.01} | split)
    alone, expected = chosen.training_alone(CONFIG), chosen.training(chosen.tape(CONFIG))
    assert alone.fingerprint() == expected.fingerprint() and alone.num_paths == expected.num_paths


def test_all_settings_reach_the_market_or_are_refused(monkeypatch):
    asked = []
    monkeypatch.setattr(market_settings, "load_market", lambda *given: asked.append(given))
    made = {"context_market": "v.csv", "num_paths": 3, "num_days": 300, "tick_size": 0.5, "currency": "USD"}
    documents = {"score_delay": 3, "market_close": "15:30 Asia/Kolkata", "early_closes": "e.csv"}
    drawn = {"history": "h.csv", "temperature": 0.5, "regime": "bull"}
    planted = {"planted_kind": "reversal", "planted_strength": 0.002, "news_coverage": 0.5, "news_accuracy": 0.25}
    own = {"symbols": ("A",), "market_seed": 4, "scores": ("s.csv",), "news": "n.csv"}
    chosen = settings(**made, **documents, **own, **drawn, **planted, history_end=date(2020, 1, 2))
    generator = drawn | {"history_end": "2020-01-02"}
    generator |= {name.partition("_")[2]: value for name, value in planted.items()}
    documents |= {"score_files": ("s.csv",), "text_file": "n.csv"}
    asks = made | documents | {"symbols": ("A",), "features": ("rsi_30",), "context": ("turbulence",)}
    options = load.MarketOptions(**asks, seed=4, generator=generator, headroom=2.0)
    chosen.tape(replace(CONFIG, gate="turbulence"), 2.0)
    chosen.tape(SignalsConfig(features=()))
    MarketSettings(device="cpu").tape(CONFIG)
    device = torch.device("cpu")
    assert asked[0] == ("synthetic", options, device)
    assert asked[1] == ("synthetic", replace(options, features=(), context=(), headroom=1.0, scores=True), device)
    assert asked[2] == ("neural", load.MarketOptions(features=("rsi_30",), num_paths=32, generator={}), device)
    plain = {"market": "synthetic", "seed": 4, "generator": generator, "context_market": "v.csv", "currency": "USD"}
    assert market_origin(chosen) == plain | documents | {"num_paths": 3, "num_days": 300}
    # Of documents what differs from the defaults.
    assert not {"score_files", "text_file", "score_delay", "market_close"} & market_origin(MarketSettings()).keys()
    # Tasks have markets of their own.
    markets = [default_market(task) for task in ("stock_trading", "news_signals", "execution")]
    assert markets == ["neural", "news", "neural"]
    # What cannot be is refused.
    first, before = date(2020, 1, 1), date(2019, 1, 1)
    settings(embargo=0, score_delay=0, start=first, end=date(2020, 1, 2))
    for values, words in (
        *(({"test_fraction": own}, rf"test_fraction must be in \(0, 1\), got {own}") for own in (0.0, 1.0)),
        *(({name: -1}, f"{name} must not be negative, got -1") for name in ("embargo", "score_delay")),
        ({"currency": "Rs."}, "Rs."),
        ({"market_close": "16:00"}, "16:00"),
        ({"start": first, "end": before}, "start 2020-01-01 must be before end 2019-01-01"),
        ({"train_end": first, "test_start": first}, "train_end 2020-01-01 must be before"),
    ):
        with pytest.raises(ValueError, match=words):
            settings(**values)


def test_a_task_trades_the_symbols_that_a_model_knows(monkeypatch):
    """Its own symbols where the model knows them all; those named by the user stay as they are."""
    known = {"nse": ("TCS", "RELIANCE", "HDFCBANK", "INFY"), "mine": ("AA", "BB", "CC")}
    monkeypatch.setattr(generator, "load_network", lambda path: None)
    monkeypatch.setattr(generator, "_starts", lambda saved, path: known)
    rules = task_named("multi_stock_3").config()

    def symbols(market="m.safetensors", env=rules, **given):
        return EvaluateSettings(market=market, task="multi_stock_3", env=env, **given).with_symbols(env).symbols

    assert symbols() == rules.symbols == ("RELIANCE", "INFY", "TCS")
    del known["nse"]
    assert symbols() == ("AA", "BB", "CC") and symbols(symbols=("BB",)) == ("BB",)
    known["mine"] = ("AA", "BB", "CC", "DD", "EE")
    assert symbols() == ("AA", "BB", "CC")
    assert symbols(env=replace(rules, symbols=("XX",))) == ("XX",) and symbols("m.parquet") == rules.symbols


WALK = MarketSettings(market="random_walk", symbols=("A", "B"), num_paths=5, num_days=120, device="cpu")


def made(num_envs: int = 16, every: int = 2):
    """An environment on the first round of paths, and what draws the others."""
    own, tape = first_round(WALK, CONFIG)
    env = vecenv.make("stock_trading", num_envs, market=own.training(tape), compile=False, config=CONFIG)
    return env, FreshPaths(own, CONFIG, env, every)


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
    drawn = [replace(fresh.settings, market_seed=number * SEED_STRIDE) for number in range(3)]
    expected = [own.training(own.tape(CONFIG)).price_ticks().flatten(0, 1) for own in drawn]
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
    own, tape = first_round(WALK, CONFIG)
    assert own.tick_size == tape.tick_size == WALK.tape(CONFIG).tick_size == 1e-4
    assert first_round(replace(WALK, tick_size=0.01), CONFIG)[0].tick_size == 0.01
    random_walk, factor = load.generator_of("random_walk"), [1.0]

    @functools.wraps(random_walk)
    def dearer(**arguments):
        bars = random_walk(**arguments | {"seed": 0})
        return replace(bars, ohlcv=torch.cat([bars.ohlcv[..., :VOLUME] * factor[0], bars.ohlcv[..., VOLUME:]], dim=-1))

    monkeypatch.setitem(load.GENERATORS, "random_walk", dearer)
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
        FreshPaths(fresh.settings, CONFIG, env, 0)
    with pytest.raises(ValueError, match=r"bars.parquet: only the paths of a generated market can be refreshed"):
        FreshPaths(replace(fresh.settings, market="bars.parquet"), CONFIG, env, 1)
    with pytest.raises(ValueError, match="the shared tensors: close must be"):
        env.write_shared({**env.scenario.shared, "close": torch.zeros(3)})


def test_new_paths_are_subsets_too(place):
    rules = replace(CONFIG, action="tilt")
    drawn = {"market": "random_walk", "num_paths": 5, "num_days": 120, "symbols": ("A", "B", "C", "D")}
    subsets = {"symbols_per_path": 2, "subsets_per_path": 3, "seed": 6, "validation_fraction": 0.25}
    given = TrainSettings(**drawn, **subsets, env=rules, device="cpu", compile=False)
    own, tape = first_round(given, rules)
    whole = own.training(tape)
    env = vecenv.make("stock_trading", 8, market=own.subsets(whole), compile=False, config=rules)
    assert env.scenario.tape.fingerprint() == symbol_subsets(whole, 2, 3, 6).fingerprint()
    assert (whole.num_paths, env.scenario.tape.num_paths, env.scenario.tape.num_symbols) == (3, 9, 2)
    assert own.validation(tape).num_symbols == own.test(tape).num_symbols == 4
    FreshPaths(own, rules, env, 1).before_update(1)
    other = replace(own, symbols_per_path=None, market_seed=own.market_seed + (1 << 40))
    expected = symbol_subsets(other.training_alone(rules), 2, 3, 6)
    assert torch.equal(env.scenario.shared["close"], expected.price_ticks().flatten(0, 1))
    # Runs without subsets train on the whole tape.
    assert other.subsets(whole) is whole
    few = settings_on(place, symbols_per_path=4)
    with pytest.raises(ValueError, match="subsets of 4 symbols cannot be drawn: 3 of 3 trade on the training days"):
        few.subsets(few.training(few.tape(few.env)))
