"""Windows with the same gaps on both sides, intervals over origins, and gaps, ranges and volume by plain loops."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tests.worldmodel.validation.simulated_windows import NAN, normal, valid_bars, windows_of, with_gaps
from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME
from vecenv.worldmodel.validation import bar_statistics
from vecenv.worldmodel.validation import windows as module
from vecenv.worldmodel.validation.criteria import CRITERIA
from vecenv.worldmodel.validation.windows import Windows, align_windows, block_bootstrap, drawn_origins

ORIGINS, PATHS, DAYS, STOCKS, CONTEXT = 3, 3, 12, 2, 25
SCALE = torch.tensor([0.02, 0.05], dtype=torch.float64)


def parts(dtype=torch.float64):
    context = valid_bars(ORIGINS, 1, CONTEXT, STOCKS, seed=1)[:, 0]
    real = valid_bars(ORIGINS, 1, DAYS, STOCKS, seed=2)[:, 0]
    return context, real, valid_bars(ORIGINS, PATHS, DAYS, STOCKS, seed=3).to(dtype)


def test_returns_start_from_the_close_of_the_origin_and_both_sides_have_the_real_gaps():
    context, real, synthetic = parts()
    observed, generated = align_windows(context, real, synthetic, SCALE)
    first = math.log(synthetic[1, 2, 0, 1, CLOSE] / context[1, -1, 1, CLOSE])
    later = math.log(synthetic[1, 2, 4, 1, CLOSE] / synthetic[1, 2, 3, 1, CLOSE])
    assert generated.returns[1, 2, [0, 4], 1].tolist() == pytest.approx([first, later], abs=1e-12)
    assert float(observed.returns[2, 0, 3, 0]) == pytest.approx(math.log(real[2, 3, 0, CLOSE] / real[2, 2, 0, CLOSE]))
    single = align_windows(*parts(torch.float32), SCALE)[1].returns
    assert single.dtype is torch.float32 and torch.allclose(single.double(), generated.returns, rtol=0, atol=3e-7)
    before = synthetic.clone()
    real[0, 2, 1, VOLUME] = context[1, -1, 0, CLOSE] = context[2, 0, 0, CLOSE] = NAN
    bars, returns = (torch.zeros(ORIGINS, DAYS, STOCKS, dtype=torch.bool) for _ in range(2))
    bars[0, 2, 1] = bars[1, :, 0] = returns[0, 2:4, 1] = returns[1, :, 0] = True
    for side in align_windows(context, real, synthetic, SCALE):
        shape = side.returns.shape
        assert torch.equal(side.bars.isnan().any(-1), bars[:, None].expand(shape))
        assert torch.equal(side.returns.isnan(), returns[:, None].expand(shape))
    assert torch.equal(synthetic, before)
    context, real, synthetic = parts()
    synthetic[1, 2, 3, 0, HIGH] = NAN
    with pytest.raises(ValueError, match=r"origin 1, path 2, day 3, stock 0 is \["):
        align_windows(context, real, synthetic, SCALE)
    real[1, 3, 0] = NAN
    synthetic[0, 0, 0, 1, CLOSE] = 0.0
    with pytest.raises(ValueError, match="origin 0, path 0, day 0, stock 1"):
        align_windows(context, real, synthetic, SCALE)
    with pytest.raises(ValueError, match="synthetic_bars"):
        align_windows(context, real, synthetic[:2], SCALE)


def test_parts_selections_sums_and_moments_of_windows():
    for part, wrong, told in (
        ("returns", normal(2, 3, 4), r"returns need the shape \(O, M, H, N\)"),
        ("scale", torch.ones(3), "one number for each of 2 stocks"),
        ("scale", torch.tensor([1.0, NAN]), r"stocks \[1\]"),
        ("scale", torch.tensor([0.0, 1.0]), r"stocks \[0\]"),
        ("bars", normal(ORIGINS, PATHS, DAYS, STOCKS, 4), "bars"),
        ("context", normal(ORIGINS - 1, CONTEXT, STOCKS, 5), "context"),
        ("context", normal(ORIGINS, CONTEXT, STOCKS, 4), "context"),
    ):
        fitting = {"returns": normal(ORIGINS, PATHS, DAYS, STOCKS), "scale": torch.ones(STOCKS)}
        with pytest.raises(ValueError, match=told):
            Windows(**(fitting | {part: wrong}))
    windows = align_windows(*parts(), SCALE)[1]
    chosen = windows.select(torch.tensor([2, 2]))
    assert torch.equal(chosen.returns[1], windows.returns[2]) and torch.equal(chosen.bars[0], windows.bars[2])
    assert torch.equal(chosen.context[1], windows.context[2])
    assert torch.equal(windows.days(2, 4).returns, windows.returns[:, :, 1:4]) and windows.days(1, DAYS).bars is None
    for first, last in ((1, DAYS + 1), (0, 1), (3, 2)):
        with pytest.raises(ValueError, match=f"days {first} to {last} are not within the windows' 1 to 12"):
            windows.days(first, last)
    with pytest.raises(ValueError, match="26 days of context, got 25"):
        windows.bars_and_context(CONTEXT + 1)
    assert torch.equal(windows.bars_and_context(2)[1], windows.context[:, -2:])
    returns = with_gaps(normal(2, 3, 7, 2) * torch.tensor([1.0, 5.0]) + 3.0)
    sums, market = windows_of(returns, scale=0.5).sums(3), windows_of(returns).market
    assert sums.shape == (2, 3, 2, 2)
    assert float(sums[1, 2, 1, 1]) == pytest.approx(2.0 * float(returns[1, 2, 3:6, 1].sum()))
    assert sums[1, :, 0, 0].isnan().all() and not sums[1, :, 1, 0].isnan().any()
    assert float(market[1, 0, 0]) == pytest.approx(float(returns[1, 0, 0].mean()))
    assert float(market[0, 1, 5]) == float(returns[0, 1, 5, 0])
    mean, spread = module.stock_moments(returns)
    for stock in range(2):
        pooled = returns[..., stock][~returns[..., stock].isnan()]
        centre, width = float(pooled.mean()), float(pooled.std(correction=0))
        assert float(mean[stock]) == pytest.approx(centre) and float(spread[stock]) == pytest.approx(width)
        z = (float(returns[1, 1, 6, stock]) - centre) / width
        assert float(module.standardise(returns)[1, 1, 6, stock]) == pytest.approx(z)
    close = torch.tensor([[100.0, 110.0, NAN, 500.0, 505.0, 490.0]], dtype=torch.float64).T
    without = torch.tensor([1.1, 505 / 500, 490 / 505], dtype=torch.float64).log()
    assert float(module.return_scale(close)) == pytest.approx(float(without.std(correction=0)))
    assert module.deviation(returns) == pytest.approx(float(returns[~returns.isnan()].std(correction=0)))


def test_intervals_hold_95_percent_of_the_draws_of_runs_of_neighbours():
    again = drawn_origins(10, block=3, draws=4000)
    assert again.shape == (4000, 10)
    within = again[:, :9].reshape(-1, 3, 3)
    assert torch.equal(within[..., 1:], (within[..., :-1] + 1) % 10)
    assert (again.flatten().bincount(minlength=10) / again.numel()).tolist() == pytest.approx([0.1] * 10, abs=0.005)
    found, values = [], normal(30, seed=1)

    def spread(at: torch.Tensor) -> float:
        found.append(float(values[at].std()))
        return found[-1]

    interval = block_bootstrap(spread, 30, block=2, draws=999)
    bounds = np.quantile(found[1:], (0.025, 0.975)).tolist()
    assert interval == pytest.approx((float(values.std()), *bounds)) and len(found) == 1000
    assert interval != block_bootstrap(spread, 30, block=2, draws=999, seed=1)
    few = block_bootstrap(lambda at: 1.0, 8)
    assert few.mean == 1.0 and math.isnan(few.low) and math.isnan(few.high)
    assert block_bootstrap(lambda at: 1.0, 9) == (1.0, 1.0, 1.0)
    for counts in ((0, 1, 5), (9, 0, 5), (9, 1, 0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            block_bootstrap(lambda at: 1.0, *counts)


@pytest.fixture(params=[torch.float64, torch.float32])
def windows(request):
    context, real, synthetic = parts(request.param)
    real[1, 4, 0], context[0, -3, 1] = NAN, NAN
    real[2, 0, 0, VOLUME] = 0.0
    real[2, 3, 1, :VOLUME] = 100.0
    return align_windows(context, real, synthetic, SCALE)


def test_volume_and_range_are_compared_with_the_twenty_days_before(windows):
    """In logarithms; less than a share counts as one, and a bar of one price as a basis point."""
    for side in windows:
        for metric, measure in (
            (bar_statistics.log_volume_ratio, lambda bar: math.log(max(bar[VOLUME], 1.0))),
            (bar_statistics.log_range_ratio, lambda bar: math.log(max(math.log(bar[HIGH] / bar[LOW]), 1e-4))),
        ):
            ratio, expected = metric(side), []
            for o, m, t, i in np.ndindex(*ratio.shape):
                days = torch.cat([side.context[o, :, i], side.bars[o, m, :, i].double()]).tolist()
                logs = [measure(bar) for bar in days[t + 5 : t + 26]]
                expected.append(logs[20] - sum(logs[:20]) / 20)
            assert ratio.flatten().tolist() == pytest.approx(expected, abs=2e-4, nan_ok=True)
            assert 0 < int(ratio.isnan().sum()) < ratio.numel()
    short = align_windows(windows[0].context[:, -19:], windows[0].bars[:, 0], windows[1].bars, SCALE)[1]
    with pytest.raises(ValueError, match="20 days of context, got 19"):
        bar_statistics.log_volume_ratio(short)
    for side in windows:
        ratio = bar_statistics.log_volume_ratio(side).double().numpy()
        size = np.abs(side.returns.double().numpy() / SCALE.numpy())
        both = ~(np.isnan(ratio) | np.isnan(size))
        found = {each.key: each.statistic for each in CRITERIA if each.key.startswith("volume_")}
        assert found["volume_correlation"](side) == pytest.approx(np.corrcoef(size[both], ratio[both])[0, 1], abs=1e-5)
        pooled = ratio.reshape(-1, STOCKS)
        z = (ratio - np.nanmean(pooled, axis=0)) / np.nanstd(pooled, axis=0)
        persistence = np.nanmean(z[:, :, :-1] * z[:, :, 1:])
        assert found["volume_persistence"](side) == pytest.approx(persistence, abs=1e-5)


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
    quotients = ((OPEN, None), (CLOSE, OPEN), (HIGH, LOW))
    found = [bar_statistics.bar_distance(*windows, *quotient) for quotient in quotients]
    assert found == pytest.approx(expected, abs=tolerance)


def test_each_way_in_which_a_bar_is_invalid(windows):
    real, synthetic = windows
    assert bar_statistics.invalid_share(real) == bar_statistics.invalid_share(synthetic) == 0.0
    for prices in ((100, 99, 95, 98), (98, 99, 95, 100), (96, 110, 97, 98), (98, 110, 97, 96)):
        synthetic.bars[0, 1, 3, 0, :VOLUME] = torch.tensor(prices, dtype=synthetic.bars.dtype)
        assert bar_statistics.invalid_share(synthetic) == 1 / int((~synthetic.bars[..., CLOSE].isnan()).sum())
    names = "log_volume_ratio log_range_ratio volume_correlation invalid_share zero_gaps gap_body_ratio gap_kurtosis"
    for name in names.split():
        with pytest.raises(ValueError, match="needs bars"):
            getattr(bar_statistics, name)(windows_of(normal(2, 1, 5, 3)))


def moved(gap, body) -> Windows:
    context = valid_bars(4, 1, CONTEXT, STOCKS, seed=1)[:, 0]
    before = context[:, None, -1:, :, CLOSE] * torch.ones_like(gap[:, :, :1])
    close = before * (gap + body).cumsum(2).exp()
    opened = torch.cat([before, close[:, :, :-1]], dim=2) * gap.exp()
    prices = [opened, opened.maximum(close), opened.minimum(close), close]
    bars = torch.stack([*prices, torch.full_like(close, 1000.0)], dim=-1)
    return Windows(gap + body, SCALE, bars, context)


def test_gaps_of_zero_and_the_size_and_kurtosis_of_gaps():
    """An eighth is zero, an eighth smaller than a tick, and the rest as small as a tick of a dear stock."""
    gap, body = 0.02 * normal(4, 1, DAYS, STOCKS), 0.05 * normal(4, 1, DAYS, STOCKS, seed=1)
    tiny = torch.full_like(gap, 4e-6)
    tiny.view(-1)[::8], tiny.view(-1)[1::8] = 0.0, 5e-7
    side = moved(tiny, body)
    for dtype in (torch.float64, torch.float32):
        cast = Windows(side.returns.to(dtype), SCALE, side.bars.to(dtype), side.context.to(dtype))
        assert bar_statistics.zero_gaps(cast) == pytest.approx(0.25)
    side = moved(gap, body)
    side.bars[1, 0, 3, 1] = NAN
    gaps, bodies = ((kind / SCALE).numpy().copy() for kind in (gap, body))
    gaps[1, 0, 3:5, 1] = bodies[1, 0, 3, 1] = np.nan
    assert bar_statistics.gap_body_ratio(side) == pytest.approx(np.nanstd(gaps) / np.nanstd(bodies))
    # A path of a hundredth of the size leaves the mean over paths as it is; pooling would not.
    gap = 0.01 * normal(4, 3, DAYS, STOCKS)
    gap[:, 2] *= 0.01
    columns = gap.permute(1, 3, 0, 2).reshape(3 * STOCKS, -1).numpy()
    expected = np.mean([stats.kurtosis(column) for column in columns])
    assert bar_statistics.gap_kurtosis(moved(gap, torch.zeros_like(gap))) == pytest.approx(expected)
