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


def lagged_pairs(values, lag):
    """Return a stock's standardised values on both days of each pair within a window. Shape: (pairs, 2)."""
    pooled = values.reshape(-1, values.shape[-1])
    z = (values - np.nanmean(pooled, axis=0)) / np.nanstd(pooled, axis=0)
    pairs = np.stack([z[:, :, :-lag], z[:, :, lag:]], axis=-1).reshape(-1, 2)
    return pairs[~np.isnan(pairs).any(1)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_autocorrelation_and_leverage_by_their_definitions(dtype):
    gapped = with_gaps(normal(3, 2, 9, 3, seed=1) * torch.tensor([1.0, 3.0, 0.1]) + 0.2).to(dtype)
    pairs = [lagged_pairs(gapped.double().numpy(), lag) for lag in (1, 2, 3, 4)]
    assert autocorrelation(gapped, 4).tolist() == pytest.approx([p.prod(1).mean() for p in pairs], abs=1e-6)
    expected = [np.corrcoef(p[:, 0], p[:, 1] ** 2)[0, 1] for p in pairs]
    assert leverage(gapped, 4).tolist() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="lags must be 1 to 8 in windows of 9 days, got 9"):
        autocorrelation(gapped, 9)
    assert len(autocorrelation(gapped, 8)) == 8 and len(autocorrelation(normal(1, 1, 30, 2))) == 20


def test_planted_clusters_and_leverage_are_found():
    planted = windows_of(cut(gjr_garch(2000, 60, asymmetry=0.3), 40))
    plain = windows_of(normal(50, 4, 40, 60, seed=3))
    clusters, nothing = magnitude_autocorrelation(planted, plain), return_autocorrelation(planted, plain)
    assert clusters.real[:5].min() > 0.08 and clusters.synthetic.abs().max() < 0.01 and clusters.error > 0.03
    assert nothing.real.abs().max() < 0.02 and nothing.synthetic.abs().max() < 0.01
    effect = leverage_curves(planted, plain).means(5)
    assert effect.real < -0.05 and abs(effect.synthetic) < 0.01
    mirrored = leverage(-planted.returns)
    assert mirrored[:5].mean() > 0.05 and len(mirrored) == 10
    curves = LagCurves(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([2.0, 0.0, 9.0]))
    assert curves.error == pytest.approx(1.0) and curves.means(2) == (1.5, 1.0)


def test_correlations_are_over_the_days_that_a_pair_shares():
    """Two at least; long tables are summed in blocks."""
    values = normal(30_000, 4, seed=4) + 0.5 * normal(30_000, 1, seed=5)
    values[::3, 0], values[1::2, 1], values[:, 3] = NAN, NAN, NAN
    values[0, 3] = 1.0
    found = correlation_matrix(values)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        both = values[~(values[:, i].isnan() | values[:, j].isnan())].numpy()
        assert float(found[i, j]) == float(found[j, i]) == pytest.approx(np.corrcoef(both[:, i], both[:, j])[0, 1])
    assert found[3].isnan().all()
    values = torch.full((5, 2), NAN)
    values[:3, 0], values[2:, 1] = torch.tensor([0.1, 0.7, 0.3]), torch.tensor([0.3, 0.9, 0.1])
    assert correlation_matrix(values)[0, 1].isnan()
    values[1, 1] = 0.2
    assert float(correlation_matrix(values)[0, 1]) == pytest.approx(-1.0, abs=1e-5)


def test_cross_correlation_by_its_definition():
    """Days without any stock are not among the worst, and a stock without a day is left out."""
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
    assert correlation_rmse(found, other) == pytest.approx(expected) and correlation_rmse(found, found) == 0.0
    longer = cross_correlation(windows_of(torch.cat([returns, returns * NAN], dim=2)))
    assert longer.worst_days == pytest.approx(found.worst_days, rel=1e-9)
    lacking = cross_correlation(windows_of(torch.cat([returns, NAN * returns[..., :1]], dim=-1)))
    assert lacking[1:] == pytest.approx(found[1:])
    with pytest.raises(ValueError, match="at least 2 stocks"):
        cross_correlation(windows_of(returns[..., :1]))
    apart = returns[:4].clone()
    apart[:2, ..., 0], apart[2:, ..., 3] = NAN, NAN
    assert math.isnan(cross_correlation(windows_of(apart)).first_eigenvalue)


def test_a_crash_that_all_share_shows_on_the_worst_days():
    returns = normal(50, 1, 40, 10, seed=6)
    crash = torch.rand(50, 1, 40, 1, generator=torch.Generator().manual_seed(1)) < 0.05
    common = torch.where(crash, -3.0 - 2.0 * normal(50, 1, 40, 1, seed=7).abs(), 0.0)
    calm, crashing = (cross_correlation(windows_of(r)) for r in (returns, returns + common))
    assert crashing.worst_days > calm.worst_days + 0.3
