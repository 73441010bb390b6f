"""Autocorrelation, leverage and cross-correlation against plain loops and against planted effects."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from simulated_windows import NAN, correlated, cut, gjr_garch, normal, windows_of, with_gaps

from vecenv.worldmodel.metrics.dependence import (
    LagCurves,
    autocorrelation,
    correlation_matrix,
    correlation_rmse,
    cross_correlation,
    leverage,
    leverage_curves,
    magnitude_autocorrelation,
    return_autocorrelation,
)


def standardised(values):
    pooled = values.reshape(-1, values.shape[-1])
    return (values - np.nanmean(pooled, axis=0)) / np.nanstd(pooled, axis=0)


def lagged_pairs(values, lag):
    """Yield the stock's values on both days of each pair within a window."""
    origins, paths, horizon, stocks = values.shape
    for o, m, t, i in np.ndindex(origins, paths, horizon - lag, stocks):
        first, second = values[o, m, t, i], values[o, m, t + lag, i]
        if not (math.isnan(first) or math.isnan(second)):
            yield first, second


@pytest.fixture(params=[torch.float64, torch.float32])
def gapped(request):
    return with_gaps(normal(3, 2, 9, 3, seed=1) * torch.tensor([1.0, 3.0, 0.1]) + 0.2).to(request.param)


def test_autocorrelation_by_its_definition(gapped):
    z = standardised(gapped.double().numpy())
    expected = [np.mean([a * b for a, b in lagged_pairs(z, lag)]) for lag in (1, 2, 3, 4)]
    assert autocorrelation(gapped, 4).tolist() == pytest.approx(expected, abs=1e-6)


def test_leverage_by_its_definition(gapped):
    z = standardised(gapped.double().numpy())
    pairs = [np.array([(a, b * b) for a, b in lagged_pairs(z, lag)]) for lag in (1, 2, 3)]
    expected = [np.corrcoef(p.T)[0, 1] for p in pairs]
    assert leverage(gapped, 3).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.assembly
def test_short_windows_do_not_bias_the_autocorrelation():
    """Of a slow series, means of single windows would take most of the autocorrelation away."""
    noise = normal(4000 * 10, 1, seed=2)
    series = [noise[0]]
    for shock in noise[1:]:
        series.append(0.95 * series[-1] + math.sqrt(1 - 0.95**2) * shock)
    found = autocorrelation(cut(torch.stack(series), 10), 5)
    assert found.tolist() == pytest.approx([0.95**lag for lag in range(1, 6)], abs=0.02)


def test_planted_clusters_and_leverage_are_found():
    planted = windows_of(cut(gjr_garch(2000, 60, asymmetry=0.3), 40))
    plain = windows_of(normal(50, 4, 40, 60, seed=3))
    clusters, nothing = magnitude_autocorrelation(planted, plain), return_autocorrelation(planted, plain)
    assert clusters.real[:5].min() > 0.08 and clusters.synthetic.abs().max() < 0.01
    assert clusters.error > 0.03
    assert nothing.real.abs().max() < 0.02 and nothing.synthetic.abs().max() < 0.01
    effect = leverage_curves(planted, plain).means(5)
    assert effect.real < -0.05 and abs(effect.synthetic) < 0.01
    mirrored = leverage(-planted.returns)
    assert mirrored[:5].mean() > 0.05 and len(mirrored) == 10


def test_windows_against_themselves_differ_by_nothing():
    windows = windows_of(normal(3, 2, 25, 4))
    for curves in (return_autocorrelation, magnitude_autocorrelation, leverage_curves):
        assert curves(windows, windows).error == 0.0


def test_curves():
    curves = LagCurves(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([2.0, 0.0, 9.0]))
    assert curves.error == pytest.approx(1.0) and curves.means(2) == (1.5, 1.0)


def test_lags_must_fit_into_the_windows():
    with pytest.raises(ValueError, match="lags must be 1 to 8 in windows of 9 days, got 9"):
        autocorrelation(normal(2, 1, 9, 3), 9)


def test_correlations_are_over_the_days_that_a_pair_shares():
    values = normal(3000, 4, seed=4) + 0.5 * normal(3000, 1, seed=5)
    values[::3, 0], values[1::2, 1], values[:, 3] = NAN, NAN, NAN
    values[0, 3] = 1.0
    found = correlation_matrix(values)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        both = values[~(values[:, i].isnan() | values[:, j].isnan())].numpy()
        assert float(found[i, j]) == float(found[j, i]) == pytest.approx(np.corrcoef(both[:, i], both[:, j])[0, 1])
    assert found[3].isnan().all()


def test_one_shared_day_is_no_correlation():
    values = torch.full((5, 2), NAN)
    values[:3, 0], values[2:, 1] = torch.tensor([0.1, 0.7, 0.3]), torch.tensor([0.3, 0.9, 0.1])
    assert correlation_matrix(values)[0, 1].isnan()


def test_days_without_any_stock_are_not_among_the_worst():
    returns = correlated((5, 2, 40, 6), 0.3, seed=1)
    found, longer = (cross_correlation(windows_of(r)) for r in (returns, torch.cat([returns, returns * NAN], dim=2)))
    assert longer.worst_days == pytest.approx(found.worst_days, rel=1e-9)


def test_long_tables_are_summed_in_blocks():
    values = correlated((30_000, 3), 0.3).float()
    np.testing.assert_allclose(correlation_matrix(values).numpy(), np.corrcoef(values.double().numpy().T), atol=1e-5)


def test_cross_correlation_by_its_definition():
    returns = correlated((5, 2, 40, 6), 0.3, seed=1) * torch.arange(1, 7)
    days = returns.reshape(-1, 6).numpy()
    upper = np.triu_indices(6, 1)
    matrix = np.corrcoef(days.T)
    worst = days[np.argsort(days.mean(1))[:20]]
    found = cross_correlation(windows_of(returns))
    assert found.mean == pytest.approx(matrix[upper].mean())
    assert found.first_eigenvalue == pytest.approx(np.linalg.eigvalsh(matrix)[-1] / 6)
    assert found.worst_days == pytest.approx(np.corrcoef(worst.T)[upper].mean())
    other = cross_correlation(windows_of(normal(5, 2, 40, 6)))
    expected = np.sqrt(np.mean((np.corrcoef(normal(5, 2, 40, 6).reshape(-1, 6).numpy().T) - matrix)[upper] ** 2))
    assert correlation_rmse(found, other) == pytest.approx(expected)
    assert correlation_rmse(found, found) == 0.0


def test_independent_and_identical_stocks():
    independent = cross_correlation(windows_of(normal(50, 4, 40, 20)))
    assert independent.first_eigenvalue == pytest.approx(1 / 20, rel=0.15) and abs(independent.mean) < 0.005
    same = cross_correlation(windows_of(normal(5, 4, 40, 1).expand(-1, -1, -1, 20)))
    assert same.first_eigenvalue == pytest.approx(1.0) and same.mean == pytest.approx(1.0)
    assert same.worst_days == pytest.approx(1.0)


def test_a_crash_that_all_share_shows_on_the_worst_days():
    returns = normal(50, 1, 40, 10, seed=6)
    crash = torch.rand(50, 1, 40, 1, generator=torch.Generator().manual_seed(1)) < 0.05
    common = torch.where(crash, -3.0 - 2.0 * normal(50, 1, 40, 1, seed=7).abs(), 0.0)
    calm, crashing = (cross_correlation(windows_of(r)) for r in (returns, returns + common))
    assert crashing.worst_days > calm.worst_days + 0.3


def test_missing_stocks():
    returns = correlated((5, 2, 40, 4), 0.3, seed=1)
    whole = cross_correlation(windows_of(returns[..., :3]))
    returns[..., 3] = NAN
    found = cross_correlation(windows_of(returns))
    assert found.mean == pytest.approx(whole.mean)
    assert found.first_eigenvalue == pytest.approx(whole.first_eigenvalue)
    with pytest.raises(ValueError, match="at least 2 stocks"):
        cross_correlation(windows_of(returns[..., :1]))


def test_stocks_that_never_share_a_day_have_no_eigenvalue():
    returns = normal(4, 1, 10, 6)
    returns[:2, ..., 0], returns[2:, ..., 3] = NAN, NAN
    assert math.isnan(cross_correlation(windows_of(returns)).first_eigenvalue)
