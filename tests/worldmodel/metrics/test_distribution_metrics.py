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


def pair(factor=1.0, paths=3):
    real, synthetic = with_gaps(normal(4, 1, 12, 3, seed=1)), with_gaps(factor * normal(4, paths, 12, 3, seed=2))
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    return Windows(real * scale, scale), Windows(synthetic * scale, scale)


def present(values):
    return values[~values.isnan()].numpy()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("copies", [1, 3])
def test_distances_are_those_of_scipy(ties, copies):
    real, synthetic = normal(50, seed=3), 1.3 * normal(50 * copies, seed=4) + 0.2
    if ties:
        real, synthetic = real.round(decimals=0), synthetic.round(decimals=0)
    found = sample_distances(real, synthetic)
    assert found.ks == pytest.approx(stats.ks_2samp(real.numpy(), synthetic.numpy()).statistic, abs=1e-12)
    assert found.wasserstein == pytest.approx(stats.wasserstein_distance(real.numpy(), synthetic.numpy()), abs=1e-12)


@pytest.mark.parametrize("shift", [-10.0, 10.0])
def test_samples_without_overlap_are_one_apart(shift):
    real = normal(40, seed=5)
    found = sample_distances(real, real + shift)
    assert found.ks == 1.0 and found.wasserstein == pytest.approx(10.0)


def test_a_sample_against_itself():
    real = normal(40, seed=5)
    assert sample_distances(real, real.repeat_interleave(4).float()) == (0.0, pytest.approx(0.0, abs=1e-7))


def test_samples_of_other_sizes_are_refused():
    with pytest.raises(ValueError, match="multiple of the 40 real values, got 50"):
        sample_distances(normal(40), normal(50))
    with pytest.raises(ValueError, match="multiple of the 0"):
        sample_distances(torch.full((3,), math.nan), normal(3))


@pytest.mark.parametrize("days", [1, 5])
def test_distances_of_sums(days):
    real, synthetic = pair(1.4)
    sums = []
    for windows in (real, synthetic):
        r = (windows.returns / windows.scale).numpy()
        blocks = [r[:, :, d : d + days].sum(2) for d in range(0, 12 - days + 1, days)]
        pooled = np.stack(blocks).ravel()
        sums.append(pooled[~np.isnan(pooled)])
    found = horizon_distances(real, synthetic, days)
    assert found.ks == pytest.approx(stats.ks_2samp(*sums).statistic, abs=1e-12)
    assert found.wasserstein == pytest.approx(stats.wasserstein_distance(*sums) / np.std(sums[0]), abs=1e-12)


def test_volatility_ratios_by_their_definitions():
    real, synthetic = pair(1.4)
    found = volatility_ratios(real, synthetic)
    pooled = [np.std(present(w.returns / w.scale)) for w in (real, synthetic)]
    market = [np.std(np.nanmean(w.returns.numpy(), axis=-1)) for w in (real, synthetic)]
    stock = [np.nanstd(w.returns.numpy().reshape(-1, 3), axis=0) for w in (real, synthetic)]
    ratios = np.quantile(stock[1] / stock[0], [0.5, 0.05, 0.95])
    assert found == pytest.approx((pooled[1] / pooled[0], market[1] / market[0], *ratios))
    assert volatility_ratios(real, real) == pytest.approx((1.0,) * 5)


def test_independent_stocks_leave_the_market_too_calm():
    real = windows_of(correlated((20, 1, 40, 25), 0.3, seed=1))
    found = volatility_ratios(real, windows_of(normal(20, 10, 40, 25)))
    assert found.pooled == pytest.approx(1.0, abs=0.03)
    assert found.market == pytest.approx(math.sqrt(0.04 / (0.3 + 0.7 / 25)), rel=0.1)


def test_shape_is_the_median_over_stocks():
    z = normal(4, 2, 12, 5, seed=6)
    returns = with_gaps(torch.sinh(z * torch.arange(1, 6) / 3.0) + 0.3 * z.square() + 7.0)
    columns = [present(returns[..., stock]) for stock in range(5)]
    found = return_shape(windows_of(returns))
    assert found.excess_kurtosis == pytest.approx(np.median([stats.kurtosis(c) for c in columns]))
    assert found.skew == pytest.approx(np.median([stats.skew(c) for c in columns]))


def test_tail_indices_by_their_definitions():
    returns = with_gaps(torch.sinh(normal(10, 3, 40, 3, seed=7)) * torch.tensor([1.0, 4.0, 9.0]) - 0.5)
    columns = [present(returns[..., stock]) for stock in range(3)]
    z = np.concatenate([(c - c.mean()) / c.std() for c in columns])

    def hill(sample, share):
        top = np.sort(sample)[::-1][: int(share * len(z))]
        return 1 / np.mean(np.log(top / top[-1]))

    assert tail_indices(windows_of(returns)) == pytest.approx((hill(abs(z), 0.01), hill(abs(z), 0.025), hill(-z, 0.01)))


def test_the_left_tail_is_that_of_losses():
    z = normal(20, 5, 40, 2, seed=8)
    heavy_losses = tail_indices(windows_of(torch.where(z < 0, torch.sinh(1.5 * z), z)))
    assert heavy_losses.left < 0.6 * tail_indices(windows_of(-torch.where(z < 0, torch.sinh(1.5 * z), z))).left


def test_hill_finds_the_exponent_of_a_power_law():
    uniform = torch.rand(200_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    largest = uniform.pow(-1 / 3).topk(5000).values
    assert hill_index(largest) == pytest.approx(3.0, rel=0.05)
