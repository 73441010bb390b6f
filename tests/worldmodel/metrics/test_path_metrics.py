"""Drawdowns by hand, copies of training windows, and drift by days since the origin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from simulated_windows import NAN, gjr_garch, normal, windows_of, with_gaps

from vecenv.worldmodel.metrics.dependence import autocorrelation
from vecenv.worldmodel.metrics.paths import drawdown_comparison, drift, max_drawdowns, memorisation


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
