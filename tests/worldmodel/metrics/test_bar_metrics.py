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
    context = valid_bars(ORIGINS, 1, CONTEXT, STOCKS, seed=1)[:, 0]
    real = valid_bars(ORIGINS, 1, DAYS, STOCKS, seed=2)[:, 0]
    real[1, 4, 0], context[0, -3, 1] = NAN, NAN
    real[2, 0, 0, VOLUME] = 0.0
    real[2, 3, 1, :VOLUME] = 100.0
    return align_windows(context, real, valid_bars(ORIGINS, PATHS, DAYS, STOCKS, seed=3).to(request.param), SCALE)


def test_volume_and_range_are_compared_with_the_twenty_days_before(windows):
    """In logarithms; less than a share counts as one, and a bar of one price as a basis point."""
    measures = (
        (log_volume_ratio, lambda bar: math.log(max(bar[VOLUME], 1.0))),
        (log_range_ratio, lambda bar: math.log(max(math.log(bar[HIGH] / bar[LOW]), 1e-4))),
    )
    for side in windows:
        for metric, measure in measures:
            ratio, expected = metric(side), []
            for o, m, t, i in np.ndindex(*ratio.shape):
                days = torch.cat([side.context[o, :, i], side.bars[o, m, :, i].double()]).tolist()
                logs = [measure(bar) for bar in days[t + 5 : t + 26]]
                expected.append(logs[20] - sum(logs[:20]) / 20)
            assert ratio.flatten().tolist() == pytest.approx(expected, abs=2e-4, nan_ok=True)
            assert 0 < int(ratio.isnan().sum()) < ratio.numel()
    short = align_windows(windows[0].context[:, -19:], windows[0].bars[:, 0], windows[1].bars, SCALE)[1]
    with pytest.raises(ValueError, match="20 days of context, got 19"):
        log_volume_ratio(short)


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


def test_distances_of_gaps_bodies_and_ranges(windows):
    parts = []
    for side in windows:
        bars = side.bars.double()
        before = torch.cat([side.context[:, None, -1:].expand(-1, bars.shape[1], -1, -1, -1), bars[:, :, :-1]], dim=2)
        pairs = ((bars[..., OPEN], before[..., CLOSE]), (bars[..., CLOSE], bars[..., OPEN]))
        pairs += ((bars[..., HIGH], bars[..., LOW]),)
        pooled = [((upper / lower).log() / SCALE).flatten().numpy() for upper, lower in pairs]
        parts.append([values[~np.isnan(values)] for values in pooled])
    expected = [stats.ks_2samp(*sides).statistic for sides in zip(*parts, strict=True)]
    # Float32 may move a value across one of the real sample's.
    tolerance = 0.01 if windows[1].bars.dtype is torch.float32 else 1e-12
    assert bar_distances(*windows) == pytest.approx(expected, abs=tolerance)


def test_each_way_in_which_a_bar_is_invalid(windows):
    """One without a range is valid."""
    real, synthetic = windows
    assert invalid_share(real) == invalid_share(synthetic) == 0.0
    for prices in ((100, 99, 95, 98), (98, 99, 95, 100), (96, 110, 97, 98), (98, 110, 97, 96)):
        synthetic.bars[0, 1, 3, 0, :VOLUME] = torch.tensor(prices, dtype=synthetic.bars.dtype)
        assert invalid_share(synthetic) == 1 / int((~synthetic.bars[..., CLOSE].isnan()).sum())
    for metric in (log_volume_ratio, log_range_ratio, volume_statistics, invalid_share, gap_statistics, gap_kurtosis):
        with pytest.raises(ValueError, match="needs bars"):
            metric(windows_of(normal(2, 1, 5, 3)))


def moved(gap, body) -> Windows:
    """Return windows whose bars have these gaps and bodies, without wicks. Shapes: (O, M, H, N)."""
    context = valid_bars(4, 1, CONTEXT, STOCKS, seed=1)[:, 0]
    before = context[:, None, -1:, :, CLOSE] * torch.ones_like(gap[:, :, :1])
    close = before * (gap + body).cumsum(2).exp()
    opened = torch.cat([before, close[:, :, :-1]], dim=2) * gap.exp()
    prices = [opened, opened.maximum(close), opened.minimum(close), close]
    bars = torch.stack([*prices, torch.full_like(close, 1000.0)], dim=-1)
    return Windows(gap + body, SCALE, bars, context)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gaps_of_zero_are_counted_in_either_precision(dtype):
    """An eighth is zero, an eighth smaller than a tick, and the rest as small as a tick of a dear stock."""
    gap = torch.full((4, 1, DAYS, STOCKS), 4e-6, dtype=torch.float64)
    gap.view(-1)[::8], gap.view(-1)[1::8] = 0.0, 5e-7
    side = moved(gap, 0.01 * normal(4, 1, DAYS, STOCKS))
    side = Windows(side.returns.to(dtype), side.scale, side.bars.to(dtype), side.context.to(dtype))
    assert gap_statistics(side).zero_share == pytest.approx(0.25)


def test_size_of_gaps_over_that_of_bodies():
    """In units of each stock's scale, and over all days that have both."""
    gap, body = 0.02 * normal(4, 1, DAYS, STOCKS), 0.05 * normal(4, 1, DAYS, STOCKS, seed=1)
    side = moved(gap, body)
    side.bars[1, 0, 3, 1] = NAN
    gaps, bodies = ((kind / SCALE).numpy().copy() for kind in (gap, body))
    gaps[1, 0, 3:5, 1] = bodies[1, 0, 3, 1] = np.nan
    assert gap_statistics(side).body_ratio == pytest.approx(np.nanstd(gaps) / np.nanstd(bodies))


def test_kurtosis_of_gaps_is_of_each_path_alone():
    """A path of a hundredth of the size leaves the mean over paths as it is; pooling would not."""
    gap = 0.01 * normal(4, 3, DAYS, STOCKS)
    gap[:, 2] *= 0.01
    columns = gap.permute(1, 3, 0, 2).reshape(3 * STOCKS, -1).numpy()
    expected = np.mean([stats.kurtosis(column) for column in columns])
    assert gap_kurtosis(moved(gap, torch.zeros_like(gap))) == pytest.approx(expected)


def test_planted_dependence_of_volume():
    """On the size of returns, and between stocks: a shared part of 0.4 of the variance is a correlation of 0.4."""
    scale = torch.full((4,), 0.02, dtype=torch.float64)
    context, real = valid_bars(60, 1, CONTEXT, 4, seed=1)[:, 0], valid_bars(60, 1, 40, 4, seed=2)
    for share in (0.4, 0.0):
        for bars, paths in ((context[:, None], 3), (real, 4)):
            bars[..., VOLUME] = (12.0 + 0.5 * correlated(tuple(bars.shape[:-1]), share, seed=paths)).exp()
        found = pair_correlations(log_volume_ratio(align_windows(context, real[:, 0], real, scale)[0]))
        assert found.shape == (6,) and found.tolist() == pytest.approx([share] * 6, abs=0.08)
    moves = (real[..., CLOSE] / real[..., CLOSE].roll(1, 2)).log().abs()
    real[..., VOLUME] = (12.0 + 20.0 * moves + 0.1 * normal(60, 1, 40, 4)).exp()
    assert volume_statistics(align_windows(context, real[:, 0], real, scale)[0]).correlation > 0.5
