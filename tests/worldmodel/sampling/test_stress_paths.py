"""Multilevel splitting of a Gaussian walk beside plain sampling, and of markets: paths that fall as far as asked."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.worldmodel.neural_market import history_of, matrices_of, small_network
from vecenv.market.bars import CLOSE, Bars
from vecenv.worldmodel.sampling import stress_paths as module
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.splitting import Level, Split, TargetNotReached, Trajectories, relative_error, split
from vecenv.worldmodel.sampling.stress_paths import MarketPaths, market_drawdowns, share_of, stress_paths, told_share

HORIZON, TARGET, PATHS = 12, 11.0, 400


class Walk:
    """Positions of a walk with standard normal steps; the score is the position."""

    def __init__(self, step: float = 1.0) -> None:
        self.step = step

    def begin(self, num_paths, seed):
        days = self._steps(num_paths, seed).cumsum(1)
        return Trajectories(days, days, torch.zeros(num_paths, dtype=torch.int64), torch.arange(num_paths))

    def go_on(self, stopped, last, num_paths, seed):
        steps = self._steps(num_paths, seed)
        parents = torch.from_numpy(np.random.default_rng([seed, 1]).integers(len(last), size=num_paths))
        own, stop = stopped.days[parents], last[parents][:, None]
        later = torch.arange(HORIZON) > stop
        days = own.where(~later, own.gather(1, stop) + (steps * later).cumsum(1))
        return Trajectories(days, days, stopped.origins[parents], parents)

    def _steps(self, num_paths, seed):
        return self.step * torch.from_numpy(np.random.default_rng(seed).standard_normal((num_paths, HORIZON)))


def test_estimates_errors_and_paths_are_those_of_plain_sampling():
    """Nine tenths of the intervals or more hold the probability; paths reach the target when plain ones do."""
    splits = [split(Walk(), TARGET, PATHS, seed) for seed in range(100)]
    walks = np.random.default_rng(1).standard_normal((500_000, HORIZON)).cumsum(1)
    there = (walks >= TARGET).any(1)
    plain, first = float(there.mean()), (walks[there] >= TARGET).argmax(1)
    estimates = np.array([found.probability for found in splits])
    error = math.hypot(estimates.std() / math.sqrt(len(splits)), math.sqrt(plain / len(walks)))
    assert 5e-4 < plain < 2e-3 and abs(estimates.mean() - plain) < 3 * error < 0.2 * plain
    told = math.sqrt(np.mean([found.relative_error**2 for found in splits]))
    assert told == pytest.approx(estimates.std() / estimates.mean(), rel=0.25)
    assert np.mean([low <= plain <= high for low, high in (found.interval for found in splits)]) >= 0.88
    assert all(bool((found.paths.scores >= TARGET).any(1).all()) for found in splits)
    counts = [np.bincount((found.paths.scores >= TARGET).long().argmax(1), minlength=HORIZON) for found in splits]
    mine, expected = estimates @ np.stack(counts), np.bincount(first, minlength=HORIZON)
    assert np.abs(mine / mine.sum() - expected / expected.sum()).max() < 0.05
    for found in splits[:10]:
        # Levels are quantiles up to the target. Copies of one path tie, which seldom moves a level.
        assert all(PATHS // 4 <= level.reached <= PATHS // 4 + 5 for level in found.levels[:3])
        assert found.levels[-1].score == TARGET and len(found.levels) > 3
        assert all(low.score < high.score for low, high in zip(found.levels, found.levels[1:], strict=False))
        assert found.probability == pytest.approx(math.prod(level.reached / PATHS for level in found.levels))


def test_one_level_is_plain_sampling():
    """Its error is the binomial one, and what is drawn first are the paths of the seed."""
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


def test_common_ancestors_make_the_error_larger():
    """By hand, of two levels of four paths: of two families of one path each, and of one family."""
    levels = [Level(1.0, 2, 4), Level(2.0, 2, 4)]
    assert relative_error(levels, torch.tensor([0, 3])) == pytest.approx(math.sqrt(2 * 0.5 / (0.5 * 4)))
    assert relative_error(levels, torch.tensor([3, 3])) == 1.0
    error = relative_error([Level(1.0, 40, 100)] * 2, torch.tensor([0] * 10 + [1] * 30))
    assert error == pytest.approx(math.sqrt(1 - (100 / 99) ** 2 * (1 - 1 / 16 - 9 / 16)))
    wide = Split(0.5, 1.0, (), None).interval
    assert wide == (pytest.approx(0.5 / math.exp(1.96)), 1.0)


DAYS, SYMBOLS = 12, 3


@pytest.fixture(scope="module")
def market() -> NeuralMarket:
    return NeuralMarket(small_network(), "india")


@pytest.fixture(scope="module")
def past() -> Bars:
    """Two histories of the same symbols, which end at other prices."""
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
def test_the_estimate_is_that_of_plain_sampling(market, past):
    """A drawdown of a twentieth of the paths: its probability, and where it is reached from."""
    plain = MarketPaths(market, past, DAYS).begin(20_000, 1)
    target = float(plain.scores.amax(1).quantile(0.95))
    found = [stress_paths(market, past, None, target, 300, DAYS, seed) for seed in range(12)]
    estimates = torch.tensor([split.probability for split in found])
    error = math.hypot(float(estimates.std()) / math.sqrt(len(found)), 0.05 * math.sqrt(0.95 / (0.05 * 20_000)))
    assert abs(float(estimates.mean()) - 0.05) < 3 * error < 0.015 and all(len(split.levels) > 1 for split in found)
    share = float(torch.cat([split.paths.origins for split in found]).double().mean())
    expected = float(plain.origins[plain.scores.amax(1) >= target].double().mean())
    assert share == pytest.approx(expected, abs=0.15)


def test_every_path_falls_as_far_and_scores_are_its_own(market, past):
    """A run is repeated bit for bit; another seed differs, and the first paths are plain ones."""
    found, again, other = (stress_paths(market, past, None, 0.1, 24, DAYS, seed) for seed in (3, 3, 4))
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
    plain = market.draw_after(market.starts(past), 4, DAYS, 3)
    assert torch.equal(MarketPaths(market, past, DAYS).begin(4, 3).days, plain)


@pytest.mark.parametrize("given", [True, False])
def test_a_stopped_path_goes_on_as_its_days_read_as_a_history(market, past, given):
    """State, output and cache of the trunk are those of the whole history; correlations are those of the beginning."""
    matrices = matrices_of(market, history_of(SYMBOLS)) if given else None
    paths, own = MarketPaths(market, past, DAYS, matrices), market.starts(past, matrices)
    drawn, last = paths.begin(6, 2), torch.tensor([0, 3, 11, 3, 7, 1])
    starts = paths._stopped_starts(drawn, last)
    assert set(drawn.origins.tolist()) == {0, 1}
    assert torch.equal(starts.factor, own.factor[drawn.origins])
    assert torch.equal(starts.bar_factors, own.bar_factors[drawn.origins])
    assert torch.allclose(own.factor[0], own.factor[1]) == given
    for path, day in enumerate(last.tolist()):
        whole = torch.cat([past.ohlcv[drawn.origins[path]], drawn.days[path, : day + 1]])[None]
        alone = market.starts(replace(past, ohlcv=whole, dates=past.dates[:1].repeat(whole.shape[1])), matrices)
        assert torch.allclose(starts.known[path], alone.known[0], atol=1e-5)
        mine, theirs = starts.state.taken(lambda part, path=path: part[path]), alone.state.taken(lambda part: part[0])
        assert all(torch.allclose(one, two) for one, two in zip(mine._tensors(), theirs._tensors(), strict=True))


def test_paths_after_parts_copy_their_parents_and_then_differ(market, past, monkeypatch):
    """Parents are chosen about equally often, whatever the parts that the trunk reads; copies go on in other ways."""
    paths = MarketPaths(market, past, DAYS)
    drawn, last = paths.begin(7, 2), torch.tensor([0, 3, 11, 3, 7, 1, 5])
    monkeypatch.setattr(module, "ROWS_PER_READ", 3 * SYMBOLS)
    after = paths.go_on(drawn, last, 280, 9)
    counts = torch.bincount(after.parents, minlength=7)
    assert counts.sum() == 280 and float((counts - 40).abs().max()) < 24
    assert torch.equal(after.origins, drawn.origins[after.parents])
    for path in range(0, 280, 7):
        stop = int(last[after.parents[path]]) + 1
        parent = drawn.days[after.parents[path]]
        assert torch.equal(after.days[path, :stop], parent[:stop])
        assert not bool((after.days[path, stop:, :, CLOSE] == parent[stop:, :, CLOSE]).any())
    copies = drawn.only(torch.zeros(6, dtype=torch.int64))
    after = paths.go_on(copies, torch.full((6,), 3), 40, 9)
    assert len(after.days[:, 3, 0, CLOSE].unique()) == 1 and len(after.days[:, 4, 0, CLOSE].unique()) == 40
