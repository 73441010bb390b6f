"""Volume, gaps, ranges and valid bars against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from simulated_windows import NAN, correlated, normal, valid_bars, windows_of

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME
from vecenv.worldmodel.metrics.bar_statistics import (
    bar_distances,
    gap_kurtosis,
    gap_statistics,
    invalid_share,
    log_range_ratio,
    log_volume_ratio,
    volume_statistics,
)
from vecenv.worldmodel.metrics.dependence import pair_correlations
from vecenv.worldmodel.metrics.windows import Windows, align_windows

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


@pytest.mark.parametrize(
    "metric", [log_volume_ratio, log_range_ratio, volume_statistics, invalid_share, gap_statistics, gap_kurtosis]
)
def test_bars_are_needed(metric):
    with pytest.raises(ValueError, match="needs bars"):
        metric(windows_of(normal(2, 1, 5, 3)))


def test_twenty_days_of_context_are_needed(windows):
    context = windows[0].context[:, -10:]
    short = align_windows(context, windows[0].bars[:, 0], windows[1].bars, SCALE)[1]
    with pytest.raises(ValueError, match="20 days of context, got 10"):
        log_volume_ratio(short)


def moved(windows, gap, body):
    """Return windows whose bars have these gaps and bodies, without wicks. Shapes: (O, M, H, N)."""
    before = windows.context[:, None, -1:, :, CLOSE] * torch.ones_like(gap[:, :, :1])
    close = before * (gap + body).cumsum(2).exp()
    opened = torch.cat([before, close[:, :, :-1]], dim=2) * gap.exp()
    prices = [opened, opened.maximum(close), opened.minimum(close), close]
    bars = torch.stack([*prices, torch.full_like(close, 1000.0)], dim=-1)
    return Windows(gap + body, windows.scale, bars, windows.context)


@pytest.fixture
def base():
    context = valid_bars(4, 1, CONTEXT, STOCKS, seed=1)[:, 0]
    bars = valid_bars(4, 1, DAYS, STOCKS, seed=2)
    return align_windows(context, bars[:, 0], bars, SCALE)[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gaps_of_zero_are_counted_in_either_precision(base, dtype):
    """An eighth is zero, an eighth smaller than a tick, and the rest as small as a tick of a dear stock."""
    gap = torch.full((4, 1, DAYS, STOCKS), 4e-6, dtype=torch.float64)
    gap.view(-1)[::8], gap.view(-1)[1::8] = 0.0, 5e-7
    side = moved(base, gap, 0.01 * normal(4, 1, DAYS, STOCKS))
    side = Windows(side.returns.to(dtype), side.scale, side.bars.to(dtype), side.context.to(dtype))
    assert gap_statistics(side).zero_share == pytest.approx(0.25)


def test_size_of_gaps_over_that_of_bodies(base):
    """In units of each stock's scale, and over all days that have both."""
    gap, body = 0.02 * normal(4, 1, DAYS, STOCKS), 0.05 * normal(4, 1, DAYS, STOCKS, seed=1)
    side = moved(base, gap, body)
    side.bars[1, 0, 3, 1] = NAN
    shares = []
    for kind in (gap, body):
        values = (kind / SCALE).numpy().copy()
        values[1, 0, 3, 1] = np.nan
        if kind is gap:
            values[1, 0, 4, 1] = np.nan
        shares.append(np.nanstd(values))
    assert gap_statistics(side).body_ratio == pytest.approx(shares[0] / shares[1])


def test_kurtosis_of_gaps_is_of_each_path_alone(base):
    """A path of a hundred times the size leaves the mean over paths as it is; pooling would not."""
    gap = 0.01 * normal(4, 3, DAYS, STOCKS)
    gap[:, 2] *= 0.01
    side = moved(base, gap, torch.zeros_like(gap))
    columns = gap.permute(1, 3, 0, 2).reshape(3 * STOCKS, -1).numpy()
    assert gap_kurtosis(side) == pytest.approx(np.mean([stats.kurtosis(column) for column in columns]))


def test_ranges_are_compared_with_the_twenty_days_before(base):
    """In logarithms, and of a bar of one price as a basis point."""
    base.bars[0, 0, 3, 1, :VOLUME] = 100.0
    found = log_range_ratio(base)
    days = torch.cat([base.context[0, :, 1], base.bars[0, 0, :, 1]])
    logs = [math.log(max(math.log(high / low), 1e-4)) for high, low in days[:, [HIGH, LOW]].tolist()]
    expected = [logs[CONTEXT + t] - sum(logs[CONTEXT + t - 20 : CONTEXT + t]) / 20 for t in range(DAYS)]
    assert found[0, 0, :, 1].tolist() == pytest.approx(expected)
    assert found[0, 0, 3, 1] < -4.0


def test_pair_correlations_of_volumes_that_share_a_part_and_of_independent_ones():
    """A part of 0.4 of the variance is a correlation of 0.4, and volumes of their own have none."""
    context, real = valid_bars(60, 1, CONTEXT, 4, seed=1)[:, 0], valid_bars(60, 1, 40, 4, seed=2)
    for share in (0.4, 0.0):
        for bars, paths in ((context[:, None], 3), (real, 4)):
            bars[..., VOLUME] = (12.0 + 0.5 * correlated(tuple(bars.shape[:-1]), share, seed=paths)).exp()
        side = align_windows(context, real[:, 0], real, torch.full((4,), 0.02, dtype=torch.float64))[0]
        found = pair_correlations(log_volume_ratio(side))
        assert found.shape == (6,) and found.tolist() == pytest.approx([share] * 6, abs=0.08)
