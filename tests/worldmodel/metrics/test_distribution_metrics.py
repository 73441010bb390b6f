"""Widths, distances, moments and tails against SciPy and against distributions with known values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from simulated_windows import correlated, normal, windows_of, with_gaps

from vecenv.worldmodel.metrics.distribution import (
    hill_index,
    horizon_distances,
    return_shape,
    sample_distances,
    tail_indices,
    volatility_ratios,
)
from vecenv.worldmodel.metrics.windows import Windows


def pair():
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    sides = with_gaps(normal(4, 1, 12, 3, seed=1)), with_gaps(1.4 * normal(4, 3, 12, 3, seed=2))
    return [Windows(returns * scale, scale) for returns in sides]


def present(values):
    return values[~values.isnan()].numpy()


@pytest.mark.parametrize("decimals", [0, 9])
@pytest.mark.parametrize("copies", [1, 3])
def test_distances_are_those_of_scipy(decimals, copies):
    """Also with ties."""
    real, synthetic = normal(50, seed=3).round(decimals=decimals), 1.3 * normal(50 * copies, seed=4) + 0.2
    synthetic = synthetic.round(decimals=decimals)
    found = sample_distances(real, synthetic)
    assert found.ks == pytest.approx(stats.ks_2samp(real.numpy(), synthetic.numpy()).statistic, abs=1e-12)
    assert found.wasserstein == pytest.approx(stats.wasserstein_distance(real.numpy(), synthetic.numpy()), abs=1e-12)


def test_distances_of_extreme_samples():
    real = normal(40, seed=5)
    for shift in (-10.0, 10.0):
        assert sample_distances(real, real + shift) == (1.0, pytest.approx(10.0))
    assert sample_distances(real, real.repeat_interleave(4).float()) == (0.0, pytest.approx(0.0, abs=1e-7))
    with pytest.raises(ValueError, match="multiple of the 40 real values, got 50"):
        sample_distances(real, normal(50))
    with pytest.raises(ValueError, match="multiple of the 0"):
        sample_distances(torch.full((3,), math.nan), normal(3))


@pytest.mark.parametrize("days", [1, 5])
def test_distances_of_sums(days):
    sides, sums = pair(), []
    for windows in sides:
        r = (windows.returns / windows.scale).numpy()
        pooled = np.stack([r[:, :, d : d + days].sum(2) for d in range(0, 12 - days + 1, days)]).ravel()
        sums.append(pooled[~np.isnan(pooled)])
    found = horizon_distances(*sides, days)
    assert found.ks == pytest.approx(stats.ks_2samp(*sums).statistic, abs=1e-12)
    assert found.wasserstein == pytest.approx(stats.wasserstein_distance(*sums) / np.std(sums[0]), abs=1e-12)


def test_volatility_ratios_by_their_definitions():
    """Independent stocks leave the market too calm."""
    sides = pair()
    pooled = [np.std(present(w.returns / w.scale)) for w in sides]
    market = [np.std(np.nanmean(w.returns.numpy(), axis=-1)) for w in sides]
    stock = [np.nanstd(w.returns.numpy().reshape(-1, 3), axis=0) for w in sides]
    ratios = np.quantile(stock[1] / stock[0], [0.5, 0.05, 0.95])
    assert volatility_ratios(*sides) == pytest.approx((pooled[1] / pooled[0], market[1] / market[0], *ratios))
    real = windows_of(correlated((20, 1, 40, 25), 0.3, seed=1))
    found = volatility_ratios(real, windows_of(normal(20, 10, 40, 25)))
    assert found.pooled == pytest.approx(1.0, abs=0.03)
    assert found.market == pytest.approx(math.sqrt(0.04 / (0.3 + 0.7 / 25)), rel=0.1)


def test_shape_is_the_median_over_stocks():
    z = normal(4, 2, 12, 5, seed=6)
    returns = with_gaps(torch.sinh(z * torch.arange(1, 6) / 3.0) + 0.3 * z.square() + 7.0)
    columns = [present(returns[..., stock]) for stock in range(5)]
    expected = [np.median([measure(c) for c in columns]) for measure in (stats.kurtosis, stats.skew)]
    assert return_shape(windows_of(returns)) == pytest.approx(expected)


def test_tail_indices_by_their_definitions():
    """The left tail is that of losses; Hill's index is the exponent of a power law."""
    returns = with_gaps(torch.sinh(normal(10, 3, 40, 3, seed=7)) * torch.tensor([1.0, 4.0, 9.0]) - 0.5)
    columns = [present(returns[..., stock]) for stock in range(3)]
    z = np.concatenate([(c - c.mean()) / c.std() for c in columns])

    def hill(sample, share):
        top = np.sort(sample)[::-1][: int(share * len(z))]
        return 1 / np.mean(np.log(top / top[-1]))

    assert tail_indices(windows_of(returns)) == pytest.approx((hill(abs(z), 0.01), hill(abs(z), 0.025), hill(-z, 0.01)))
    uniform = torch.rand(200_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert hill_index(uniform.pow(-1 / 3).topk(5000).values) == pytest.approx(3.0, rel=0.05)
