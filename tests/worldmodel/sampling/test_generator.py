"""Generated markets: multilevel splitting beside plain sampling, pasts, symbols, and where real history leads."""

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vecenv
from tests.worldmodel.neural_market import (
    BURN_IN,
    KNOWN,
    history_of,
    matrices_of,
    small_network,
    started_market,
    write_market,
)
from vecenv.core import random
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.synthetic import business_days, synthetic_bars
from vecenv.testing.ranks import on_ranks
from vecenv.worldmodel.data.bar_moves import encode_bars
from vecenv.worldmodel.data.calendar import FIRST_WEEKDAY
from vecenv.worldmodel.data.correlation import matrices_over
from vecenv.worldmodel.data.correlation_level import mean_correlation
from vecenv.worldmodel.network.checkpoint import JUDGED, SHIPPED, load_network
from vecenv.worldmodel.sampling import generator, kept_paths, rollout, stationary
from vecenv.worldmodel.sampling import stress_paths as module
from vecenv.worldmodel.sampling.generator import PathOptions, draw_paths
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.rollout import one_thread
from vecenv.worldmodel.sampling.splitting import Level, Split, TargetNotReached, Trajectories, relative_error, split
from vecenv.worldmodel.sampling.stationary import PASTS, WARM_UP, StationaryStart
from vecenv.worldmodel.sampling.stress_paths import MarketPaths, market_drawdowns, share_of, stress_paths, told_share
from vecenv.worldmodel.validation.trial import judged_model

DAYS, SYMBOLS, TARGET, PATHS = 12, 3, 11.0, 400


class Walk:
    def __init__(self, step: float = 1.0) -> None:
        self.step = step

    def begin(self, num_paths, seed):
        days = self._steps(num_paths, seed).cumsum(1)
        return Trajectories(days, days, torch.zeros(num_paths, dtype=torch.int64), torch.arange(num_paths))

    def go_on(self, stopped, last, num_paths, seed):
        steps = self._steps(num_paths, seed)
        parents = torch.from_numpy(np.random.default_rng([seed, 1]).integers(len(last), size=num_paths))
        own, stop = stopped.days[parents], last[parents][:, None]
        later = torch.arange(DAYS) > stop
        days = own.where(~later, own.gather(1, stop) + (steps * later).cumsum(1))
        return Trajectories(days, days, stopped.origins[parents], parents)

    def _steps(self, num_paths, seed):
        return self.step * torch.from_numpy(np.random.default_rng(seed).standard_normal((num_paths, DAYS)))


def test_estimates_errors_and_paths_are_those_of_plain_sampling():
    splits = [split(Walk(), TARGET, PATHS, seed) for seed in range(100)]
    walks = np.random.default_rng(1).standard_normal((500_000, DAYS)).cumsum(1)
    there = (walks >= TARGET).any(1)
    plain, first = float(there.mean()), (walks[there] >= TARGET).argmax(1)
    estimates = np.array([found.probability for found in splits])
    error = math.hypot(estimates.std() / math.sqrt(len(splits)), math.sqrt(plain / len(walks)))
    assert 5e-4 < plain < 2e-3 and abs(estimates.mean() - plain) < 3 * error < 0.2 * plain
    told = math.sqrt(np.mean([found.relative_error**2 for found in splits]))
    assert told == pytest.approx(estimates.std() / estimates.mean(), rel=0.25)
    assert np.mean([low <= plain <= high for low, high in (found.interval for found in splits)]) >= 0.88
    assert all(bool((found.paths.scores >= TARGET).any(1).all()) for found in splits)
    counts = [np.bincount((found.paths.scores >= TARGET).long().argmax(1), minlength=DAYS) for found in splits]
    mine, expected = estimates @ np.stack(counts), np.bincount(first, minlength=DAYS)
    assert np.abs(mine / mine.sum() - expected / expected.sum()).max() < 0.05
    for found in splits[:10]:
        # Levels are quantiles up to the target. Copies of one path tie, which seldom moves a level.
        assert all(PATHS // 4 <= level.reached <= PATHS // 4 + 5 for level in found.levels[:3])
        assert found.levels[-1].score == TARGET and len(found.levels) > 3
        assert all(low.score < high.score for low, high in zip(found.levels, found.levels[1:], strict=False))
        assert found.probability == pytest.approx(math.prod(level.reached / PATHS for level in found.levels))


def test_one_level_is_plain_sampling(monkeypatch):
    shown = []
    found = split(Walk(), 1.0, 400, 3, shown.append)
    share = float((Walk().begin(400, 3).scores >= 1.0).any(1).double().mean())
    assert found.probability == share and list(found.levels) == shown == [Level(1.0, round(400 * share), 400)]
    assert found.relative_error == pytest.approx(math.sqrt((1 - share) / (share * 399)), rel=2e-3)
    again, other = (split(Walk(), 6.0, 50, seed) for seed in (5, 6))
    assert torch.equal(split(Walk(), 6.0, 50, 5).paths.days, again.paths.days)
    assert not bool(torch.isin(other.paths.days, again.paths.days).any())
    with pytest.raises(TargetNotReached) as caught:
        split(Walk(), 1e3, 40, 0)
    assert 10 < caught.value.highest < 60
    with pytest.raises(TargetNotReached, match=r"the highest score is 0$"):
        split(Walk(step=0.0), 1.0, 40, 0)
    monkeypatch.setattr("vecenv.worldmodel.sampling.splitting.LEAST_PROBABILITY", 0.1)
    with pytest.raises(TargetNotReached):
        split(Walk(), TARGET, PATHS, 0)
    # By hand, of two levels of four paths: of two families of one path each, and of one family.
    for families, error in (([0, 3], math.sqrt(2 * 0.5 / (0.5 * 4))), ([3, 3], 1.0)):
        assert relative_error([Level(1.0, 2, 4), Level(2.0, 2, 4)], torch.tensor(families)) == pytest.approx(error)
    error = relative_error([Level(1.0, 40, 100)] * 2, torch.tensor([0] * 10 + [1] * 30))
    assert error == pytest.approx(math.sqrt(1 - (100 / 99) ** 2 * (1 - 1 / 16 - 9 / 16)))
    assert Split(0.5, 1.0, (), None).interval == (pytest.approx(0.5 / math.exp(1.96)), 1.0)


MARKET = NeuralMarket(small_network(), "india")


@pytest.fixture(scope="module")
def past() -> Bars:
    history = history_of(SYMBOLS)
    return replace(history, ohlcv=torch.cat([history.ohlcv, history.ohlcv.flip(1)]))


def test_drawdowns_by_hand_and_shares_as_they_are_read_and_told():
    """Of two symbols: the mean logarithm falls by log 2 / 2 from the day before, recovers, falls from a new peak."""
    closes = torch.tensor([[[0.5, 1.0], [1.0, 1.0], [4.0, 1.0], [1.0, 2.0]]])
    expected = [1 - math.sqrt(0.5), 0.0, 0.0, 1 - math.sqrt(0.5)]
    assert market_drawdowns(torch.tensor([[1.0, 1.0]]), closes)[0].tolist() == pytest.approx(expected)
    shares = {"30%": 0.3, "0.3": 0.3, "99.5%": 0.995, "5e-2": 0.05}
    assert {text: share_of(text, "drawdown") for text in shares} == pytest.approx(shares)
    for text in ("0", "0%", "100%", "1", "-5%", "much", "%", "", "nan", "inf", "30 % of it"):
        with pytest.raises(ValueError, match=r"drawdown must be a share between 0 and 100%, such as 30% or 0.3, got "):
            share_of(text, "drawdown")
    told = {0.3: "30%", 0.0042: "0.42%", 0.123: "12%", 1.0: "100%", 0.0997: "10%", 0.0994: "9.9%", 4e-5: "0.0040%"}
    assert {share: told_share(share) for share in told} == told


@pytest.mark.nightly
def test_the_estimate_is_that_of_plain_sampling(past):
    """A drawdown of a twentieth of the paths: its probability, and where it is reached from."""
    plain = MarketPaths(MARKET, past, DAYS).begin(20_000, 1)
    target = float(plain.scores.amax(1).quantile(0.95))
    found = [stress_paths(MARKET, past, None, target, 300, DAYS, seed) for seed in range(12)]
    estimates = torch.tensor([split.probability for split in found])
    error = math.hypot(float(estimates.std()) / math.sqrt(len(found)), 0.05 * math.sqrt(0.95 / (0.05 * 20_000)))
    assert abs(float(estimates.mean()) - 0.05) < 3 * error < 0.015 and all(len(split.levels) > 1 for split in found)
    share = float(torch.cat([split.paths.origins for split in found]).double().mean())
    expected = float(plain.origins[plain.scores.amax(1) >= target].double().mean())
    assert share == pytest.approx(expected, abs=0.15)


def test_every_path_falls_as_far_and_scores_are_its_own(past):
    found, again, other = (stress_paths(MARKET, past, None, 0.1, 24, DAYS, seed) for seed in (3, 3, 4))
    assert found.paths.days.shape == (24, DAYS, SYMBOLS, 5) and bool(found.paths.days.isfinite().all())
    last = past.ohlcv[found.paths.origins, -1, :, CLOSE]
    assert torch.equal(found.paths.scores, market_drawdowns(last, found.paths.days[..., CLOSE]))
    assert bool((found.paths.scores.amax(1) >= 0.1).all())
    assert len(found.levels) > 1 and 0 < found.probability < 0.5
    # No move is larger than one day may have: paths join where they were stopped.
    closes = torch.cat([last.unsqueeze(1), found.paths.days[..., CLOSE]], 1).log()
    assert float(closes.diff(dim=1).abs().max()) <= 0.7 + 1e-9
    assert torch.equal(found.paths.days, again.paths.days) and found.levels == again.levels
    assert not bool(torch.isin(other.paths.days[:, -1, 0, CLOSE], found.paths.days[:, -1, 0, CLOSE]).any())
    plain = MARKET.draw_after(MARKET.starts(past), 4, DAYS, 3)
    assert torch.equal(MarketPaths(MARKET, past, DAYS).begin(4, 3).days, plain)


@pytest.mark.parametrize("given", [True, False])
def test_a_stopped_path_goes_on_as_its_days_read_as_a_history(past, given):
    """State, output and cache of the trunk are those of the whole history; correlations are those of the beginning."""
    matrices = matrices_of(MARKET, history_of(SYMBOLS)) if given else None
    paths, own = MarketPaths(MARKET, past, DAYS, matrices), MARKET.starts(past, matrices)
    drawn, last = paths.begin(6, 2), torch.tensor([0, 3, 11, 3, 7, 1])
    starts = paths._stopped_starts(drawn, last)
    assert set(drawn.origins.tolist()) == {0, 1}
    assert torch.equal(starts.matrices, own.matrices[drawn.origins])
    assert torch.allclose(own.matrices[0], own.matrices[1]) == given
    for path, day in enumerate(last.tolist()):
        whole = torch.cat([past.ohlcv[drawn.origins[path]], drawn.days[path, : day + 1]])[None]
        alone = MARKET.starts(replace(past, ohlcv=whole, dates=past.dates[:1].repeat(whole.shape[1])), matrices)
        assert torch.allclose(starts.known[path], alone.known[0], atol=1e-5)
        mine, theirs = starts.state.taken(lambda part, path=path: part[path]), alone.state.taken(lambda part: part[0])
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-8)
        assert starts.weekday[path] == own.weekday[drawn.origins[path]] + day + 1


def test_paths_after_parts_copy_their_parents_and_then_differ(past, monkeypatch):
    paths = MarketPaths(MARKET, past, DAYS)
    drawn, last = paths.begin(7, 2), torch.tensor([0, 3, 11, 3, 7, 1, 5])
    monkeypatch.setattr(module, "ROWS_PER_READ", 3 * SYMBOLS)
    after = paths.go_on(drawn, last, 280, 9)
    counts = torch.bincount(after.parents, minlength=7)
    assert counts.sum() == 280 and float((counts - 40).abs().max()) < 24
    assert torch.equal(after.origins, drawn.origins[after.parents])
    for days, origin in zip(after.days[::7], after.parents[::7], strict=True):
        parent, stop = drawn.days[origin], int(last[origin]) + 1
        assert torch.equal(days[:stop], parent[:stop])
        assert not bool((days[stop:, :, CLOSE] == parent[stop:, :, CLOSE]).any())
    copies = drawn.only(torch.zeros(6, dtype=torch.int64))
    after = paths.go_on(copies, torch.full((6,), 3), 40, 9)
    assert len(after.days[:, 3, 0, CLOSE].unique()) == 1 and len(after.days[:, 4, 0, CLOSE].unique()) == 40


@pytest.fixture(scope="module")
def real() -> Bars:
    bars = replace(synthetic_bars(1, 420, KNOWN, seed=3), currency="EUR")
    bars.ohlcv[0, 300, 1] = float("nan")
    return bars


@pytest.fixture(scope="module")
def file(real, tmp_path_factory) -> Path:
    return write_market(tmp_path_factory.mktemp("history") / "bars.parquet", real)


def test_a_path_goes_on_from_a_past_that_nobody_trades(started_model):
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


def test_only_pasts_that_some_path_chooses_are_read_each_by_itself(monkeypatch):
    """One symbol of the shipped network, of which several are read together with other digits than one alone."""
    starts, read = NeuralMarket.starts, []
    monkeypatch.setattr(
        NeuralMarket, "starts", lambda *given, **more: read.append(len(given[1].ohlcv)) or starts(*given, **more)
    )
    drawn = [draw_paths(SHIPPED, PathOptions(paths, WARM_UP + 2, symbols=1)).ohlcv for paths in (40, 3, 1)]
    assert torch.equal(drawn[1], drawn[0][:3]) and torch.equal(drawn[2], drawn[0][:1])
    chosen = [len(bars[:, WARM_UP - 1].unique(dim=0)) for bars in drawn]
    assert read == chosen and chosen[0] > 16 and chosen[2] == 1


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
    # Of every tenth day from the sixtieth on.
    matrices = matrices_over(market.observed, market.decay, 0.0)[6:31].mean(0)[:, [0, 1, 3]][..., [0, 1, 3]]
    assert torch.allclose(start.correlation, matrices.float(), atol=1e-6)


def test_the_warm_up_survives_halves(started_model, monkeypatch):
    saved, drawn, draw_after = load_network(started_model), [], NeuralMarket.draw_after
    start = StationaryStart.from_tensors(saved.extra, "one")
    assert start.warm_up.dtype == torch.float16 and start.warm_up.shape == (PASTS, WARM_UP, 3, 5)
    monkeypatch.setattr(stationary, "BURN_IN", BURN_IN)
    monkeypatch.setattr(NeuralMarket, "draw_after", lambda *given: drawn.append(draw_after(*given)) or drawn[0])
    market = NeuralMarket(saved.network, "one")
    again = start.with_warm_up(market)
    assert torch.equal(again.warm_up, start.warm_up)
    returns = drawn[0][:, BURN_IN - 1 :, :, CLOSE].log().diff(dim=1)
    kept = again.bars(KNOWN).ohlcv[..., CLOSE].log()
    assert torch.allclose(kept.diff(dim=1), returns[:, 1:], atol=1e-3)
    assert bool(encode_bars(again.bars(KNOWN).ohlcv).valid[:, 1:].all())
    # The days that are kept are drawn with the dates that they are given.
    empty = start._empty(market)
    first = int(empty.weekday) + BURN_IN
    assert np.busday_offset(FIRST_WEEKDAY, first) == again.bars(KNOWN).dates[0]
    assert torch.allclose(empty.state.common.level()[0], mean_correlation(start.correlation).double().clamp(0.0, 0.95))


def test_symbols_choose_the_market_and_a_history_the_currency(started_model, file, monkeypatch):
    def drawn(*given, **more):
        return draw_paths(started_model, PathOptions(1, WARM_UP + 1, *given, **more))

    assert drawn(["EE", "DD"]).symbols == ("EE", "DD") and drawn(2).symbols == ("AA", "BB")
    assert drawn(market="two").symbols == ("DD", "EE")
    # The pasts are the symbols' own, whatever their order.
    assert torch.equal(drawn(["BB", "AA"]).ohlcv[:, :WARM_UP].flip(2), drawn(["AA", "BB"]).ohlcv[:, :WARM_UP])
    for wanted, found in ((("CC", "AA"), ("CC", "AA")), (("EE",), ("EE",)), (("EE", "AA"), KNOWN[:2])):
        assert generator.model_symbols(started_model, wanted) == found
    plain, after = PathOptions(1, WARM_UP + 1), PathOptions(1, WARM_UP + 1, history=file)
    saved = load_network(started_model)
    told = saved._replace(record=saved.record | {"sources": {"one": {"currency": "JPY"}, "two": {}}})
    for known, learned in ((saved, None), (told, "JPY")):
        monkeypatch.setattr(generator, "load_network", lambda *_, known=known: known)
        found = [draw_paths(started_model, each).currency for each in (plain, after, replace(plain, symbols=["DD"]))]
        assert found == [learned, "EUR", None]
    shipped = load_network(generator.SHIPPED)
    assert [generator._currency(shipped, generator.SHIPPED, name) for name in ("india", "us")] == ["INR", "USD"]
    assert generator._currency(shipped, Path("mine.safetensors"), "us") is None


def test_bad_requests_are_named(started_model):
    for given, told in (
        ({"num_days": WARM_UP}, f"num_days must be above {WARM_UP}, got {WARM_UP}"),
        ({"symbols": ["AA", "DD"]}, "knows no market of AA, DD together"),
        ({"symbols": ["AA", "AA"]}, "repeated symbols: AA"),
        ({"symbols": 4}, "knows 3 symbols of one, not 4"),
        ({"symbols": 0}, "knows 3 symbols of one, not 0"),
        ({"symbols": ["AA", "LATE"]}, r"has not seen LATE; it knows one: AA, BB, CC; two: DD, EE$"),
        ({"market": "mars"}, "no start of a market 'mars'; it knows one, two"),
        ({"market": "two", "symbols": ["AA"]}, "has not seen AA; it knows two: DD, EE"),
        ({"temperature": float("nan")}, "temperature must be positive"),
        ({"regime": "boom"}, "unknown regime 'boom', expected one of bull, bear, sideways, crisis"),
        ({"history_end": "2011-01-01"}, "none is given"),
        ({"num_paths": 0}, "num_paths must be at least 1"),
    ):
        with pytest.raises(ValueError, match=told):
            draw_paths(started_model, PathOptions(**{"num_paths": 1, "num_days": WARM_UP + 1, **given}))
    for model in ("judged", JUDGED):
        found, *ends = judged_model(model, "india", 1.0, None, None)
        assert (found.name, found.market, *ends) == ("neural", "india", "2021-12-31", "2022-12-31")
    with pytest.raises(ValueError, match=r"shipped\.safetensors was chosen on days up to 2024-12-31"):
        judged_model("shipped", "india", 1.0, "2021-12-31", "2022-12-31")


def test_dates_of_real_history(started_model, real, file, tmp_path):
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
    # Every past is a stretch of whole real days, skipping the one with a hole; several are chosen.
    options = PathOptions(20, WARM_UP + 1, history=file, seed=1)
    bars, whole, ends = draw_paths(started_model, options), real.ohlcv[0][real.listed[0].all(-1)], set()
    for past in bars.ohlcv[:, :WARM_UP]:
        at = int(torch.isclose(whole, past[-1]).flatten(1).all(1).nonzero())
        assert torch.allclose(past, whole[at + 1 - WARM_UP : at + 1])
        ends.add(at)
    assert len(ends) > 3 and torch.equal(bars.ohlcv, draw_paths(started_model, options).ohlcv)


def test_regimes_are_the_most_typical_of_several_draws(started_model):
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


def test_ranks_draw_the_market_of_one(started_model, file):
    for options in (PathOptions(5, WARM_UP + 3, regime="crisis"), PathOptions(5, WARM_UP + 3, KNOWN, history=file)):
        one = draw_paths(started_model, options)
        with one_thread():
            for bars in on_ranks(2, lambda _, options=options: draw_paths(started_model, options)):
                assert torch.equal(bars.ohlcv, one.ohlcv)


def test_ranks_split_the_paths_of_a_drawdown_as_one_does(past):
    def drawn(_):
        return stress_paths(MARKET, past, None, 0.1, 24, DAYS, 3)

    one = drawn(0)
    with one_thread():
        for found in on_ranks(2, drawn):
            assert found.probability == one.probability
            assert all(torch.equal(mine, its) for mine, its in zip(found.paths, one.paths, strict=True))


def test_one_switch_in_make(started_model):
    words = {"market_options": {"num_paths": 2, "num_days": WARM_UP + 12}, "compile": False, "episode_length": 10}
    env = vecenv.make("stock_trading", 4, market=str(started_model), **words)
    tape = env.scenario.tape
    assert env.rollout(3).shape == (4, 3)
    assert np.array_equal(tape.dates, business_days(WARM_UP + 12)) and tape.first_day == WARM_UP
    assert not bool(tape.tradable[:, :WARM_UP].any()) and bool(tape.tradable[:, WARM_UP:].all())


def test_kept_paths_are_those_of_the_same_draw_and_all_others_are_drawn(started_model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept_paths, "WORTHWHILE", 1)
    folder, draws, draw = tmp_path / "vecenv" / "paths", [], NeuralMarket.draw_after

    def counted(*given, **named):
        draws.append(given)
        return draw(*given, **named)

    monkeypatch.setattr(NeuralMarket, "draw_after", counted)
    options = PathOptions(num_paths=2, num_days=WARM_UP + 2, symbols=2)
    first = draw_paths(started_model, options).ohlcv
    assert torch.equal(draw_paths(started_model, options).ohlcv, first) and len(draws) == 1
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert torch.equal(draw_paths(started_model, options).ohlcv, first) and len(draws) == 2
    for changed in ({"seed": 1}, {"num_paths": 3}, {"symbols": 3}, {"temperature": 0.5}, {"num_days": WARM_UP + 3}):
        before = len(draws)
        draw_paths(started_model, replace(options, **changed))
        assert len(draws) == before + 1
    for name, changed in (("_CODE", "another"), ("_machine", lambda: "another")):
        with monkeypatch.context() as other:
            other.setattr(kept_paths, name, changed)
            assert torch.equal(draw_paths(started_model, options).ohlcv, first) and len(draws) == before + 2
        before += 1
    with monkeypatch.context() as other:
        read: list[str] = []
        other.setattr(kept_paths, "_digest", lambda files: read.extend(map(str, files)))
        kept_paths._code()
        assert {rollout.__file__, generator.__file__, random.__file__} <= set(read)
    # Of those that are too many the one that was read longest ago goes, and before it what a killed process left.
    left = folder / f"{file.name}.partial"
    left.write_bytes(whole)
    for place, old in enumerate((left, file)):
        os.utime(old, (place, place))
    monkeypatch.setattr(kept_paths, "MOST_BYTES", sum(each.stat().st_size for each in folder.iterdir()) - 1)
    draw_paths(started_model, replace(options, seed=2))
    assert not left.exists() and not file.exists() and len([*folder.iterdir()]) == len(draws) - 2
