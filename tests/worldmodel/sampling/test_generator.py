"""Generated markets by name or by file: what makes a past, which symbols are known, and where real history leads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vecenv
from tests.worldmodel.neural_market import BURN_IN, KNOWN, started_market, write_market
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.synthetic import business_days, synthetic_bars
from vecenv.worldmodel.data.bar_moves import encode_bars
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.named_weights import JUDGED
from vecenv.worldmodel.sampling import generator, stationary
from vecenv.worldmodel.sampling.generator import PathOptions, draw_paths
from vecenv.worldmodel.sampling.judged import judged_model
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stationary import PASTS, WARM_UP, StationaryStart


@pytest.fixture(scope="module")
def real() -> Bars:
    """Real bars of the known symbols, of which one has a hole."""
    bars = replace(synthetic_bars(1, 420, KNOWN, seed=3), currency="EUR")
    bars.ohlcv[0, 300, 1] = float("nan")
    return bars


@pytest.fixture(scope="module")
def file(real, tmp_path_factory) -> Path:
    return write_market(tmp_path_factory.mktemp("history") / "bars.parquet", real)


def test_a_path_goes_on_from_a_past_that_nobody_trades(started_model):
    """Pasts are few and paths are many, which choose by their number and the seed; each goes on in its own way."""
    bars = draw_paths(started_model, PathOptions(40, WARM_UP + 2, seed=5))
    assert bars.symbols == KNOWN and bars.ohlcv.shape == (40, WARM_UP + 2, 3, 5) and bars.warm_up == WARM_UP
    assert 2 < len(bars.ohlcv[:, WARM_UP - 1, 0, CLOSE].unique()) <= PASTS
    assert len(bars.ohlcv[:, WARM_UP, 0, CLOSE].unique()) == 40
    few, other = (draw_paths(started_model, PathOptions(2, WARM_UP + 1, seed=seed)).ohlcv for seed in (5, 6))
    assert torch.equal(few, bars.ohlcv[:2, : WARM_UP + 1]) and not torch.equal(few, other)
    # Drawing from that past alone gives the same law: the trunk has read the same days, and levels join.
    saved = load_network(started_model)
    market, start = NeuralMarket(saved.network, "one"), StationaryStart.from_tensors(saved.extra, "one")
    pasts = start.bars(KNOWN)
    for path in range(2):
        (same,) = (pasts.ohlcv == few[path, :WARM_UP]).flatten(1).all(1).nonzero()
        alone = replace(pasts, ohlcv=pasts.ohlcv[same])
        drawn = market.draw_after(market.starts(alone, start.correlation), 2, 1, seed=5)
        assert torch.allclose(drawn[path], few[path, WARM_UP:], rtol=1e-4)


def test_what_is_learned_of_a_market_is_its_mean():
    market = started_market("one", (*KNOWN, "LATE"), 1)
    market.encoded.valid[0, :180, 3], market.encoded.valid[0, :181, 2] = False, False
    names, start = StationaryStart.learn(market, (*KNOWN, "LATE"))
    # A hundred and twenty days with a return are enough, a day less is not.
    assert names == ("AA", "BB", "LATE")
    bars = synthetic_bars(1, 330, (*KNOWN, "LATE"), seed=1).ohlcv[0, :300, :2]
    # The level before each of the 299 days with a return.
    assert torch.allclose(start.log_close[:2].double(), bars[:-1, :, CLOSE].log().mean(0), atol=1e-5)
    square = bars[..., CLOSE].log().diff(dim=0).square().mean(0)
    assert torch.allclose(start.variance[:2].double(), square, rtol=1e-4)
    level = market.encoded.before.volume_level[0, 1:300, 0].mean()
    assert float(start.volume_level[0]) == pytest.approx(float(level), rel=1e-6)
    assert torch.allclose(start.correlation.diagonal(dim1=1, dim2=2), torch.ones(4, 3), atol=1e-5)
    assert float(torch.linalg.eigvalsh(start.correlation).min()) > 0


def test_the_warm_up_survives_halves(started_model, monkeypatch):
    """Days are kept as float16 moves: bars read from them are valid and within a thousandth of those drawn."""
    saved, drawn, draw_after = load_network(started_model), [], NeuralMarket.draw_after
    start = StationaryStart.from_tensors(saved.extra, "one")
    assert start.warm_up.dtype == torch.float16 and start.warm_up.shape == (PASTS, WARM_UP, 3, 5)
    monkeypatch.setattr(stationary, "BURN_IN", BURN_IN)
    monkeypatch.setattr(NeuralMarket, "draw_after", lambda *given: drawn.append(draw_after(*given)) or drawn[0])
    again = start.with_warm_up(NeuralMarket(saved.network, "one"))
    assert torch.equal(again.warm_up, start.warm_up)
    returns = drawn[0][:, BURN_IN - 1 :, :, CLOSE].log().diff(dim=1)
    kept = again.bars(KNOWN).ohlcv[..., CLOSE].log()
    assert torch.allclose(kept.diff(dim=1), returns[:, 1:], atol=1e-3)
    assert bool(encode_bars(again.bars(KNOWN).ohlcv).valid[:, 1:].all())


def test_symbols_choose_the_market(started_model):
    def drawn(*given, **more):
        return draw_paths(started_model, PathOptions(1, WARM_UP + 1, *given, **more))

    assert drawn(["EE", "DD"]).symbols == ("EE", "DD") and drawn(2).symbols == ("AA", "BB")
    assert drawn(market="two").symbols == ("DD", "EE")
    # The pasts are the symbols' own, whatever their order.
    assert torch.equal(drawn(["BB", "AA"]).ohlcv[:, :WARM_UP].flip(2), drawn(["AA", "BB"]).ohlcv[:, :WARM_UP])
    for wanted, found in ((("CC", "AA"), ("CC", "AA")), (("EE",), ("EE",)), (("EE", "AA"), KNOWN[:2])):
        assert generator.model_symbols(started_model, wanted) == found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"num_days": WARM_UP}, f"more than the warm-up of {WARM_UP} days"),
        ({"symbols": ["AA", "DD"]}, "knows no market of AA, DD together"),
        ({"symbols": ["AA", "AA"]}, "repeated symbols: AA"),
        ({"symbols": 4}, "knows 3 symbols of one, not 4"),
        ({"symbols": 0}, "knows 3 symbols of one, not 0"),
        ({"symbols": ["AA", "LATE"]}, r"has not seen LATE; it knows one: AA, BB, CC; two: DD, EE$"),
        ({"market": "mars"}, "no start of a market 'mars'; it knows one, two"),
        ({"market": "two", "symbols": ["AA"]}, "has not seen AA; it knows two: DD, EE"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"regime": "boom"}, "unknown regime 'boom', expected one of bull, bear, sideways, crisis"),
        ({"history_end": "2011-01-01"}, "none is given"),
        ({"num_paths": 0}, "num_paths must be at least 1"),
    ],
)
def test_bad_requests_are_named(started_model, given, told):
    with pytest.raises(ValueError, match=told):
        draw_paths(started_model, PathOptions(**{"num_paths": 1, "num_days": WARM_UP + 1, **given}))


def test_a_chosen_date_of_real_history(started_model, real, file, tmp_path):
    """The past is the last real days up to it, and later ones are not read."""
    cut = write_market(tmp_path / "cut.parquet", real.days(0, 311))
    for day in (280, 310):
        options = PathOptions(3, WARM_UP + 2, history=file, history_end=str(real.dates[day]))
        bars = draw_paths(started_model, options)
        assert torch.equal(bars.ohlcv, draw_paths(started_model, replace(options, history=cut)).ohlcv)
        past = real.ohlcv[0, : day + 1][real.listed[0, : day + 1].all(-1)][-WARM_UP:]
        assert torch.allclose(bars.ohlcv[:, :WARM_UP], past.expand(3, -1, -1, -1))
        jump = (bars.ohlcv[:, WARM_UP, :, CLOSE] / past[-1, :, CLOSE]).log()
        assert float(jump.abs().max()) < 0.7 and len(jump.unique()) == 9
    # Too early a date, or one on which a symbol has no bar.
    for day in (WARM_UP - 2, 300):
        told = f"after {WARM_UP} such days; there is none on its last day, {real.dates[day]}"
        with pytest.raises(ValueError, match=told):
            draw_paths(started_model, replace(options, history_end=str(real.dates[day])))


def test_random_dates_of_real_history(started_model, real, file):
    """Every past is a stretch of whole real days, skipping the one with a hole; several are chosen."""
    options = PathOptions(20, WARM_UP + 1, history=file, seed=1)
    bars, whole, ends = draw_paths(started_model, options), real.ohlcv[0][real.listed[0].all(-1)], set()
    for past in bars.ohlcv[:, :WARM_UP]:
        at = int(torch.isclose(whole, past[-1]).flatten(1).all(1).nonzero())
        assert torch.allclose(past, whole[at + 1 - WARM_UP : at + 1])
        ends.add(at)
    assert len(ends) > 3 and torch.equal(bars.ohlcv, draw_paths(started_model, options).ohlcv)


def test_the_currency_is_that_of_the_history_or_of_what_was_learned(started_model, file, monkeypatch):
    plain, after = PathOptions(1, WARM_UP + 1), PathOptions(1, WARM_UP + 1, history=file)
    saved = load_network(started_model)
    told = saved._replace(record=saved.record | {"sources": {"one": {"currency": "JPY"}, "two": {}}})
    for known, learned in ((saved, None), (told, "JPY")):
        monkeypatch.setattr(generator, "load_network", lambda *_, known=known: known)
        found = [draw_paths(started_model, each).currency for each in (plain, after, replace(plain, symbols=["DD"]))]
        assert found == [learned, "EUR", None]
    shipped = load_network(generator.WEIGHTS)
    assert [generator._currency(shipped, generator.WEIGHTS, name) for name in ("india", "us")] == ["INR", "USD"]


def test_regimes_are_the_most_typical_of_several_draws(started_model):
    """Scores by hand; and every path is the candidate of the highest one, whatever the number of paths."""
    mean, deviation = torch.tensor([0.3, -0.2]), torch.tensor([1.0, 2.0])
    expected = {"bull": [0.3, -0.2], "bear": [-0.3, 0.2], "sideways": [-0.4, -0.4], "crisis": [0.7, 2.2]}
    for name, scores in expected.items():
        assert generator.REGIMES[name](mean, deviation).tolist() == pytest.approx(scores)

    def returns_of(options):
        return draw_paths(started_model, options).ohlcv[:, WARM_UP - 1 :, :, CLOSE].log().diff(dim=1).mean(-1)

    options = PathOptions(16, WARM_UP + 5, seed=4)
    candidates = returns_of(options).unflatten(0, (2, 8))
    for regime, score in generator.REGIMES.items():
        chosen = score(candidates.mean(2), candidates.std(2)).argmax(1)
        found = returns_of(replace(options, num_paths=2, regime=regime))
        assert torch.equal(found, candidates[torch.arange(2), chosen])


def test_one_switch_in_make(started_model):
    """The environment's code cannot tell: only ``market`` changes, also by default symbols of a task."""
    options = {"num_paths": 2, "num_days": WARM_UP + 12}
    words = {"market": str(started_model), "market_options": options, "compile": False}
    env = vecenv.make("stock_trading", 4, episode_length=10, **words)
    assert env.rollout(3).shape == (4, 3)
    tape = env.scenario.tape
    assert np.array_equal(tape.dates, business_days(WARM_UP + 12)) and tape.first_day == WARM_UP
    assert not bool(tape.tradable[:, :WARM_UP].any()) and bool(tape.tradable[:, WARM_UP:].all())
    for given, told in (
        ((started_model, MarketOptions(generator={"strength": 0.1})), "takes no strength"),
        ((started_model, MarketOptions(start="2011-01-01")), "takes no start"),
        (("random_walk", MarketOptions(generator={"history": "bars.csv"})), "takes no history"),
    ):
        with pytest.raises(ValueError, match=told):
            load_market(*given)


@pytest.mark.assembly
def test_default_symbols_of_a_task_give_way_to_those_of_the_model(started_model):
    """As many as the task has; those that the task is given are refused, and known ones stay."""
    options = {"num_paths": 2, "num_days": WARM_UP + 40}
    portfolio = vecenv.make("portfolio", market=started_model, market_options=options, compile=False)
    assert portfolio.scenario.tape.symbols == KNOWN and portfolio.scenario.config.symbols == KNOWN
    single = vecenv.make("single_stock", market=started_model, market_options=options, compile=False)
    assert single.scenario.tape.symbols == KNOWN[:1]
    with pytest.raises(ValueError, match="has not seen TCS"):
        vecenv.make("portfolio", market=started_model, market_options=options, symbols=("AA", "TCS"))
    shipped = vecenv.make("portfolio", market="neural", market_options=options, compile=False)
    assert shipped.scenario.config.symbols[0] == "RELIANCE"


def test_a_model_that_is_judged_knows_its_split():
    """By the name of shipped weights or by file; a test does not begin within their days."""
    for model in ("judged", JUDGED):
        found, *ends = judged_model(model, "india", 1.0, None, None)
        assert (found.name, found.market, *ends) == ("neural", "india", "2021-12-31", "2022-12-31")
    with pytest.raises(ValueError, match=r"shipped\.safetensors was chosen on days up to 2024-12-31"):
        judged_model("shipped", "india", 1.0, "2021-12-31", "2022-12-31")
