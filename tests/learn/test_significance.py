"""Intervals against simulations with a known mean, the deflated Sharpe ratio against its paper's example."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from vecenv.learn.significance import (
    bootstrap_interval,
    bootstrap_of_sums,
    correlation_of_sums,
    deflated_sharpe,
    expected_maximum_sharpe,
    probabilistic_sharpe,
    returns_by_day,
)

NUM_GROUPS, GROUP_SIZE = 30, 8


def clustered(seed: int, shared: float) -> tuple[Tensor, Tensor]:
    """Return values of mean 0 and variance 1, of which groups share a part, and their groups."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(NUM_GROUPS).repeat_interleave(GROUP_SIZE)
    common = torch.randn(NUM_GROUPS, generator=generator)[groups]
    own = torch.randn(len(groups), generator=generator)
    return math.sqrt(shared) * common + math.sqrt(1.0 - shared) * own, groups


@pytest.mark.nightly
@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_intervals_cover_the_true_mean(shared):
    intervals = [bootstrap_interval(*clustered(seed, shared), seed) for seed in range(400)]
    covered = sum(interval.low <= 0.0 <= interval.high for interval in intervals) / len(intervals)
    # A percentile interval of 30 groups is a little short of its nominal 95%.
    assert 0.90 <= covered <= 0.97
    missed_above = sum(interval.low > 0.0 for interval in intervals) / len(intervals)
    assert 0.01 <= missed_above <= 0.06


def test_values_that_hang_together_within_groups_widen_the_interval():
    widening = []
    for seed in range(20):
        values, groups = clustered(seed, shared=0.5)
        whole, single = (bootstrap_interval(values, by) for by in (groups, torch.arange(len(values))))
        assert whole.mean == single.mean == pytest.approx(float(values.double().mean()))
        widening.append((whole.high - whole.low) / (single.high - single.low))
    # The variance of a group's mean is (1 + 7 x 0.5) times that of as many independent values.
    assert sum(widening) / len(widening) == pytest.approx(math.sqrt(4.5), rel=0.1)


def test_groups_of_different_sizes_count_by_their_values():
    values, groups = torch.tensor([0.0] * 10 + [1.0] * 90), torch.cat([torch.arange(10), torch.arange(90) // 9 + 20])
    interval = bootstrap_interval(values, groups)
    assert interval.mean == pytest.approx(0.9)
    # The large groups come up Binomial(20, 1/2) times, 95% of the time 6 to 14 times, give or take one here.
    assert 5 * 9 / (5 * 9 + 15) <= interval.low <= 7 * 9 / (7 * 9 + 13)
    assert 13 * 9 / (13 * 9 + 7) <= interval.high <= 15 * 9 / (15 * 9 + 5)


def test_fewer_than_three_groups_give_no_interval():
    interval = bootstrap_interval(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, 0, 4]))
    assert interval.mean == 3.0 and math.isnan(interval.low) and math.isnan(interval.high)


def test_days_of_a_path_count_once():
    # Two episodes of path 0 share day 11; the second ends after one day. Path 1 has days of its own.
    path, start_day = torch.tensor([0, 0, 1]), torch.tensor([10, 11, 10])
    returns = torch.tensor([[0.01, 0.04, 0.10], [0.02, 9.0, 0.20]])
    lived = torch.tensor([[True, True, True], [True, False, True]])
    days = returns_by_day(returns, lived, path, start_day)
    assert days.dtype == torch.float64
    assert days.tolist() == pytest.approx([0.01, 0.03, 0.10, 0.20])


@pytest.mark.parametrize(("num_trials", "expected"), [(100, 0.9004), (46, 0.9505)])
def test_the_example_of_the_paper(num_trials, expected):
    """An annual ratio of 2.5 over five years of 250 days, and trials whose annual ratios have a variance of 1/2."""
    best_by_luck = expected_maximum_sharpe(num_trials, math.sqrt(0.5 / 250))
    if num_trials == 100:
        assert best_by_luck == pytest.approx(0.1132, abs=5e-5)
    probability = probabilistic_sharpe(2.5 / math.sqrt(250), best_by_luck, 1250, skewness=-3.0, kurtosis=10.0)
    assert probability == pytest.approx(expected, abs=5e-5)


def test_expected_maximum_is_that_of_normal_draws():
    draws = 0.3 * torch.randn(20_000, 50, generator=torch.Generator().manual_seed(0))
    # The formula is the limit of many trials.
    assert expected_maximum_sharpe(50, 0.3) == pytest.approx(float(draws.max(1).values.mean()), rel=0.03)
    assert expected_maximum_sharpe(1, 0.3) == expected_maximum_sharpe(0, 0.0) == 0.0


def test_deflated_ratios_worked_by_hand():
    returns = {
        # Mean 0.01, variance 12e-4 / 3 = 4e-4: a ratio of 0.5. No skewness, fourth moment over variance squared 1.
        "even": torch.tensor([0.01 + 0.01 * math.sqrt(3), 0.01 - 0.01 * math.sqrt(3)] * 2, dtype=torch.float64),
        # Mean 0, variance 12e-4 / 3: a ratio of 0. Third moment 6e-6 over 3e-4^1.5, fourth 21e-8 over 9e-8.
        "skewed": torch.tensor([0.03, -0.01, -0.01, -0.01], dtype=torch.float64),
        "flat": torch.full((4,), 0.01, dtype=torch.float64),
    }
    # The ratios 0.5 and 0 have a deviation of 0.5 / sqrt 2; the quantile at 1 - 1/2 is 0.
    best_by_luck = 0.5 / math.sqrt(2) * 0.5772156649 * NormalDist().inv_cdf(1 - 1 / (2 * math.e))
    deflated = deflated_sharpe(returns)
    assert deflated["even"] == pytest.approx(NormalDist().cdf((0.5 - best_by_luck) * math.sqrt(3)), abs=1e-9)
    assert deflated["skewed"] == pytest.approx(NormalDist().cdf(-best_by_luck * math.sqrt(3)), abs=1e-9)
    assert math.isnan(deflated["flat"])


def test_skewness_and_kurtosis_of_the_returns_count():
    shifted = torch.tensor([0.04, 0.0, 0.0, 0.0], dtype=torch.float64)
    # Alone there is no luck of a choice. Ratio 0.01 / 0.02, skewness 2 / sqrt 3, kurtosis 7 / 3.
    variance = 1 - 2 / math.sqrt(3) * 0.5 + (7 / 3 - 1) / 4 * 0.25
    expected = NormalDist().cdf(0.5 * math.sqrt(3) / math.sqrt(variance))
    assert deflated_sharpe({"alone": shifted})["alone"] == pytest.approx(expected, abs=1e-9)


def test_an_agent_that_varies_no_more_than_rounding_has_no_ratio():
    assert deflated_sharpe({}) == {}
    assert math.isnan(deflated_sharpe({"one day": torch.tensor([0.1])})["one day"])


def test_correlations_of_sums_by_hand():
    x, y = torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), torch.tensor([2.0, 1.0, 4.0, 5.0]).double()
    ones = torch.ones_like(x)
    sums = torch.stack([ones, x, y, x * x, y * y, x * y], dim=-1).sum(0)
    assert float(correlation_of_sums(sums)) == pytest.approx(float(torch.corrcoef(torch.stack([x, y]))[0, 1]))
    flat = torch.stack([ones, x, ones, x * x, ones, x], dim=-1).sum(0)
    assert float(correlation_of_sums(flat)) == 0.0
    # Two groups are too few, three are not.
    assert math.isnan(bootstrap_of_sums(sums.expand(2, 6), correlation_of_sums).low)
    told = bootstrap_of_sums(torch.stack([sums, sums, sums]), correlation_of_sums)
    assert told.low == pytest.approx(told.high) == pytest.approx(told.mean)
