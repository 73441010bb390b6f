"""Inputs of the discriminators by their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from simulated_windows import NAN, normal, valid_bars
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, OPEN, VOLUME
from vecenv.worldmodel.metrics.discriminator_features import (
    Feature,
    bar_features,
    draw_panels,
    panel_rows,
    panel_sequences,
    scale_together,
    stock_rows,
    stock_sequences,
)
from vecenv.worldmodel.metrics.whole_bars import (
    Part,
    bar_parts,
    panel_bar_rows,
    panel_bar_sequences,
    stock_bar_rows,
    stock_bar_sequences,
)
from vecenv.worldmodel.metrics.windows import Windows, align_windows

SCALE = torch.tensor([0.02, 0.03], dtype=torch.float64)


def numbers_of(bar: list[float], past: Tensor) -> dict[str, float]:
    """The numbers of a stock's day, given the twenty days before it."""
    opened, high, low, close, volume = bar
    before = float(past[-1, CLOSE])
    return {
        "GAP": math.log(opened / before),
        "BODY": math.log(close / opened),
        "UPPER": math.log(high / max(opened, close)),
        "LOWER": math.log(min(opened, close) / low),
        "RETURN": math.log(close / before),
        "RANGE": math.log(high / low),
        "VOLUME": math.log(volume) - float(past[:, VOLUME].log().mean()),
    }


def test_features_by_their_definitions():
    context, real = valid_bars(2, 1, 20, 2, seed=1)[:, 0], valid_bars(2, 1, 25, 2, seed=2)
    real[1, 0, 4, 0] = NAN
    features = bar_features(align_windows(context, real[:, 0], real, SCALE)[0])
    assert features.shape == (2, 25, 2, 7) and features.dtype is torch.float32
    days = torch.cat([context[0, :, 1], real[0, 0, :, 1]])
    for day in (0, 7):
        expected = numbers_of(days[day + 20].tolist(), days[day : day + 20])
        assert features[0, day, 1].tolist() == pytest.approx([expected[name] for name in Feature.__members__], abs=1e-5)
    missing = features[1, :, 0].isnan()
    assert bool(missing[4].all()) and not bool(features[:, :, 1].isnan().any())
    assert missing[5].nonzero().flatten().tolist() == [Feature.GAP, Feature.RETURN, Feature.VOLUME]
    assert torch.equal(stock_sequences(features)[0, 1], features[0, :, 1, [0, 1, 2, 3, 6]])
    assert not bool(stock_sequences(features)[1, 0, 4].any())


def test_parts_by_their_definitions():
    """In units of the context's root mean square return, or of the test's for a stock that did not move in it."""
    context, real = valid_bars(2, 1, 25, 2, seed=1)[:, 0], valid_bars(2, 3, 22, 2, seed=2)
    real[0, 1, 4, 1, OPEN] = real[0, 1, 3, 1, CLOSE] * (1.0 + 2e-7)
    real[1, :, 6, 0], context[1, :, 1, CLOSE] = NAN, 100.0
    parts = bar_parts(Windows(real[..., CLOSE], SCALE, real, context))
    assert parts.shape == (2, 3, 22, 2, 5) and parts.dtype is torch.float32
    for origin, unit in ((0, float(context[0, :, 1, CLOSE].log().diff().square().mean().sqrt())), (1, 0.03)):
        days = torch.cat([context[origin, :, 1], real[origin, 1, :, 1]])
        for day in (0, 7):
            expected = numbers_of(days[day + 25].tolist(), days[day + 5 : day + 25])
            numbers = [expected[part.name] / (1.0 if part is Part.VOLUME else unit) for part in Part]
            assert parts[origin, 1, day, 1].tolist() == pytest.approx(numbers, abs=1e-4)
    assert float(parts[0, 1, 4, 1, Part.GAP]) == 0.0
    assert not bool(parts[1, :, 6, 0].any()) and bool(parts.isfinite().all())
    later = real.clone()
    later[:, :, 10:, :, HIGH] *= 5.0
    again = bar_parts(Windows(real[..., CLOSE], SCALE, later, context))
    assert torch.equal(again[:, :, :10], parts[:, :, :10])


def test_both_sides_are_divided_by_the_spread_of_what_is_learned_from():
    real, synthetic = normal(4, 30, 3, 7).float(), 5.0 * normal(4, 30, 3, 7, seed=1).float()
    fit = torch.tensor([0, 1])
    spread = torch.cat([real[fit], synthetic[fit]]).flatten(0, 1).std(0, correction=0)
    for before, after in zip((real, synthetic), scale_together(real, synthetic, fit), strict=True):
        assert torch.allclose(after, before / spread, rtol=1e-4)
    assert bool((scale_together(torch.ones(4, 30, 3, 7), torch.ones(4, 30, 3, 7), fit)[0] == 1.0).all())


def test_rows_hold_a_day_and_its_lags():
    features = torch.arange(2 * 30 * 3 * 7, dtype=torch.float32).reshape(2, 30, 3, 7) - 700.0
    rows = stock_rows(features)
    assert rows.shape == (2, 3 * 3, 80)
    span = features[0, 5:25, 2]
    expected = [span[:, Feature.RETURN], span[:, Feature.RETURN].abs(), span[:, Feature.RANGE], span[:, Feature.VOLUME]]
    assert bool((rows[0].reshape(3, 3, 4, 20)[1, 2] == torch.stack(expected)).all())


def movement(values: Tensor) -> list[float]:
    """Co-movement of the stocks of a window. Shape: (days, S)."""
    correlation = np.corrcoef(values.T.numpy())
    stocks = len(correlation)
    pairwise = (correlation.sum() - stocks) / (stocks * (stocks - 1))
    first = float(np.linalg.eigvalsh(correlation)[-1]) / stocks
    return [pairwise, first, float(values.mean(1).std()), float(values.std(1).mean())]


def together(one: Tensor, other: Tensor) -> float:
    return float(np.corrcoef(one.numpy(), other.numpy())[0, 1])


def test_panels_are_disjoint_and_of_the_same_stocks_on_all_days():
    panels = draw_panels(60, torch.Generator().manual_seed(0))
    assert panels.shape == (2, 25) and len(panels.unique()) == 50
    assert draw_panels(7, torch.Generator().manual_seed(0)).sort().values.tolist() == [list(range(7))]
    features = normal(3, 30, 60, 7).float()
    features[0, 0, :, :] = NAN
    sequences, rows = panel_sequences(features, panels), panel_rows(features, panels)
    assert sequences.shape == (3, 2, 30, 10) and rows.shape == (3, 2 * 3, 19)
    assert bool(sequences.isfinite().all()) and bool(rows.isfinite().all())
    gaps = features[1, :, panels[1], Feature.GAP]
    assert torch.allclose(sequences[1, 1, :, 0], gaps.mean(1), atol=1e-6)
    assert torch.allclose(sequences[1, 1, :, 5], gaps.std(1, correction=0), atol=1e-6)
    window = features[1, 5:25, panels[1]]
    returns, ranges, volume = (window[..., kind] for kind in (Feature.RETURN, Feature.RANGE, Feature.VOLUME))
    market, traded = returns.mean(1), volume.mean(1)
    expected = [*movement(returns), *movement(volume), market.sum(), market.min(), market.max(), market.abs().mean()]
    expected += [together(market.abs(), traded)]
    expected += [together(mean[:-1], mean[1:]) for mean in (market, ranges.mean(1), traded)]
    expected += [returns.abs().mean(), returns.abs().max(), ranges.mean()]
    assert rows[1].reshape(3, 2, 19)[1, 1].tolist() == pytest.approx([float(each) for each in expected], abs=1e-4)


def test_inputs_of_whole_bars():
    parts, panels = normal(2, 3, 40, 50, 5).float(), torch.arange(50).reshape(2, 25)
    parts[..., Part.UPPER : Part.VOLUME] = parts[..., Part.UPPER : Part.VOLUME].abs()
    parts[0, 1, 25, :5, Part.GAP] = 0.0
    rows, days = stock_bar_rows(parts, panels), stock_bar_sequences(parts, panels)
    assert rows.shape == (2, 3 * 2 * 50, 120) and days.shape == (2, 3 * 50, 40, 6)
    window, stock = parts[0, 1, 20:, 4], rows[0].reshape(3, 2, 50, 120)[1, 1, 4]
    gap, body, upper, lower, volume = window.T
    ranges = upper + lower + body.abs()
    expected = [*window.T.flatten(), *window.mean(0), *window.abs().mean(0), *window.abs().amax(0)]
    expected += [0.05, gap.abs().mean() / body.abs().mean()]
    expected += [together(gap, body), together(ranges, volume), together(volume[:-1], volume[1:])]
    assert stock.tolist() == pytest.approx([float(each) for each in expected], abs=1e-4)
    assert days[0].reshape(3, 50, 40, 6)[1, 4, 25].tolist() == [*parts[0, 1, 25, 4].tolist(), 1.0]
    panel, of_panel = parts[0, 1], panel_bar_sequences(parts, panels)
    assert of_panel.shape == (2, 3 * 2, 40, 15)
    day = panel[25, :25]
    seen = torch.cat([day, (day[:, 2:4].sum(1) + day[:, 1].abs())[:, None], day[:, :1].abs()], dim=1)
    expected = [*seen.mean(0), *seen.std(0, correction=0), 0.2]
    assert of_panel[0].reshape(3, 2, 40, 15)[1, 0, 25].tolist() == pytest.approx(
        [float(each) for each in expected], abs=1e-5
    )
    of_window = panel_bar_rows(parts, panels)
    assert of_window.shape == (2, 3 * 5 * 2, 41)
    gap, body, upper, lower, volume = panel[15:35, :25].unbind(-1)
    ranges, expected = upper + lower + body.abs(), []
    for kind in (gap, body, gap + body, ranges, volume):
        mean = kind.mean(1)
        expected += [*movement(kind), kind.abs().mean(), kind.abs().max(), together(mean[:-1], mean[1:])]
    expected += [upper.mean(), lower.mean(), 0.01, gap.abs().mean() / body.abs().mean()]
    expected += [together(ranges.mean(1), volume.mean(1)), together((gap + body).mean(1).abs(), volume.mean(1))]
    assert of_window[0].reshape(3, 5, 2, 41)[1, 3, 0].tolist() == pytest.approx(
        [float(each) for each in expected], abs=1e-4
    )
