"""Gaps are the same on both sides, and moments are of all windows of a stock."""

from __future__ import annotations

import math

import pytest
import torch
from simulated_windows import NAN, normal, valid_bars, windows_of, with_gaps

from vecenv.market.bars import CLOSE, HIGH, VOLUME
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
    context, real = (
        valid_bars(ORIGINS, 1, CONTEXT, STOCKS, seed=1)[:, 0],
        valid_bars(ORIGINS, 1, DAYS, STOCKS, seed=2)[:, 0],
    )
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
    real[0, 2, 1, VOLUME] = NAN
    context[1, -1, 0, CLOSE] = NAN
    context[2, 0, 0, CLOSE] = NAN
    windows = align_windows(context, real, synthetic, SCALE)
    missing_bars, missing_returns = (
        torch.zeros(ORIGINS, DAYS, STOCKS, dtype=torch.bool),
        torch.zeros(ORIGINS, DAYS, STOCKS, dtype=torch.bool),
    )
    missing_bars[0, 2, 1] = missing_bars[1, :, 0] = True
    missing_returns[0, 2:4, 1] = missing_returns[1, :, 0] = True
    for side in windows:
        shape = side.returns.shape
        assert torch.equal(side.bars.isnan().any(-1), missing_bars[:, None].expand(shape))
        assert torch.equal(side.returns.isnan(), missing_returns[:, None].expand(shape))
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(returns=normal(2, 3, 4)), "shape"),
        (dict(scale=torch.ones(3)), "one number for each of 2 stocks"),
        (dict(scale=torch.tensor([1.0, NAN])), r"stocks \[1\]"),
        (dict(bars=normal(ORIGINS, PATHS, DAYS, STOCKS, 4)), "bars"),
        (dict(context=normal(ORIGINS - 1, CONTEXT, STOCKS, 5)), "context"),
    ],
)
def test_parts_that_do_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        Windows(**(dict(returns=normal(ORIGINS, PATHS, DAYS, STOCKS), scale=torch.ones(STOCKS)) | change))


def test_synthetic_bars_of_other_origins_are_refused():
    context, real, synthetic = parts()
    with pytest.raises(ValueError, match="synthetic_bars"):
        align_windows(context, real, synthetic[:2], SCALE)


def test_selections():
    windows = align_windows(*parts(), SCALE)[1]
    chosen = windows.select(torch.tensor([2, 2]))
    assert torch.equal(chosen.returns[1], windows.returns[2]) and torch.equal(chosen.bars[0], windows.bars[2])
    assert torch.equal(chosen.context[1], windows.context[2])
    assert torch.equal(windows.days(2, 4).returns, windows.returns[:, :, 1:4])
    with pytest.raises(ValueError, match="days 1 to 7 are not within the windows' 1 to 6"):
        windows.days(1, DAYS + 1)
    with pytest.raises(ValueError, match="7 days of context, got 5"):
        windows.bars_and_context(CONTEXT + 2)


def test_sums_do_not_overlap_and_are_missing_with_a_day():
    returns = with_gaps(normal(2, 3, 7, 2))
    sums = windows_of(returns, scale=0.5).sums(3)
    assert sums.shape == (2, 3, 2, 2)
    assert float(sums[1, 2, 1, 1]) == pytest.approx(2.0 * float(returns[1, 2, 3:6, 1].sum()))
    assert sums[1, :, 0, 0].isnan().all() and not sums[1, :, 1, 0].isnan().any()


def test_the_market_is_the_mean_of_the_stocks_of_a_day():
    returns = with_gaps(normal(2, 3, 7, 2))
    market = windows_of(returns).market
    assert float(market[1, 0, 0]) == pytest.approx(float(returns[1, 0, 0].mean()))
    assert float(market[0, 1, 5]) == float(returns[0, 1, 5, 0])


def test_moments_are_of_all_windows_of_a_stock():
    values = with_gaps(normal(2, 3, 7, 2) * torch.tensor([1.0, 5.0]) + 3.0)
    mean, spread = stock_moments(values)
    for stock in range(2):
        pooled = [v for v in values[..., stock].flatten().tolist() if not math.isnan(v)]
        centre = sum(pooled) / len(pooled)
        variance = sum((v - centre) ** 2 for v in pooled) / len(pooled)
        assert float(mean[stock]) == pytest.approx(centre) and float(spread[stock]) == pytest.approx(variance**0.5)
        z = (float(values[1, 1, 6, stock]) - centre) / variance**0.5
        assert float(standardise(values)[1, 1, 6, stock]) == pytest.approx(z)
    present = values[~values.isnan()]
    assert deviation(values) == pytest.approx(float(present.std(correction=0)))


def test_scale_leaves_out_returns_over_gaps():
    close = torch.tensor([[100.0, 110.0, NAN, 500.0, 505.0, 490.0]], dtype=torch.float64).T
    returns = [math.log(1.1), math.log(505 / 500), math.log(490 / 505)]
    mean = sum(returns) / 3
    assert float(return_scale(close)) == pytest.approx((sum((r - mean) ** 2 for r in returns) / 3) ** 0.5)
