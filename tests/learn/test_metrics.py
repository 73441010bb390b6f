"""Metrics against plain loops and known answers, intervals against simulated markets."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from vecenv.learn.metrics import (
    EpisodeCurves,
    Summary,
    drawdowns,
    episode_metrics,
    independent_groups,
    student_quantile,
    summarise,
)


def episodes(
    *equities: list[float], traded: list[list[float]] | None = None, cash: list[float] | None = None
) -> EpisodeCurves:
    """Curves of hand-made episodes, the shorter ones padded with their last value."""
    days = max(map(len, equities))
    equity = torch.tensor([[*line, *[line[-1]] * (days - len(line))] for line in equities], dtype=torch.float64).T
    value = torch.zeros(days - 1, len(equities), dtype=torch.float64)
    if traded is not None:
        for index, line in enumerate(traded):
            value[: len(line), index] = torch.tensor(line, dtype=torch.float64)
    kept = torch.zeros_like(equity)
    if cash is not None:
        kept[: len(cash), 0] = torch.tensor(cash, dtype=torch.float64)
    return EpisodeCurves(equity, value, kept, torch.tensor([len(line) - 1 for line in equities]))


def random_curves(num_days: int = 120, num: int = 40, seed: int = 0) -> EpisodeCurves:
    generator = torch.Generator().manual_seed(seed)
    returns = 0.01 * torch.randn(num_days, num, generator=generator, dtype=torch.float64)
    length = torch.randint(1, num_days + 1, (num,), generator=generator)
    length[0] = num_days
    returns[torch.arange(num_days)[:, None] >= length] = 0.0
    equity = 1e6 * torch.cat([torch.ones(1, num, dtype=torch.float64), (1 + returns).cumprod(0)])
    traded = 1e4 * torch.rand(num_days, num, generator=generator, dtype=torch.float64)
    traded[torch.arange(num_days)[:, None] >= length] = 0.0
    cash = equity * torch.rand(num_days + 1, num, generator=generator, dtype=torch.float64)
    return EpisodeCurves(equity, traded, cash, length)


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
        "sharpe": returns.mean() / spread * math.sqrt(252) if spread > 0 else 0.0,
        "sortino": returns.mean() / downside * math.sqrt(252) if downside > 0 else 0.0,
        "max_drawdown": worst,
        "turnover": traded.sum() / equity.iloc[:-1].mean() * 252 / days,
        "win_loss_ratio": (returns > 0).sum() / max((returns < 0).sum(), 1),
        "cvar": tail.mean(),
        "cash_share": (cash / equity).iloc[1:].mean(),
        "return_over_max_drawdown": total / worst if worst > 0 else 0.0,
    }


def test_metrics_equal_a_loop_in_pandas():
    curves = random_curves()
    batched = episode_metrics(curves)
    for index, length in enumerate(curves.length.tolist()):
        equity = pd.Series(curves.equity[: length + 1, index].numpy())
        expected = metrics_of_one(
            equity, curves.traded[:length, index].numpy(), curves.cash[: length + 1, index].numpy()
        )
        assert set(expected) == set(batched)
        for name, value in expected.items():
            assert float(batched[name][index]) == pytest.approx(value, rel=1e-9, abs=1e-12), (name, index)


def test_no_variation_is_zero_and_never_nan():
    flat, steady, short = [100.0] * 5, [100.0 * 1.01**day for day in range(5)], [100.0, 110.0]
    metrics = episode_metrics(episodes(flat, steady, short))
    assert all(bool(value.isfinite().all()) for value in metrics.values())
    assert all(float(value[0]) == 0.0 for value in metrics.values())
    for name in ("sharpe", "sortino", "max_drawdown", "return_over_max_drawdown"):
        assert float(metrics[name][1]) == 0.0, name
    assert float(metrics["win_loss_ratio"][1]) == 4.0
    assert float(metrics["cumulative_return"][2]) == pytest.approx(0.1)


def test_leaving_days_out_joins_the_rest():
    curves = episodes([100.0, 110.0, 55.0, 66.0])
    counted = torch.tensor([[True], [False], [True]])
    metrics = episode_metrics(curves, counted)
    joined = episode_metrics(episodes([100.0, 110.0, 132.0]))
    for name in ("cumulative_return", "max_drawdown", "sharpe", "cvar", "win_loss_ratio"):
        assert float(metrics[name]) == pytest.approx(float(joined[name])), name
    assert math.isnan(float(episode_metrics(curves, torch.zeros(3, 1, dtype=torch.bool))["sharpe"]))


def test_cash_and_exposure_by_hand():
    curves = episodes([100.0, 100.0, 200.0, 0.0], [100.0, 50.0], cash=[100.0, 25.0, 300.0, 0.0])
    assert curves.exposure[:, 0].tolist() == [0.0, 0.75, -0.5, 0.0]
    # The second episode, of one day, is in shares alone.
    assert curves.mean_exposure().tolist() == [0.5, 0.875, -0.5, 0.0]
    assert episode_metrics(curves)["cash_share"].tolist() == pytest.approx([(0.25 + 1.5 + 1.0) / 3, 0.0])
    assert math.isnan(float(episode_metrics(curves, torch.zeros(3, 2, dtype=torch.bool))["cash_share"][0]))


def test_drawdowns():
    equity = torch.tensor([[100.0], [120.0], [90.0], [120.0], [150.0]], dtype=torch.float64)
    assert drawdowns(equity).squeeze(1).tolist() == [0.0, 0.0, 0.25, 0.0, 0.0]


def test_groups_are_blocks_of_the_calendar_of_one_path():
    path, start = torch.tensor([0, 0, 1]), torch.tensor([10, 40, 10])
    groups = independent_groups(path, start, 300)
    # Day 30 of the first episode is day 0 of the second; the third is on another path.
    assert torch.equal(groups[30:, 0], groups[:-30, 1])
    assert not set(groups[:, 0].tolist()) & set(groups[:, 2].tolist())
    assert len(groups.unique()) == 20
    lengths = torch.unique_consecutive(groups[:, 0], return_counts=True)[1]
    assert int(lengths[:-1].min()) >= 20


def test_many_paths_are_groups_of_their_own():
    path = torch.arange(30).repeat(3)
    groups = independent_groups(path, torch.arange(90), 50)
    assert bool((groups == groups[0]).all())
    assert torch.equal(groups[0], path)
    assert len(independent_groups(torch.arange(500), torch.zeros(500, dtype=torch.int64), 50).unique()) == 64


@pytest.mark.parametrize(("degrees", "value"), [(3, 3.1824), (7, 2.3646), (19, 2.0930), (63, 1.9983)])
def test_student_quantile_equals_the_printed_table(degrees, value):
    assert student_quantile(degrees) == pytest.approx(value, rel=0.01)


def overlapping(market: torch.Tensor, path: torch.Tensor, start: torch.Tensor, days: int) -> EpisodeCurves:
    """Episodes that hold the market, of shape (P, T), from given days on."""
    day = start + torch.arange(days)[:, None]
    growth = (1 + market[path, day]).cumprod(0)
    equity = torch.cat([torch.ones(1, len(path), dtype=torch.float64), growth])
    nothing, length = torch.zeros(days, len(path)).double(), torch.full((len(path),), days)
    return EpisodeCurves(equity, nothing, torch.zeros_like(equity), length)


@pytest.mark.parametrize("num_paths", [1, 40])
@pytest.mark.assembly
def test_intervals_cover_the_truth_although_episodes_overlap(num_paths):
    generator = torch.Generator().manual_seed(1)
    trials, episodes_each, days, covered, naive = 60, 60, 100, 0, 0
    for _ in range(trials):
        market = 0.01 * torch.randn(num_paths, 400, generator=generator, dtype=torch.float64)
        path = torch.randint(num_paths, (episodes_each,), generator=generator)
        start = torch.randint(300, (episodes_each,), generator=generator)
        curves = overlapping(market, path, start, days)
        interval = summarise(curves, independent_groups(path, start, days)).interval("cumulative_return")
        covered += interval.low <= 0.0 <= interval.high
        total = episode_metrics(curves)["cumulative_return"]
        naive += abs(float(total.mean())) <= 2.0 * float(total.std()) / math.sqrt(episodes_each)
    assert 0.85 <= covered / trials <= 1.0
    if num_paths == 1:
        assert naive / trials < 0.6


def test_a_pair_shares_the_markets_luck():
    generator = torch.Generator().manual_seed(2)
    market = 0.01 * torch.randn(1, 400, generator=generator, dtype=torch.float64)
    path, start = torch.zeros(50, dtype=torch.int64), torch.randint(300, (50,), generator=generator)
    groups = independent_groups(path, start, 100)
    better = summarise(overlapping(market + 0.0005, path, start, 100), groups)
    base = summarise(overlapping(market, path, start, 100), groups)
    own, pair = better.interval("cumulative_return"), better.interval("cumulative_return", base)
    assert own.low < 0.0 < own.high
    assert pair.low > 0.0
    assert pair.mean == pytest.approx(better.mean["cumulative_return"] - base.mean["cumulative_return"])


def test_one_group_gives_no_interval():
    summary = Summary({"sharpe": 1.0}, {"sharpe": torch.tensor([1.0], dtype=torch.float64)})
    interval = summary.interval("sharpe")
    assert interval.mean == 1.0
    assert math.isnan(interval.low) and math.isnan(interval.high)
