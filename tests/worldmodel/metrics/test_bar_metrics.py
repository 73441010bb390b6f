"""Volume, gaps, ranges and valid bars against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from simulated_windows import NAN, normal, valid_bars, windows_of

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME
from vecenv.worldmodel.metrics.bar_statistics import bar_distances, invalid_share, log_volume_ratio, volume_statistics
from vecenv.worldmodel.metrics.windows import align_windows

ORIGINS, PATHS, DAYS, STOCKS, CONTEXT = 3, 2, 12, 2, 25
SCALE = torch.tensor([0.02, 0.05], dtype=torch.float64)


@pytest.fixture(params=[torch.float64, torch.float32])
def windows(request):
    context, real = (
        valid_bars(ORIGINS, 1, CONTEXT, STOCKS, seed=1)[:, 0],
        valid_bars(ORIGINS, 1, DAYS, STOCKS, seed=2)[:, 0],
    )
    real[1, 4, 0], context[0, -3, 1] = NAN, NAN
    real[2, 0, 0, VOLUME] = 0.0
    return align_windows(context, real, valid_bars(ORIGINS, PATHS, DAYS, STOCKS, seed=3).to(request.param), SCALE)


def expected_ratio(side, o, m, t, i):
    before, after = side.context[o, :, i, VOLUME], side.bars[o, m, :, i, VOLUME]
    logs = [math.log(max(v, 1.0)) for v in [*before.tolist(), *after.tolist()]]
    return logs[CONTEXT + t] - sum(logs[CONTEXT + t - 20 : CONTEXT + t]) / 20


def test_volume_is_compared_with_the_twenty_days_before(windows):
    for side in windows:
        ratio = log_volume_ratio(side)
        expected = [expected_ratio(side, *at) for at in np.ndindex(*ratio.shape)]
        assert ratio.flatten().tolist() == pytest.approx(expected, abs=2e-5, nan_ok=True)
    assert 0 < int(ratio.isnan().sum()) < ratio.numel()


def test_volume_statistics_by_their_definitions(windows):
    for side in windows:
        ratio = log_volume_ratio(side).double().numpy()
        size = np.abs(side.returns.double().numpy() / SCALE.numpy())
        both = ~(np.isnan(ratio) | np.isnan(size))
        found = volume_statistics(side)
        assert found.correlation == pytest.approx(np.corrcoef(size[both], ratio[both])[0, 1], abs=1e-5)
        pooled = ratio.reshape(-1, STOCKS)
        z = (ratio - np.nanmean(pooled, axis=0)) / np.nanstd(pooled, axis=0)
        assert found.persistence == pytest.approx(np.nanmean(z[:, :, :-1] * z[:, :, 1:]), abs=1e-5)


def test_planted_dependence_of_volume_on_returns():
    context, real = valid_bars(40, 1, CONTEXT, 4, seed=1)[:, 0], valid_bars(40, 1, 40, 4, seed=2)
    moves = (real[..., CLOSE] / real[..., CLOSE].roll(1, 2)).log().abs()
    real[..., VOLUME] = (12.0 + 20.0 * moves + 0.1 * normal(40, 1, 40, 4)).exp()
    side = align_windows(context, real[:, 0], real, torch.full((4,), 0.02, dtype=torch.float64))[0]
    assert volume_statistics(side).correlation > 0.5


def test_distances_of_gaps_bodies_and_ranges(windows):
    parts = []
    for side in windows:
        bars, scale = side.bars.double(), SCALE.numpy()
        before = torch.cat([side.context[:, None, -1:].expand(-1, bars.shape[1], -1, -1, -1), bars[:, :, :-1]], dim=2)
        pairs = (
            (bars[..., OPEN], before[..., CLOSE]),
            (bars[..., CLOSE], bars[..., OPEN]),
            (bars[..., HIGH], bars[..., LOW]),
        )
        pooled = [((upper / lower).log().numpy() / scale).ravel() for upper, lower in pairs]
        parts.append([values[~np.isnan(values)] for values in pooled])
    expected = [stats.ks_2samp(*sides).statistic for sides in zip(*parts, strict=True)]
    # Float32 may move a value across one of the real sample's.
    assert bar_distances(*windows) == pytest.approx(
        expected, abs=0.01 if windows[1].bars.dtype is torch.float32 else 1e-12
    )
    assert bar_distances(windows[0], windows[0]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "prices",
    [(100, 99, 95, 98), (98, 99, 95, 100), (96, 110, 97, 98), (98, 110, 97, 96)],
    ids=["high_o", "high_c", "low_o", "low_c"],
)
def test_each_way_in_which_a_bar_is_invalid(windows, prices):
    real, synthetic = windows
    assert invalid_share(real) == invalid_share(synthetic) == 0.0
    synthetic.bars[0, 1, 3, 0, :VOLUME] = torch.tensor(prices, dtype=synthetic.bars.dtype)
    assert invalid_share(synthetic) == 1 / int((~synthetic.bars[..., CLOSE].isnan()).sum())


def test_a_bar_without_a_range_is_valid(windows):
    windows[0].bars[0, 0, 0, 0, :VOLUME] = 100.0
    assert invalid_share(windows[0]) == 0.0


@pytest.mark.parametrize("metric", [log_volume_ratio, volume_statistics, invalid_share])
def test_bars_are_needed(metric):
    with pytest.raises(ValueError, match="needs bars"):
        metric(windows_of(normal(2, 1, 5, 3)))


def test_twenty_days_of_context_are_needed(windows):
    context = windows[0].context[:, -10:]
    short = align_windows(context, windows[0].bars[:, 0], windows[1].bars, SCALE)[1]
    with pytest.raises(ValueError, match="20 days of context, got 10"):
        log_volume_ratio(short)
