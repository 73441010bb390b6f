"""Generated markets by name or by file: what makes a past, which symbols are known, and where real history leads."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import vecenv
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.state_indicators import TIER_FEATURES
from vecenv.market.synthetic import business_days, synthetic_bars
from vecenv.worldmodel.data.bar_moves import encode_bars
from vecenv.worldmodel.network.checkpoint import load_network, save_network
from vecenv.worldmodel.network.market_network import DRIFT_SIZES, MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling import generator, stationary
from vecenv.worldmodel.sampling.generator import PathOptions, draw_paths
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stationary import PASTS, WARM_UP, StationaryStart
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training import drift
from vecenv.worldmodel.training.calibration import calibrate

KNOWN = ("AA", "BB", "CC")
BURN_IN = 5
"""Fewer days than are dropped for the weights that are shipped."""


def training_market(name: str, symbols: tuple[str, ...], seed: int) -> TrainingMarket:
    bars = synthetic_bars(1, 330, symbols, seed=seed)
    return TrainingMarket.from_bars(name, bars, Split(300, 310, 330))


@pytest.fixture(scope="module")
def first() -> TrainingMarket:
    return training_market("one", (*KNOWN, "LATE"), 1)


@pytest.fixture(scope="module")
def model(first, tmp_path_factory):
    """A checkpoint of random weights that knows two markets; the last symbol of the first was hardly trained on."""
    torch.manual_seed(0)
    trunk = TransformerSettings(layers=2, width=16, heads=2, hidden=32, window=8, dropout=0.0)
    network = MarketNetwork(NetworkSettings(trunk=trunk, head=16, markets=("one", "two"))).requires_grad_(False)
    late = first.encoded.valid.clone()
    late[:, :200, 3] = False
    markets = [
        replace(first, encoded=first.encoded._replace(valid=late)),
        training_market("two", ("DD", "EE"), 2),
    ]
    record = {"sources": {"one": {"symbols": [*KNOWN, "LATE"]}, "two": {"symbols": ["DD", "EE"]}}}
    path = tmp_path_factory.mktemp("model") / "small.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stationary, "BURN_IN", BURN_IN)
        patch.setattr(drift, "EFFORTS", {size: drift.Effort(starts=4, pairs=32) for size in DRIFT_SIZES})
        symbols = {name: source["symbols"] for name, source in record["sources"].items()}
        starts, tensors = calibrate(network, markets, symbols, lambda part: nullcontext(lambda share: None))
    save_network(path, network, record | {"starts": starts}, tensors)
    return path


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Real bars of the known symbols, of which one has a hole."""
    bars = synthetic_bars(1, 420, KNOWN, seed=3)
    ohlcv = bars.ohlcv[0].clone()
    ohlcv[300, 1] = float("nan")
    rows = [
        pd.DataFrame(ohlcv[:, k].numpy(), columns=["open", "high", "low", "close", "volume"]).assign(
            date=bars.dates.astype("datetime64[ns]"), symbol=name
        )
        for k, name in enumerate(KNOWN)
    ]
    path = tmp_path_factory.mktemp("history") / "bars.parquet"
    pd.concat(rows).dropna().to_parquet(path)
    return path, replace(bars, ohlcv=ohlcv[None])


@pytest.mark.nightly
def test_every_market_of_a_checkpoint_has_its_drift(model):
    assert bool(load_network(model).network.drifts.all())


@pytest.mark.nightly
def test_a_path_has_a_past_that_nobody_trades(model):
    bars = draw_paths(model, PathOptions(3, WARM_UP + 5))
    assert bars.symbols == KNOWN and bars.ohlcv.shape == (3, WARM_UP + 5, 3, 5) and bars.warm_up == WARM_UP
    tape = load_market(model, MarketOptions(features=TIER_FEATURES, num_paths=3, num_days=WARM_UP + 5))
    assert tape.first_day == WARM_UP
    assert not bool(tape.tradable[:, :WARM_UP].any()) and bool(tape.tradable[:, WARM_UP:].all())


@pytest.mark.assembly
def test_pasts_are_few_and_paths_are_many(model):
    """Paths choose among the pasts by their number and the seed, and each goes on in its own way."""
    bars = draw_paths(model, PathOptions(40, WARM_UP + 2, seed=5))
    assert 2 < len(bars.ohlcv[:, WARM_UP - 1, 0, CLOSE].unique()) <= PASTS
    assert len(bars.ohlcv[:, WARM_UP, 0, CLOSE].unique()) == 40
    assert torch.equal(draw_paths(model, PathOptions(2, WARM_UP + 1, seed=5)).ohlcv, bars.ohlcv[:2, : WARM_UP + 1])
    assert not torch.equal(draw_paths(model, PathOptions(2, WARM_UP + 1, seed=6)).ohlcv, bars.ohlcv[:2, : WARM_UP + 1])


def test_a_path_goes_on_from_the_past_it_is_shown(model):
    """Drawing from that past alone gives the same law: the trunk has read the same days, and levels join."""
    saved = load_network(model)
    market = NeuralMarket(saved.network, "one")
    start = StationaryStart.from_tensors(saved.extra, "one")
    pasts = start.bars(KNOWN)
    bars = draw_paths(model, PathOptions(6, WARM_UP + 1, seed=2))
    for path in range(6):
        same = (pasts.ohlcv == bars.ohlcv[path, :WARM_UP]).flatten(1).all(1).nonzero().squeeze(-1)
        assert len(same) == 1
        alone = replace(pasts, ohlcv=pasts.ohlcv[same])
        drawn = market.draw_after(market.starts(alone, start.correlation), 6, 1, seed=2)
        assert torch.allclose(drawn[path], bars.ohlcv[path, WARM_UP:], rtol=1e-4)


def test_what_is_learned_of_a_market_is_its_mean(first):
    names, start = StationaryStart.learn(first, (*KNOWN, "LATE"))
    assert names == (*KNOWN, "LATE")
    close = synthetic_bars(1, 330, (*KNOWN, "LATE"), seed=1).ohlcv[0, :300, :, CLOSE].log()
    # The level before each of the 299 days with a return.
    assert torch.allclose(start.log_close.double(), close[:-1].mean(0), atol=1e-5)
    assert torch.allclose(start.variance.double(), close.diff(dim=0).square().mean(0), rtol=1e-4)
    assert torch.allclose(start.correlation.diagonal(dim1=1, dim2=2), torch.ones(4, 4), atol=1e-5)
    assert float(torch.linalg.eigvalsh(start.correlation).min()) > 0


def test_a_symbol_that_was_hardly_trained_on_is_not_known(model):
    with pytest.raises(ValueError, match=r"has not seen LATE; it knows one: AA, BB, CC; two: DD, EE$"):
        draw_paths(model, PathOptions(1, WARM_UP + 1, ["AA", "LATE"]))


@pytest.mark.assembly
def test_the_warm_up_survives_halves(model, monkeypatch):
    """Days are kept as float16 moves: bars read from them are valid and within a thousandth of those drawn."""
    saved = load_network(model)
    start = StationaryStart.from_tensors(saved.extra, "one")
    assert start.warm_up.dtype == torch.float16 and start.warm_up.shape == (PASTS, WARM_UP, 3, 5)
    drawn = []
    draw_after = NeuralMarket.draw_after
    monkeypatch.setattr(stationary, "BURN_IN", BURN_IN)
    monkeypatch.setattr(NeuralMarket, "draw_after", lambda *given: drawn.append(draw_after(*given)) or drawn[0])
    again = start.with_warm_up(NeuralMarket(saved.network, "one"))
    assert torch.equal(again.warm_up, start.warm_up)
    returns = drawn[0][:, BURN_IN - 1 :, :, CLOSE].log().diff(dim=1)
    kept = again.bars(KNOWN).ohlcv[..., CLOSE].log()
    assert torch.allclose(kept.diff(dim=1), returns[:, 1:], atol=1e-3)
    assert bool(encode_bars(again.bars(KNOWN).ohlcv).valid[:, 1:].all())


def test_symbols_choose_the_market(model):
    assert draw_paths(model, PathOptions(1, WARM_UP + 1, ["EE", "DD"])).symbols == ("EE", "DD")
    assert draw_paths(model, PathOptions(1, WARM_UP + 1, 2)).symbols == ("AA", "BB")
    assert draw_paths(model, PathOptions(1, WARM_UP + 1, market="two")).symbols == ("DD", "EE")
    swapped = draw_paths(model, PathOptions(1, WARM_UP + 1, ["BB", "AA"]))
    straight = draw_paths(model, PathOptions(1, WARM_UP + 1, ["AA", "BB"]))
    # The pasts are the symbols' own, whatever their order.
    assert torch.equal(swapped.ohlcv[:, :WARM_UP].flip(2), straight.ohlcv[:, :WARM_UP])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"num_days": WARM_UP}, f"more than the warm-up of {WARM_UP} days"),
        ({"symbols": ["AA", "DD"]}, "knows no market of AA, DD together"),
        ({"symbols": ["AA", "AA"]}, "repeated symbols: AA"),
        ({"symbols": 4}, "knows 3 symbols of one, not 4"),
        ({"market": "mars"}, "no start of a market 'mars'; it knows one, two"),
        ({"market": "two", "symbols": ["AA"]}, "has not seen AA; it knows two: DD, EE"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"regime": "boom"}, "unknown regime 'boom', expected one of bull, bear, sideways, crisis"),
        ({"history_end": "2011-01-01"}, "none is given"),
        ({"num_paths": 0}, "num_paths must be at least 1"),
    ],
)
def test_bad_requests_are_named(model, given, told):
    with pytest.raises(ValueError, match=told):
        draw_paths(model, PathOptions(**{"num_paths": 1, "num_days": WARM_UP + 1, **given}))


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_paths_in_bfloat16_are_near_those_in_float32(model, history, monkeypatch, capability):
    """With and without a history; a CPU that emulates the products is told of."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for options in (PathOptions(2, WARM_UP + 3), PathOptions(2, WARM_UP + 3, history=history[0])):
        exact = draw_paths(model, options).ohlcv
        with pytest.warns(UserWarning, match="bf16: this CPU") if capability == "AVX2" else nullcontext():
            halved = draw_paths(model, replace(options, bf16=True)).ohlcv
        assert torch.equal(halved[:, :WARM_UP], exact[:, :WARM_UP])
        moved = (halved[:, WARM_UP:, :, CLOSE] / exact[:, WARM_UP:, :, CLOSE]).log().abs()
        assert 0 < float(moved.max()) < 0.005


def test_a_chosen_date_of_real_history(model, history):
    """The past is the last real days up to it, and the first generated close follows the real one."""
    file, real = history
    end = real.dates[280]
    bars = draw_paths(model, PathOptions(3, WARM_UP + 2, history=file, history_end=str(end)))
    past = real.ohlcv[0, 281 - WARM_UP : 281]
    assert torch.allclose(bars.ohlcv[:, :WARM_UP], past.expand(3, -1, -1, -1))
    jump = (bars.ohlcv[:, WARM_UP, :, CLOSE] / past[-1, :, CLOSE]).log()
    assert float(jump.abs().max()) < 0.7 and len(jump.unique()) == 9


def test_the_currency_is_that_of_the_history_or_of_what_was_learned(model, history, tmp_path, monkeypatch):
    file, _ = history
    assert draw_paths(model, PathOptions(1, WARM_UP + 1)).currency is None
    pd.read_parquet(file).assign(currency="EUR").to_parquet(tmp_path / "euros.parquet")
    assert draw_paths(model, PathOptions(1, WARM_UP + 1, history=tmp_path / "euros.parquet")).currency == "EUR"
    saved = load_network(model)
    told = saved._replace(record=saved.record | {"sources": {"one": {"currency": "JPY"}, "two": {}}})
    monkeypatch.setattr(generator, "load_network", lambda *_: told)
    assert draw_paths(model, PathOptions(1, WARM_UP + 1)).currency == "JPY"
    assert draw_paths(model, PathOptions(1, WARM_UP + 1, history=tmp_path / "euros.parquet")).currency == "EUR"
    assert draw_paths(model, PathOptions(1, WARM_UP + 1, ["DD"])).currency is None


def test_the_shipped_weights_know_their_currencies():
    saved = load_network(generator.WEIGHTS)
    markets = saved.network.settings.markets
    assert {name: generator._currency(saved, generator.WEIGHTS, name) for name in markets} == {
        "india": "INR",
        "us": "USD",
    }


@pytest.mark.assembly
def test_default_symbols_of_a_task_give_way_to_those_of_the_model(model):
    """As many as the task has; those that the task is given are refused, and known ones stay."""
    options = {"num_paths": 2, "num_days": WARM_UP + 40}
    portfolio = vecenv.make("portfolio", market=model, market_options=options, compile=False)
    assert portfolio.scenario.tape.symbols == KNOWN and portfolio.scenario.config.symbols == KNOWN
    single = vecenv.make("single_stock", market=model, market_options=options, compile=False)
    assert single.scenario.tape.symbols == KNOWN[:1]
    with pytest.raises(ValueError, match="has not seen TCS"):
        vecenv.make("portfolio", market=model, market_options=options, symbols=("AA", "TCS"))
    assert generator.model_symbols(model, ("CC", "AA")) == ("CC", "AA")
    assert generator.model_symbols(model, ("EE",)) == ("EE",)
    assert generator.model_symbols(model, ("EE", "AA")) == KNOWN[:2]
    assert vecenv.make("portfolio", market="neural", market_options=options).scenario.config.symbols[0] == "RELIANCE"


def test_random_dates_of_real_history(model, history):
    """Every past is a stretch of whole real days, skipping the one with a hole; several are chosen."""
    file, real = history
    bars = draw_paths(model, PathOptions(20, WARM_UP + 1, history=file, seed=1))
    whole = real.ohlcv[0][real.listed[0].all(-1)]
    ends = set()
    for past in bars.ohlcv[:, :WARM_UP]:
        at = int(torch.isclose(whole, past[-1]).flatten(1).all(1).nonzero())
        assert torch.allclose(past, whole[at + 1 - WARM_UP : at + 1])
        ends.add(at)
    assert len(ends) > 3
    assert torch.equal(bars.ohlcv, draw_paths(model, PathOptions(20, WARM_UP + 1, history=file, seed=1)).ohlcv)


def test_no_later_real_day_is_read(model, history, tmp_path):
    file, real = history
    table = pd.read_parquet(file)
    end = str(real.dates[300])
    cut = tmp_path / "cut.parquet"
    table[table["date"] <= pd.Timestamp(str(real.dates[310]))].to_parquet(cut)
    for day in (280, 310):
        end = str(real.dates[day])
        one, other = (
            draw_paths(model, PathOptions(2, WARM_UP + 2, history=each, history_end=end)) for each in (file, cut)
        )
        assert torch.equal(one.ohlcv, other.ohlcv)


@pytest.mark.parametrize("day", [100, 300])
def test_too_little_history_is_named(model, history, day):
    """Too early a date, or one on which a symbol has no bar."""
    file, real = history
    with pytest.raises(
        ValueError, match=f"after {WARM_UP} such days; there is none on its last day, {real.dates[day]}"
    ):
        draw_paths(model, PathOptions(1, WARM_UP + 1, history=file, history_end=str(real.dates[day])))


@pytest.mark.nightly
def test_regimes_are_the_most_typical_of_several_draws(model):
    plain = draw_paths(model, PathOptions(16, WARM_UP + 20, seed=4))

    def market(bars: Bars) -> torch.Tensor:
        return bars.ohlcv[:, WARM_UP - 1 :, :, CLOSE].log().diff(dim=1).mean(-1)

    kinds = {
        name: market(draw_paths(model, PathOptions(16, WARM_UP + 20, seed=4, regime=name)))
        for name in generator.REGIMES
    }
    kinds["plain"] = market(plain)
    mean = {name: float(returns.mean(1).mean()) for name, returns in kinds.items()}
    size = {name: float(returns.mean(1).abs().mean()) for name, returns in kinds.items()}
    deviation = {name: float(returns.std(1).mean()) for name, returns in kinds.items()}
    assert mean["bear"] < mean["plain"] < mean["bull"]
    assert size["sideways"] < size["plain"]
    assert deviation["sideways"] < deviation["crisis"] and deviation["plain"] < deviation["crisis"]
    few = draw_paths(model, PathOptions(2, WARM_UP + 20, seed=4, regime="bull"))
    assert torch.equal(market(few), kinds["bull"][:2])


def test_one_switch_in_make(model):
    """The environment's code cannot tell: only ``market`` changes."""
    options = {"num_paths": 2, "num_days": WARM_UP + 12}
    env = vecenv.make("stock_trading", 4, market=str(model), compile=False, market_options=options, episode_length=10)
    assert env.rollout(3).shape == (4, 3)
    assert np.array_equal(env.scenario.tape.dates, business_days(WARM_UP + 12))
    with pytest.raises(ValueError, match="takes no strength"):
        load_market(model, MarketOptions(generator={"strength": 0.1}))
    with pytest.raises(ValueError, match="takes no start"):
        load_market(model, MarketOptions(start="2011-01-01"))
    with pytest.raises(ValueError, match="takes no history"):
        load_market("random_walk", MarketOptions(generator={"history": "bars.csv"}))
