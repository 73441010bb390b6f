"""Metrics beside plain loops and by hand; their intervals, and Sharpe ratios of the best of several."""

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from vecenv.finance.metrics import (
    EpisodeCurves,
    Summary,
    deflated_sharpe,
    episode_metrics,
    expected_maximum_sharpe,
    independent_groups,
    probabilistic_sharpe,
    returns_by_day,
    summarise,
    sums_interval,
    values_interval,
)
from vecenv.learn.intervals import (
    bootstrap_interval,
    bootstrap_of_sums,
    correlation_of_sums,
    student_quantile,
)

YEAR = 365


def episodes(*equities: list[float], cash: tuple[float, ...] = ()) -> EpisodeCurves:
    """Curves of hand-made episodes, the shorter ones padded with their last value; cash is that of the first."""
    days = max(map(len, equities))
    equity = torch.tensor([[*line, *[line[-1]] * (days - len(line))] for line in equities], dtype=torch.float64).T
    kept = torch.zeros_like(equity)
    kept[: len(cash), 0] = torch.tensor(cash, dtype=torch.float64)
    return EpisodeCurves(equity, torch.zeros_like(equity[1:]), kept, torch.tensor([len(line) - 1 for line in equities]))


def random_curves(num_days: int = 140, num: int = 40, seed: int = 0) -> EpisodeCurves:
    generator = torch.Generator().manual_seed(seed)
    returns = 0.01 * torch.randn(num_days, num, generator=generator, dtype=torch.float64)
    length = torch.randint(1, num_days + 1, (num,), generator=generator)
    length[0] = num_days
    returns[torch.arange(num_days)[:, None] >= length] = 0.0
    equity = 1e6 * torch.cat([torch.ones(1, num, dtype=torch.float64), (1 + returns).cumprod(0)])
    traded = 1e4 * torch.rand(num_days, num, generator=generator, dtype=torch.float64)
    traded[torch.arange(num_days)[:, None] >= length] = 0.0
    cash = equity * torch.rand(num_days + 1, num, generator=generator, dtype=torch.float64)
    return EpisodeCurves(equity, traded, cash, length, YEAR)


def metrics_of_one(equity: pd.Series, traded: np.ndarray, cash: np.ndarray) -> dict[str, float]:
    """The documented formulas with pandas, one episode at a time."""
    returns = equity.pct_change().dropna()
    days = len(returns)
    total = equity.iloc[-1] / equity.iloc[0] - 1
    worst = (1 - equity / equity.cummax()).max()
    spread = returns.std(ddof=1) if days > 1 else 0.0
    downside = math.sqrt((returns.clip(upper=0) ** 2).mean())
    tail = returns.nsmallest(math.ceil(days / 20))
    return {
        "cumulative_return": total,
        "sharpe": returns.mean() / spread * math.sqrt(YEAR) if spread > 0 else 0.0,
        "sortino": returns.mean() / downside * math.sqrt(YEAR) if downside > 0 else 0.0,
        "max_drawdown": worst,
        "turnover": traded.sum() / equity.iloc[:-1].mean() * YEAR / days,
        "win_loss_ratio": (returns > 0).sum() / max((returns < 0).sum(), 1),
        "cvar": tail.mean(),
        "cash_share": (cash / equity).iloc[1:].mean(),
        "return_over_max_drawdown": total / worst if worst > 0 else 0.0,
    }


def test_metrics_equal_a_loop_in_pandas():
    curves = random_curves().of_episodes(torch.arange(39, -1, -1))
    batched = episode_metrics(curves)
    for index, length in enumerate(curves.length.tolist()):
        equity = pd.Series(curves.equity[: length + 1, index].numpy())
        traded, cash = curves.traded[:length, index].numpy(), curves.cash[: length + 1, index].numpy()
        expected = metrics_of_one(equity, traded, cash)
        assert set(expected) == set(batched)
        for name, value in expected.items():
            assert float(batched[name][index]) == pytest.approx(value, rel=1e-9, abs=1e-12), (name, index)


def test_metrics_by_hand():
    """No variation is zero and never NaN; days that are left out join the rest; cash and drawdowns."""
    flat, steady, short = [100.0] * 5, [100.0 * 1.01**day for day in range(5)], [100.0, 110.0]
    metrics = episode_metrics(episodes(flat, steady, short))
    assert all(bool(value.isfinite().all()) and float(value[0]) == 0.0 for value in metrics.values())
    for name in ("sharpe", "sortino", "max_drawdown", "return_over_max_drawdown"):
        assert float(metrics[name][1]) == 0.0, name
    assert float(metrics["win_loss_ratio"][1]) == 4.0
    assert float(metrics["cumulative_return"][2]) == pytest.approx(0.1)
    curves = episodes([100.0, 110.0, 55.0, 66.0])
    metrics = episode_metrics(curves, torch.tensor([[True], [False], [True]]))
    joined = episode_metrics(episodes([100.0, 110.0, 132.0]))
    for name in ("cumulative_return", "max_drawdown", "sharpe", "cvar", "win_loss_ratio"):
        assert float(metrics[name]) == pytest.approx(float(joined[name])), name
    curves = episodes([100.0, 100.0, 200.0, 0.0], [100.0, 50.0], cash=(100.0, 25.0, 300.0, 0.0))
    assert curves.exposure[:, 0].tolist() == [0.0, 0.75, -0.5, 0.0]
    # The second episode, of one day, is in shares alone.
    assert curves.mean_exposure().tolist() == [0.5, 0.875, -0.5, 0.0]
    assert episode_metrics(curves)["cash_share"].tolist() == pytest.approx([(0.25 + 1.5 + 1.0) / 3, 0.0])
    nothing = episode_metrics(curves, torch.zeros(3, 2, dtype=torch.bool))
    assert all(math.isnan(float(value[0])) for value in nothing.values())
    fallen = episode_metrics(episodes([100.0, 120.0, 90.0, 120.0, 150.0]))
    assert float(fallen["max_drawdown"]) == pytest.approx(0.25)


def test_groups_are_blocks_of_the_calendar_of_a_path_or_one_of_many_paths():
    path, start = torch.tensor([0, 0, 1]), torch.tensor([10, 40, 10])
    groups = independent_groups(path, start, 300)
    # Day 30 of the first episode is day 0 of the second; the third is on another path.
    assert torch.equal(groups[30:, 0], groups[:-30, 1])
    assert not set(groups[:, 0].tolist()) & set(groups[:, 2].tolist())
    assert len(groups.unique()) == 20
    lengths = torch.unique_consecutive(groups[:, 0], return_counts=True)[1]
    assert int(lengths[:-1].min()) >= 20
    path = torch.arange(30).repeat(3)
    groups = independent_groups(path, torch.arange(90), 50)
    assert bool((groups == groups[0]).all()) and torch.equal(groups[0], path)
    assert len(independent_groups(torch.arange(500), torch.zeros(500, dtype=torch.int64), 50).unique()) == 64


def test_intervals_by_hand():
    """Returns of 0.32, 0.2 and 0.6; without a group's days 0.2, 0.2 and 0.6 are left, 0.1 and 0.6, or 0.32 and 0.2."""
    curves, groups = episodes([100.0, 110.0, 132.0], [100.0, 120.0], [100.0, 160.0]), [[0, 1, 2], [1, 1, 2]]
    summary = summarise(curves, torch.tensor(groups))
    assert summary.mean["cumulative_return"] == pytest.approx(1.12 / 3)
    assert summary.without["cumulative_return"].tolist() == pytest.approx([1 / 3, 0.35, 0.26])
    mean, of_two = (1 / 3 + 0.35 + 0.26) / 3, student_quantile(2)
    error = math.sqrt(2 / 3 * sum((value - mean) ** 2 for value in (1 / 3, 0.35, 0.26)))
    found = summary.interval("cumulative_return")
    assert found == pytest.approx((1.12 / 3, 1.12 / 3 - of_two * error, 1.12 / 3 + of_two * error))
    # Beside another that varies with it but for 0.1 in one group.
    other = {"cumulative_return": summary.without["cumulative_return"] - torch.tensor([0.3, 0.2, 0.2])}
    pair = summary.interval("cumulative_return", Summary({"cumulative_return": 0.0}, other))
    margin = of_two * math.sqrt(2 / 3 * 0.02 / 3)
    assert pair == pytest.approx((1.12 / 3, 1.12 / 3 - margin, 1.12 / 3 + margin), abs=1e-6)
    one = Summary({"sharpe": 1.0}, {"sharpe": torch.tensor([1.0, 1.0])}).interval("sharpe")
    assert one.mean == 1.0 and math.isnan(one.low) and math.isnan(one.high)
    for degrees, value in ((3, 3.1824), (7, 2.3646), (19, 2.0930), (63, 1.9983)):
        assert student_quantile(degrees) == pytest.approx(value, rel=0.01)


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


def test_a_sum_over_days_by_hand():
    """Days of 3 and 1 of one episode, 2 of another; without a group's days the rest is scaled up to all three days."""
    daily = torch.tensor([[3.0, 2.0], [1.0, 9.0]])
    lived, groups = torch.tensor([[True, True], [True, False]]), torch.tensor([[0, 5], [7, 7]])
    daily[~lived] = 0.0
    without = [(2 + 1) / 2 * 1.5, (3 + 1) / 2 * 1.5, (3 + 2) / 2 * 1.5]
    centre = sum(without) / 3
    margin = student_quantile(2) * math.sqrt(2 / 3 * sum((value - centre) ** 2 for value in without))
    assert sums_interval(daily, lived, groups) == pytest.approx((3.0, 3.0 - margin, 3.0 + margin))
    few = sums_interval(daily[:1], lived[:1], groups[:1])
    assert few.mean == 2.5 and math.isnan(few.low)


def test_episodes_that_share_days_claim_nothing_of_noise():
    """Histories of a year without a difference, whose episodes of 60 days begin anywhere: few intervals miss it.

    Of returns, of grades that are smooth or a step of them, and of values that have nothing to do with them.
    """
    generator, missed = torch.Generator().manual_seed(4), [0] * 5
    for _ in range(200):
        start = torch.randint(192, (128,), generator=generator)
        daily = torch.randn(252, generator=generator, dtype=torch.float64)[start + torch.arange(60)[:, None]]
        path, lived = torch.zeros_like(start), torch.ones_like(daily, dtype=torch.bool)
        groups, total = independent_groups(path, start, 60), daily.sum(0)
        days, other = start + torch.arange(60)[:, None], torch.randn(252, generator=generator)
        for number, interval in enumerate((
            sums_interval(daily, lived, groups),
            values_interval(torch.sigmoid(total / 8) - 0.5, [daily], lived, groups, days),
            values_interval((total > 0).double() - 0.5, [daily], lived, groups, days),
            values_interval(other[days].sum(0), [daily], lived, groups, days),
            bootstrap_interval(torch.sigmoid(total / 8) - 0.5, groups[0]),
        )):  # fmt: skip
            missed[number] += interval.low > 0 or interval.high < 0
    assert max(missed[:4]) <= 24, missed
    assert missed[4] > 50, "blocks of first days are not independent"


def test_values_of_whole_episodes_have_parts_of_days():
    """A jackknife in plain Python: the part of a day is its slope times its return, and its share of the rest.

    The values are 2 + 3 times the return, and one more of the last episode.
    """
    returns = [[1, 2, 0], [0, 1, 1], [2, 2], [1, 0, 3], [3, 1], [0, 2, 2]]
    values = [2.0 + 3.0 * sum(days) for days in returns[:-1]] + [15.0]
    groups = [[0, 0, 1], [0, 1, 2], [1, 2], [1, 2, 2], [2, 2], [0, 0, 1]]
    places = [[0, 1, 2], [1, 2, 3], [2, 3], [2, 3, 4], [3, 4], [0, 1, 2]]
    totals = [sum(days) for days in returns]
    mean, middle = sum(values) / 6, sum(totals) / 6
    slope = sum((one - middle) * (value - mean) for one, value in zip(totals, values, strict=True))
    slope /= sum((one - middle) ** 2 for one in totals)
    base = mean - slope * middle
    without = []
    for left_out in range(3):
        told, episodes = 0.0, 0.0
        for days, group in zip(returns, groups, strict=True):
            for day, own in zip(days, group, strict=True):
                if own != left_out:
                    told += slope * day + base / len(days)
                    episodes += 1 / len(days)
        without.append(told / episodes)
    centre = sum(without) / 3
    variance = 2 / 3 * sum((one - centre) ** 2 for one in without)
    rest = sum((value - base - slope * one) ** 2 for one, value in zip(totals, values, strict=True)) / 4
    shares = [len(set(one) & set(two)) / math.sqrt(len(one) * len(two)) for one in places for two in places]
    shared = sum(shares) / 36
    margin = student_quantile(2) * math.sqrt(variance + rest * shared / (1 - shared))
    lived = torch.arange(3)[:, None] < torch.tensor([len(days) for days in returns])
    daily, *where = (
        torch.tensor([[*row, *[0] * (3 - len(row))] for row in rows]).T for rows in (returns, groups, places)
    )
    found = values_interval(torch.tensor(values), [daily], lived, *where)
    assert found == pytest.approx((mean, mean - margin, mean + margin))
    # A constant is one, however long its episodes; a series that is none changes little; three episodes are too few.
    assert values_interval(torch.full((6,), 0.5), [daily], lived, *where) == pytest.approx((0.5, 0.5, 0.5))
    assert values_interval(torch.tensor(values), [daily, 0 * daily], lived, *where).mean == pytest.approx(mean)
    few = values_interval(torch.tensor(values[:3]), [daily[:, :3]], lived[:, :3], *(one[:, :3] for one in where))
    assert math.isnan(few.low) and few.mean == pytest.approx(sum(values[:3]) / 3)
    # The same days six times: what differs is not by days, and tells nothing of other ones.
    whole, days = torch.ones(3, 6, dtype=torch.bool), torch.arange(3)[:, None].expand(3, 6)
    same = values_interval(torch.tensor(values), [daily[:, :1].expand(3, 6)], whole, days, days)
    assert math.isnan(same.low) and same.mean == pytest.approx(mean)


def test_groups_count_by_their_values_and_days_once():
    values, groups = torch.tensor([0.0] * 10 + [1.0] * 90), torch.cat([torch.arange(10), torch.arange(90) // 9 + 20])
    interval = bootstrap_interval(values, groups)
    assert interval.mean == pytest.approx(0.9)
    # The large groups come up Binomial(20, 1/2) times, 95% of the time 6 to 14 times, give or take one here.
    assert 5 * 9 / (5 * 9 + 15) <= interval.low <= 7 * 9 / (7 * 9 + 13)
    assert 13 * 9 / (13 * 9 + 7) <= interval.high <= 15 * 9 / (15 * 9 + 5)
    few = bootstrap_interval(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, 0, 4]))
    assert few.mean == 3.0 and math.isnan(few.low) and math.isnan(few.high)
    # Of correlations of sums.
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
    # Days of a path count once: two episodes of path 0 share day 11, of which the second ends after one day.
    path, start_day = torch.tensor([0, 0, 1]), torch.tensor([10, 11, 10])
    returns = torch.tensor([[0.01, 0.04, 0.10], [0.02, 9.0, 0.20]])
    lived = torch.tensor([[True, True, True], [True, False, True]])
    days = returns_by_day(returns, lived, path, start_day)
    assert days.dtype == torch.float64
    assert days.tolist() == pytest.approx([0.01, 0.03, 0.10, 0.20])


def test_the_example_of_the_paper():
    """An annual ratio of 2.5 over five years of 250 days, and trials whose annual ratios have a variance of 1/2."""
    assert expected_maximum_sharpe(100, math.sqrt(0.5 / 250)) == pytest.approx(0.1132, abs=5e-5)
    for num_trials, expected in ((100, 0.9004), (46, 0.9505)):
        best_by_luck = expected_maximum_sharpe(num_trials, math.sqrt(0.5 / 250))
        probability = probabilistic_sharpe(2.5 / math.sqrt(250), best_by_luck, 1250, skewness=-3.0, kurtosis=10.0)
        assert probability == pytest.approx(expected, abs=5e-5)
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
    shifted = torch.tensor([0.04, 0.0, 0.0, 0.0], dtype=torch.float64)
    # Alone there is no luck of a choice. Ratio 0.01 / 0.02, skewness 2 / sqrt 3, kurtosis 7 / 3.
    variance = 1 - 2 / math.sqrt(3) * 0.5 + (7 / 3 - 1) / 4 * 0.25
    expected = NormalDist().cdf(0.5 * math.sqrt(3) / math.sqrt(variance))
    assert deflated_sharpe({"alone": shifted})["alone"] == pytest.approx(expected, abs=1e-9)
    assert deflated_sharpe({}) == {}
    assert math.isnan(deflated_sharpe({"one day": torch.tensor([0.1])})["one day"])
