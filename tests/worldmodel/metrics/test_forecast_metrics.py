"""Scores of forecasts against their written-out definitions, and whether the true distribution wins."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from simulated_windows import NAN, correlated, normal, windows_of

from vecenv.worldmodel.metrics.forecast import energy_score, forecast_scores, summarise, variogram_score


def test_scores_of_a_stock_by_their_definitions():
    samples, outcomes = normal(3, 5, 2, seed=1), normal(3, 2, seed=2)
    outcomes[1, 1], outcomes[2, 0] = NAN, 0.0
    scores = forecast_scores(samples, outcomes)
    for day in range(3):
        for stock in range(2):
            y, x = float(outcomes[day, stock]), samples[day, :, stock].tolist()
            found = [float(part[day, stock]) for part in scores[:5]]
            if math.isnan(y):
                assert all(math.isnan(value) for value in found) and scores.covered[day, stock].isnan().all()
                continue
            error = sum(abs(a - y) for a in x) / 5
            spread = sum(abs(a - b) for a in x for b in x) / (5 * 4)
            median = sorted(x)[2]
            hit = float((median > 0) == (y > 0)) if y != 0 else NAN
            pit = (sum(a < y for a in x) + 0.5) / 6
            assert found == pytest.approx([error - spread / 2, abs(median - y), error, hit, pit], nan_ok=True)
    # An even number of draws, of which two are below, and half of a tie and half a step count: 3 of 5.
    even = forecast_scores(torch.tensor([[[1.0], [2.0], [4.0], [9.0]]]), torch.tensor([[4.0]]))
    assert float(even.median_error) == 1.0 and float(even.pit) == pytest.approx(0.6)


def test_intervals_end_between_the_right_draws():
    # Of 199 draws the 1st and the last bound 99%, the 10th and 190th 90%, the 50th and 150th 50%.
    samples = torch.arange(1.0, 200.0)[None, :, None].expand(4, -1, 4)
    outcomes = torch.tensor(
        [[0.9, 1.0, 9.9, 10.0], [49.9, 50.0, 150.0, 150.1], [190.0, 190.1, 199.0, 199.1], [NAN] * 4]
    )
    covered = forecast_scores(samples, outcomes).covered
    assert covered[..., 0].nan_to_num(-1).tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [-1] * 4]
    assert covered[..., 1].nan_to_num(-1).tolist() == [[0, 0, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0], [-1] * 4]
    assert covered[..., 2].nan_to_num(-1).tolist() == [[0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [-1] * 4]
    # With 4 draws a quantile of 25% is a quarter of the way from the 1st to the 2nd, and 5% is out of reach.
    samples = torch.tensor([[[0.0], [4.0], [8.0], [12.0]]]).expand(4, -1, -1)
    few = forecast_scores(samples, torch.tensor([[0.9], [1.0], [11.0], [11.1]]))
    assert few.covered[:, 0, 0].tolist() == [0.0, 1.0, 1.0, 0.0] and few.covered[..., 1:].isnan().all()


def test_a_calibrated_normal_forecast():
    """Expected values of a standard normal: 2/sqrt(pi) - 1/sqrt(pi), sqrt(2/pi), 2/sqrt(pi)."""
    summary = summarise(forecast_scores(normal(200, 200, 50, seed=3), normal(200, 50, seed=4)))
    assert summary.crps == pytest.approx(1e4 / math.sqrt(math.pi), rel=0.03)
    assert summary.mae == pytest.approx(math.sqrt(2 / math.pi), rel=0.03)
    assert summary.sampled_mae / summary.mae == pytest.approx(math.sqrt(2), rel=0.01)
    assert summary.direction_accuracy == pytest.approx(0.5, abs=0.02) and summary.pit_distance < 0.02
    assert summary.coverage == pytest.approx((0.5, 0.9, 0.99), abs=0.015)


def test_a_summary_is_of_what_was_observed():
    samples, outcomes = normal(30, 20, 4, seed=5), normal(30, 4, seed=6)
    outcomes[::3, 1] = NAN
    scores, known = forecast_scores(samples, outcomes), ~outcomes.isnan()
    summary = summarise(scores)
    assert summary.crps == pytest.approx(1e4 * float(scores.crps[known].mean()))
    assert summary.direction_accuracy == pytest.approx(float(scores.direction_hit[known].mean()))
    assert summary.pit_distance == pytest.approx(stats.kstest(scores.pit[known].numpy(), "uniform").statistic)
    assert summarise(scores.select(torch.tensor([1, 1]))).mae == pytest.approx(float(scores.median_error[1].mean()))
    for shift in (-0.5, 0.5):
        aside = forecast_scores(samples + shift, outcomes)
        expected = stats.kstest(aside.pit[known].numpy(), "uniform").statistic
        assert summarise(aside).pit_distance == pytest.approx(expected) and expected > summary.pit_distance


def test_crps_prefers_the_true_distribution():
    """Few draws cost nothing on average."""
    outcomes, crps = normal(1000, 20, seed=9), {}
    for name, wrong in (("true", lambda x: x), ("narrow", lambda x: 0.7 * x), ("wide", lambda x: 1.4 * x),
                        ("aside", lambda x: x + 0.3)):  # fmt: skip
        crps[name] = summarise(forecast_scores(wrong(normal(1000, 40, 20, seed=7)), outcomes)).crps
    assert min(crps, key=crps.__getitem__) == "true"
    assert summarise(forecast_scores(normal(1000, 2, 20), outcomes)).crps == pytest.approx(crps["true"], rel=0.02)


def test_draws_that_cannot_be_scored_are_named():
    for samples, outcomes in (((3, 5, 2), (3, 1)), ((5, 2), (5, 2)), ((3, 1, 2), (3, 2))):
        with pytest.raises(ValueError, match=r"samples need|at least 2 draws, got 1"):
            forecast_scores(normal(*samples), normal(*outcomes))
    samples, outcomes = normal(3, 5, 2), normal(3, 2)
    samples[1, 2, 1] = NAN
    with pytest.raises(ValueError, match=r"\(1, 1\), 1 in all"):
        forecast_scores(samples, outcomes)
    outcomes[1, 1] = NAN
    assert forecast_scores(samples, outcomes).crps.isnan().sum() == 1


def test_joint_scores_by_their_definitions():
    """Of each stock's sum of the first 20 standardised returns over sqrt(20), without stocks with a gap."""
    real, synthetic = (windows_of(normal(2, m, 25, 4, seed=10 + m), 0.5) for m in (1, 6))
    real.returns[1, 0, 3, 2], synthetic.returns[1, :, 3, 2] = NAN, NAN
    energy, variogram = energy_score(real, synthetic), variogram_score(real, synthetic)
    for origin, stocks in ((0, [0, 1, 2, 3]), (1, [0, 1, 3])):
        vectors = [(side.returns[origin, :, :20][..., stocks].sum(1) / 0.5 / math.sqrt(20)).tolist()
                   for side in (real, synthetic)]  # fmt: skip
        (y,), x = vectors
        first = sum(math.dist(a, y) for a in x) / 6
        second = sum(math.dist(a, b) for a in x for b in x) / 36 * (6 / 5)
        assert float(energy[origin]) == pytest.approx((first - 0.5 * second) / math.sqrt(len(stocks)))
        pairs = [(i, j) for i in range(len(stocks)) for j in range(i)]
        gaps = [abs(y[i] - y[j]) ** 0.5 - sum(abs(a[i] - a[j]) ** 0.5 for a in x) / 6 for i, j in pairs]
        assert float(variogram[origin]) == pytest.approx(sum(g * g for g in gaps) / len(pairs))
    with pytest.raises(ValueError, match="days 1 to 30"):
        energy_score(real, synthetic, days=30)
    with pytest.raises(ValueError, match="2 draws, got 1"):
        energy_score(real, windows_of(synthetic.returns[:, :1]))


@pytest.mark.parametrize("score", [energy_score, variogram_score])
def test_joint_scores_prefer_the_true_distribution(score):
    def mean(factor: float, correlation: float) -> float:
        real = windows_of(correlated((150, 1, 20, 10), 0.4, seed=1))
        return float(score(real, windows_of(factor * correlated((150, 40, 20, 10), correlation, seed=2))).mean())

    assert mean(1.0, 0.4) < min(mean(0.6, 0.4), mean(1.5, 0.4), mean(1.0, 0.0), mean(1.0, 0.9))
