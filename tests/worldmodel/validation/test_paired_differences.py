"""Differences of scores, paired by day: what is hard for both models cancels."""

from __future__ import annotations

import math

import pytest
import torch

from vecenv.worldmodel.metrics.forecast import CRPS_UNIT, energy_score, forecast_scores
from vecenv.worldmodel.metrics.intervals import BLOCK
from vecenv.worldmodel.metrics.windows import Windows
from vecenv.worldmodel.validation.paired import (
    DailyScores,
    daily_scores,
    mean_scores,
    paired_difference,
    paired_differences,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_days_that_are_hard_for_both_cancel():
    """Days differ by ten, the models by a tenth on every day: the interval is as narrow as the difference is steady."""
    hard, count = 10.0 * normal(60).abs(), torch.full((60,), 5)
    model = DailyScores(5 * hard, count, 3)
    rival = DailyScores(5 * (hard + 0.1 + 0.01 * normal(60, seed=1)), count, 3)
    found = paired_difference(model, rival)
    assert found != paired_difference(model._replace(block=6), rival)
    assert found.mean == pytest.approx(-0.1, abs=0.01) and -0.11 < found.low < found.high < -0.09
    back = paired_difference(rival, model)
    assert back.mean == pytest.approx(-found.mean) and back.low == pytest.approx(-found.high, abs=1e-3)


def test_days_weigh_by_their_stocks():
    model = DailyScores(torch.tensor([2.0, 0.0, 9.0]), torch.tensor([2, 0, 3]), 1)
    rival = DailyScores(torch.tensor([4.0, 0.0, 3.0]), torch.tensor([2, 0, 3]), 1)
    assert paired_difference(model, rival).mean == pytest.approx((9.0 + 2.0 - 7.0) / 5)
    with pytest.raises(ValueError, match="the same days and stocks"):
        paired_difference(model, rival._replace(stocks=torch.tensor([2, 1, 3])))


def test_scores_of_days_and_origins_and_their_means_over_seeds():
    samples, outcomes = normal(6, 50, 3), normal(6, 3, seed=1)
    outcomes[2, 1] = math.nan
    forecasts = forecast_scores(samples, outcomes)
    scale = torch.ones(3, dtype=torch.float64)
    real, drawn = Windows(normal(4, 1, 20, 3), scale), Windows(normal(4, 5, 20, 3, seed=2), scale)
    found = daily_scores(forecasts, 2, real, drawn)
    assert found["crps"].stocks.tolist() == [3, 3, 2, 3, 3, 3] and found["crps"].block == 2
    assert found["crps"].total[2] == pytest.approx(float(forecasts.crps[2, [0, 2]].sum()) / CRPS_UNIT)
    assert torch.equal(found["energy_score"].total, energy_score(real, drawn)) and found["energy_score"].block == BLOCK
    twice = {"crps": found["crps"]._replace(total=3.0 * found["crps"].total)}
    assert torch.allclose(mean_scores([{"crps": found["crps"]}, twice])["crps"].total, 2.0 * found["crps"].total)
    less = paired_differences({"a": found, "b": found, "c": found}, "b")
    assert {name: set(rivals) for name, rivals in less.items()} == {"crps": {"a", "c"}, "energy_score": {"a", "c"}}
    assert less["crps"]["a"].mean == 0.0
