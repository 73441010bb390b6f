"""Distributions, dependence and paths of returns against SciPy, plain loops and planted effects."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
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
from vecenv.worldmodel.metrics.distribution import (
    hill_index,
    horizon_distances,
    return_shape,
    sample_distances,
    tail_indices,
    volatility_ratios,
)
from vecenv.worldmodel.metrics.paths import drawdown_comparison, drift, max_drawdowns, memorisation
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


def test_drawdowns_by_hand():
    """From 120 to 90; from the origin's close, whose last day is beyond four days; and none."""
    prices = [[100, 120, 90, 130, 117, 125], [100, 80, 90, 95, 99, 70], [100, 101, 102, 103, 104, 105]]
    windows = windows_of(torch.tensor(np.diff(np.log(prices)))[None, :, :, None])
    assert max_drawdowns(windows, 5).flatten().tolist() == pytest.approx([25.0, 30.0, 0.0])
    assert max_drawdowns(windows, 4).flatten().tolist() == pytest.approx([25.0, 20.0, 0.0])


def test_drawdowns_are_compared_in_percentage_points():
    """Windows with gaps have none."""
    real, synthetic = (windows_of(with_gaps(0.02 * normal(3, m, 45, 3, seed=m))) for m in (1, 4))
    falls = [[], []]
    for side, windows in enumerate((real, synthetic)):
        for o, m, i in np.ndindex(3, windows.returns.shape[1], 3):
            level, peak, worst = 1.0, 1.0, 0.0
            for move in windows.returns[o, m, :40, i].tolist():
                level *= math.exp(move)
                peak = max(peak, level)
                worst = max(worst, 100 * (1 - level / peak)) if not math.isnan(level) else NAN
            falls[side] += [] if math.isnan(level) else [worst]
    expected = (np.mean(falls[0]), np.mean(falls[1]), stats.wasserstein_distance(*falls))
    assert drawdown_comparison(real, synthetic) == pytest.approx(expected)
    assert int(max_drawdowns(synthetic).isnan().sum()) == 4 * 2


def test_memorisation_by_its_definition():
    train, real, synthetic = normal(60, 2), *(windows_of(normal(4, m, 11, 2, seed=m)) for m in (1, 3))
    train[7, 1], real.returns[1, 0, 2, 0], synthetic.returns[1, :, 2, 0] = NAN, NAN, NAN

    def scaled(path):
        return (path - path.mean()) / np.sqrt(((path - path.mean()) ** 2).sum())

    def paths(returns):
        blocks = [returns[o, m, d : d + 5, i] for o, m, i in np.ndindex(*returns.shape[:2], 2) for d in (0, 5)]
        return [scaled(block) for block in blocks if not np.isnan(block).any()]

    table = train.numpy()
    history = [table[d : d + 5, i] for d in range(56) for i in range(2)]
    history = np.array([scaled(block) for block in history if not np.isnan(block).any()])
    distances = [
        np.array([np.linalg.norm(history - path, axis=1).min() for path in paths(windows.returns.numpy())])
        for windows in (real, synthetic)
    ]
    below = np.mean(distances[1] < np.quantile(distances[0], 0.01))
    # torch's median of an even number is the lower of the two in the middle.
    medians = [np.sort(d)[(len(d) - 1) // 2] for d in distances]
    expected = (medians[1] / medians[0], below)
    assert memorisation(train, real, synthetic, days=5) == pytest.approx(expected, abs=1e-5)
    flat = torch.cat([synthetic.returns, torch.zeros_like(synthetic.returns)], dim=1)
    assert memorisation(train, real, windows_of(flat), days=5) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="paths of 20 days need as many days of training data, got 19"):
        memorisation(normal(19, 2), real, synthetic)


@pytest.mark.parametrize("rescale", [1.0, 3.0])
def test_copies_of_training_windows_are_flagged_and_fresh_paths_are_not(rescale):
    """Nor are calm paths near for being calm."""
    train = gjr_garch(400, 10, asymmetry=0.1)
    real, fresh = windows_of(normal(60, 1, 40, 10, seed=3)), windows_of(normal(60, 4, 40, 10, seed=4))
    for honest in (fresh, windows_of(0.3 * fresh.returns)):
        found = memorisation(train, real, honest)
        assert found.distance_ratio == pytest.approx(1.0, abs=0.02) and found.share_below < 0.025
    copied = fresh.returns.clone()
    copied[:, 1, :20] = rescale * train[133:153]
    # One of four paths is copied, on the first of its two halves.
    assert memorisation(train, real, windows_of(copied)).share_below == pytest.approx(1 / 8, abs=0.02)
    copied[:, :, :20], copied[:, :, 20:] = train[50:70], train[201:221]
    found = memorisation(train, real, windows_of(copied))
    assert found.share_below == 1.0 and found.distance_ratio < 0.01
    some = memorisation(train, real, fresh, max_paths=50)
    assert (
        some == memorisation(train, real, fresh, max_paths=50) != memorisation(train, real, fresh, max_paths=50, seed=1)
    )
    assert some.share_below * 50 == pytest.approx(round(some.share_below * 50))


def test_drift_by_its_definition():
    real, synthetic = normal(20, 1, 40, 5, seed=5), normal(20, 6, 40, 5, seed=6)
    synthetic[:, :, 30:] *= 2.0
    found = drift(windows_of(real, 0.5), windows_of(synthetic, 0.5))
    assert [(bucket.first, bucket.last) for bucket in found] == [(1, 10), (11, 20), (21, 30), (31, 40)]
    for bucket in found:
        days = slice(bucket.first - 1, bucket.last)
        observed, generated = real[:, :, days], synthetic[:, :, days]
        assert bucket.volatility_ratio == pytest.approx(float(generated.std(correction=0) / observed.std(correction=0)))
        ks = stats.ks_2samp(observed.flatten().numpy(), generated.flatten().numpy()).statistic
        assert bucket.ks == pytest.approx(ks)
        for error, part in ((bucket.return_acf_error, torch.clone), (bucket.magnitude_acf_error, torch.abs)):
            curves = [autocorrelation(part(side), 9) for side in (generated, observed)]
            assert error == pytest.approx(float((curves[0] - curves[1]).abs().mean()))
    windows = windows_of(normal(4, 1, 80, 5))
    assert drift(windows, windows, [(41, 80)]) == ((41, 80, 1.0, 0.0, 0.0, 0.0),)
    with pytest.raises(ValueError, match="days 41 to 250"):
        drift(windows, windows, [(41, 250)])
