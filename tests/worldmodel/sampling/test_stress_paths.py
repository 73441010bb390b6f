"""Stress paths: they fall as far as asked, as often as plain paths do, and go on as one path would."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.worldmodel.neural_market import history_of, matrices_of, small_network
from vecenv.market.bars import CLOSE, Bars
from vecenv.worldmodel.sampling import stress_paths as module
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stress_paths import MarketPaths, market_drawdowns, share_of, stress_paths, told_share

DAYS, SYMBOLS = 12, 3


@pytest.fixture(scope="module")
def market() -> NeuralMarket:
    return NeuralMarket(small_network(), "india")


@pytest.fixture(scope="module")
def past() -> Bars:
    """Two histories of the same symbols, which end at other prices."""
    history = history_of(SYMBOLS)
    return replace(history, ohlcv=torch.cat([history.ohlcv, history.ohlcv.flip(1)]))


def test_drawdowns_by_hand():
    """Of two symbols: the mean logarithm falls by log 2 / 2 from the day before, recovers, falls from a new peak."""
    closes = torch.tensor([[[0.5, 1.0], [1.0, 1.0], [4.0, 1.0], [1.0, 2.0]]])
    expected = [1 - math.sqrt(0.5), 0.0, 0.0, 1 - math.sqrt(0.5)]
    assert market_drawdowns(torch.tensor([[1.0, 1.0]]), closes)[0].tolist() == pytest.approx(expected)


def test_shares_are_read_and_told():
    shares = {"30%": 0.3, "0.3": 0.3, "99.5%": 0.995, "5e-2": 0.05}
    assert {text: share_of(text, "drawdown") for text in shares} == pytest.approx(shares)
    for text in ("0", "0%", "100%", "1", "130%", "-5%", "much", "%", "", "nan", "inf", "30 % of it"):
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


def test_later_days_follow_the_last_one():
    before, later = torch.arange(4.0).reshape(1, 4, 1, 1).expand(2, 4, 1, 1), torch.tensor([10.0, 11.0, 12.0])
    joined = module._joined(before, torch.tensor([0, 2]), later.reshape(1, 3, 1, 1).expand(2, 3, 1, 1))
    assert joined.squeeze().tolist() == [[0.0, 10.0, 11.0, 12.0], [0.0, 1.0, 2.0, 10.0]]


@pytest.mark.parametrize(
    ("drawdown", "paths", "told"),
    [
        (0.1, 19, "paths must be at least 20 with a drawdown, got 19"),
        (0.99, 20, r"no path comes to a drawdown of 99% within 3 days, at most to 3.1%: draw more paths"),
    ],
)
def test_what_cannot_be_drawn_is_told(market, past, drawdown, paths, told):
    with pytest.raises(ValueError, match=told):
        stress_paths(market, past, None, drawdown, paths, 3, 0)
