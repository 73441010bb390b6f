"""Windows with the same gaps on both sides, moments of all windows of a stock, and bootstrap intervals over origins."""

from __future__ import annotations

import math

import pytest
import torch
from simulated_windows import NAN, normal, valid_bars, windows_of, with_gaps

from vecenv.market.bars import CLOSE, HIGH, VOLUME
from vecenv.worldmodel.metrics.intervals import block_bootstrap, drawn_origins
from vecenv.worldmodel.metrics.windows import (
    Windows,
    align_windows,
    deviation,
    return_scale,
    standardise,
    stock_moments,
)

ORIGINS, PATHS, DAYS, STOCKS, CONTEXT = 3, 4, 6, 2, 5
SCALE = torch.tensor([0.02, 0.03], dtype=torch.float64)


def parts(dtype=torch.float64):
    context = valid_bars(ORIGINS, 1, CONTEXT, STOCKS, seed=1)[:, 0]
    real = valid_bars(ORIGINS, 1, DAYS, STOCKS, seed=2)[:, 0]
    return context, real, valid_bars(ORIGINS, PATHS, DAYS, STOCKS, seed=3).to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-7)])
def test_returns_start_from_the_close_of_the_origin(dtype, tolerance):
    context, real, synthetic = parts(dtype)
    observed, generated = align_windows(context, real, synthetic, SCALE)
    assert generated.returns.dtype is dtype and generated.returns.shape == (ORIGINS, PATHS, DAYS, STOCKS)
    first = math.log(float(synthetic[1, 2, 0, 1, CLOSE]) / float(context[1, -1, 1, CLOSE]))
    later = math.log(float(synthetic[1, 2, 4, 1, CLOSE]) / float(synthetic[1, 2, 3, 1, CLOSE]))
    assert generated.returns[1, 2, [0, 4], 1].tolist() == pytest.approx([first, later], abs=tolerance)
    assert float(observed.returns[2, 0, 3, 0]) == pytest.approx(math.log(real[2, 3, 0, CLOSE] / real[2, 2, 0, CLOSE]))


def test_gaps_of_the_real_windows_are_in_both():
    context, real, synthetic = parts()
    before = synthetic.clone()
    real[0, 2, 1, VOLUME] = context[1, -1, 0, CLOSE] = context[2, 0, 0, CLOSE] = NAN
    bars, returns = (torch.zeros(ORIGINS, DAYS, STOCKS, dtype=torch.bool) for _ in range(2))
    bars[0, 2, 1] = bars[1, :, 0] = returns[0, 2:4, 1] = returns[1, :, 0] = True
    for side in align_windows(context, real, synthetic, SCALE):
        shape = side.returns.shape
        assert torch.equal(side.bars.isnan().any(-1), bars[:, None].expand(shape))
        assert torch.equal(side.returns.isnan(), returns[:, None].expand(shape))
    assert torch.equal(synthetic, before)


def test_generated_bars_must_be_finite_where_the_real_ones_are():
    context, real, synthetic = parts()
    synthetic[1, 2, 3, 0, HIGH] = NAN
    with pytest.raises(ValueError, match=r"origin 1, path 2, day 3, stock 0 is \["):
        align_windows(context, real, synthetic, SCALE)
    real[1, 3, 0] = NAN
    align_windows(context, real, synthetic, SCALE)
    synthetic[0, 0, 0, 1, CLOSE] = 0.0
    with pytest.raises(ValueError, match="origin 0, path 0, day 0, stock 1"):
        align_windows(context, real, synthetic, SCALE)
    with pytest.raises(ValueError, match="synthetic_bars"):
        align_windows(context, real, synthetic[:2], SCALE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(returns=normal(2, 3, 4)), r"returns need the shape \(O, M, H, N\)"),
        (dict(scale=torch.ones(3)), "one number for each of 2 stocks"),
        (dict(scale=torch.tensor([1.0, NAN])), r"stocks \[1\]"),
        (dict(scale=torch.tensor([0.0, 1.0])), r"stocks \[0\]"),
        (dict(bars=normal(ORIGINS, PATHS, DAYS, STOCKS, 4)), "bars"),
        (dict(context=normal(ORIGINS - 1, CONTEXT, STOCKS, 5)), "context"),
        (dict(context=normal(ORIGINS, CONTEXT, STOCKS, 4)), "context"),
    ],
)
def test_parts_that_do_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        Windows(**(dict(returns=normal(ORIGINS, PATHS, DAYS, STOCKS), scale=torch.ones(STOCKS)) | change))


def test_selections_of_origins_and_days():
    windows = align_windows(*parts(), SCALE)[1]
    chosen = windows.select(torch.tensor([2, 2]))
    assert torch.equal(chosen.returns[1], windows.returns[2]) and torch.equal(chosen.bars[0], windows.bars[2])
    assert torch.equal(chosen.context[1], windows.context[2])
    assert torch.equal(windows.days(2, 4).returns, windows.returns[:, :, 1:4]) and windows.days(1, DAYS).bars is None
    for first, last in ((1, DAYS + 1), (0, 1), (3, 2)):
        with pytest.raises(ValueError, match=f"days {first} to {last} are not within the windows' 1 to 6"):
            windows.days(first, last)
    with pytest.raises(ValueError, match="6 days of context, got 5"):
        windows.bars_and_context(CONTEXT + 1)
    assert torch.equal(windows.bars_and_context(2)[1], windows.context[:, -2:])


def test_sums_market_and_moments_by_their_definitions():
    """Sums do not overlap and are missing with a day; moments are of all windows of a stock."""
    returns = with_gaps(normal(2, 3, 7, 2) * torch.tensor([1.0, 5.0]) + 3.0)
    sums, market = windows_of(returns, scale=0.5).sums(3), windows_of(returns).market
    assert sums.shape == (2, 3, 2, 2)
    assert float(sums[1, 2, 1, 1]) == pytest.approx(2.0 * float(returns[1, 2, 3:6, 1].sum()))
    assert sums[1, :, 0, 0].isnan().all() and not sums[1, :, 1, 0].isnan().any()
    assert float(market[1, 0, 0]) == pytest.approx(float(returns[1, 0, 0].mean()))
    assert float(market[0, 1, 5]) == float(returns[0, 1, 5, 0])
    mean, spread = stock_moments(returns)
    for stock in range(2):
        pooled = returns[..., stock][~returns[..., stock].isnan()]
        centre, width = float(pooled.mean()), float(pooled.std(correction=0))
        assert float(mean[stock]) == pytest.approx(centre) and float(spread[stock]) == pytest.approx(width)
        z = (float(returns[1, 1, 6, stock]) - centre) / width
        assert float(standardise(returns)[1, 1, 6, stock]) == pytest.approx(z)
    assert deviation(returns) == pytest.approx(float(returns[~returns.isnan()].std(correction=0)))


def test_scale_leaves_out_returns_over_gaps():
    close = torch.tensor([[100.0, 110.0, NAN, 500.0, 505.0, 490.0]], dtype=torch.float64).T
    returns = torch.tensor([1.1, 505 / 500, 490 / 505], dtype=torch.float64).log()
    assert float(return_scale(close)) == pytest.approx(float(returns.std(correction=0)))


def test_runs_of_neighbours_are_drawn_and_each_origin_equally_often():
    again = drawn_origins(10, block=3, draws=4000)
    assert again.shape == (4000, 10)
    within = again[:, :9].reshape(-1, 3, 3)
    assert torch.equal(within[..., 1:], (within[..., :-1] + 1) % 10)
    assert (again.flatten().bincount(minlength=10) / again.numel()).tolist() == pytest.approx([0.1] * 10, abs=0.005)


def test_the_interval_holds_95_percent_of_the_draws_of_any_function():
    found, values = [], normal(30, seed=1)

    def spread(at: torch.Tensor) -> float:
        found.append(float(values[at].std()))
        return found[-1]

    interval = block_bootstrap(spread, 30, block=2, draws=999)
    assert interval.mean == found[0] == pytest.approx(float(values.std()))
    ordered = sorted(found[1:])
    assert (interval.low, interval.high) == pytest.approx((ordered[24] * 0.05 + ordered[25] * 0.95, ordered[973] * 0.95
                                                           + ordered[974] * 0.05), abs=1e-3)  # fmt: skip
    assert interval == block_bootstrap(spread, 30, block=2, draws=999)
    assert interval != block_bootstrap(spread, 30, block=2, draws=999, seed=1)


def test_two_blocks_are_too_few_and_counts_must_be_positive():
    interval = block_bootstrap(lambda at: 1.0, 8)
    assert interval.mean == 1.0 and math.isnan(interval.low) and math.isnan(interval.high)
    assert block_bootstrap(lambda at: 1.0, 9) == (1.0, 1.0, 1.0)
    for count in ("num_origins", "block", "draws"):
        with pytest.raises(ValueError, match="must be at least 1"):
            block_bootstrap(lambda at: 1.0, **(dict(num_origins=9, block=1, draws=5) | {count: 0}))
