"""Classifiers of whole bars tell what differs in gaps, wicks, volumes and their dependence between stocks."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from simulated_windows import NAN, correlated, normal, valid_bars, windows_of

from vecenv.market.bars import CLOSE, HIGH, OPEN, VOLUME
from vecenv.worldmodel.metrics import discriminator_classifiers
from vecenv.worldmodel.metrics.bar_discriminator import BAR_FORMS, discriminate_bars, discriminate_real_bars, wins
from vecenv.worldmodel.metrics.discriminator import over_seeds
from vecenv.worldmodel.metrics.discriminator_classifiers import weighed_boosting, weighed_gru
from vecenv.worldmodel.metrics.whole_bars import (
    Part,
    bar_parts,
    panel_bar_rows,
    panel_bar_sequences,
    stock_bar_rows,
    stock_bar_sequences,
)
from vecenv.worldmodel.metrics.windows import Windows, align_windows

ORIGINS, DAYS, STOCKS, CONTEXT, EVERY, PATHS = 40, 20, 6, 20, 20, 4
SCALE = torch.full((STOCKS,), 0.02, dtype=torch.float64)
DATES = range(99, 99 + ORIGINS * EVERY, EVERY)


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    monkeypatch.setattr(discriminator_classifiers, "TREES", 25)
    monkeypatch.setattr(discriminator_classifiers, "GRU_STEPS", 60)
    monkeypatch.setattr(discriminator_classifiers, "LEARNING_RATE", 1e-2)
    monkeypatch.setattr(discriminator_classifiers, "WEIGHED_BATCH", 64)


def market(paths: int, seed: int) -> torch.Tensor:
    """Return bars of correlated returns and volumes, of which a tenth has no gap. Shape: (O, M, H, N, 5)."""
    shape = (ORIGINS, paths, DAYS, STOCKS)
    context = known()
    gap = 0.006 * correlated(shape, 0.4, seed)
    gap = gap.where(torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.1, 0.0)
    body = 0.018 * correlated(shape, 0.4, seed + 1000)
    close = context[:, None, -1:, :, CLOSE] * (gap + body).cumsum(2).exp()
    before = torch.cat([(context[:, None, -1:, :, CLOSE]).expand(-1, paths, -1, -1), close[:, :, :-1]], dim=2)
    opened = before * gap.exp()
    wicks = (0.005 * normal(2, *shape, seed=seed + 2000).abs()).exp()
    volume = (12.0 + 0.5 * correlated(shape, 0.5, seed + 3000)).exp()
    return torch.stack(
        [opened, opened.maximum(close) * wicks[0], opened.minimum(close) / wicks[1], close, volume], dim=-1
    )


def known() -> torch.Tensor:
    context = valid_bars(ORIGINS, 1, CONTEXT, STOCKS, seed=9)[:, 0]
    context[..., VOLUME] = (12.0 + 0.5 * correlated((ORIGINS, CONTEXT, STOCKS), 0.5, seed=9)).exp()
    return context


def sides(real: torch.Tensor, generated: torch.Tensor) -> tuple[Windows, Windows]:
    return align_windows(known(), real[:, 0], generated.float(), SCALE)


def told(real: torch.Tensor, generated: torch.Tensor, *forms: str):
    found = discriminate_bars(*sides(real, generated), DATES, 1, forms)
    return [found[form] for form in forms]


@pytest.fixture(scope="module")
def alike():
    return market(1, seed=1), market(PATHS, seed=2)


@pytest.mark.parametrize("form", BAR_FORMS)
@pytest.mark.assembly
def test_bars_of_the_same_law_cannot_be_told_apart(alike, form):
    (found,) = told(*alike, form)
    assert found.accuracy.low <= 0.5 <= found.accuracy.high
    assert found.auc.low <= 0.5 <= found.auc.high and found.auc.high - found.auc.low < 0.4


@pytest.mark.parametrize("form", BAR_FORMS)
@pytest.mark.assembly
def test_real_bars_of_other_origins_cannot_be_told_apart(alike, form):
    real, _ = sides(*alike)
    found = discriminate_real_bars(real, DATES, 2, [form])[form]
    assert found.accuracy.low <= 0.5 <= found.accuracy.high and found.auc.low <= 0.5 <= found.auc.high


@pytest.mark.assembly
def test_volumes_of_other_stocks_are_told_by_panels_alone(alike):
    """Each stock's volumes are those of another path: alone they are as real as before, together they are not."""
    real, generated = alike
    generated = generated.clone()
    for stock in range(STOCKS):
        generated[..., stock, VOLUME] = generated[..., stock, VOLUME].roll(stock, dims=0)
    alone, rows, days = told(real, generated, "bars_boosting", "panel_bars_boosting", "panel_bars_gru")
    assert abs(alone.accuracy.mean - 0.5) < 0.08
    assert min(rows.accuracy.mean, days.accuracy.mean) > 0.8 and min(rows.auc.mean, days.auc.mean) > 0.9


@pytest.mark.parametrize("form", ["bars_boosting", "bars_gru"])
@pytest.mark.assembly
def test_gaps_that_are_never_zero_are_told(alike, form):
    real, generated = alike
    generated = generated.clone()
    before = torch.cat([known()[:, None, -1:, :, CLOSE].expand(-1, PATHS, -1, -1), generated[:, :, :-1, :, CLOSE]], 2)
    nudged = before * 1.0005
    zero = (generated[..., OPEN] / before - 1.0).abs() < 1e-9
    generated[..., OPEN] = nudged.where(zero, generated[..., OPEN])
    generated[..., HIGH] = generated[..., HIGH].maximum(generated[..., OPEN])
    (found,) = told(real, generated, form)
    assert found.accuracy.mean > 0.75


@pytest.mark.parametrize("form", ["bars_boosting", "bars_gru", "panel_bars_boosting", "panel_bars_gru"])
@pytest.mark.assembly
def test_other_wicks_are_told_though_all_returns_are_the_same(alike, form):
    real, generated = alike
    generated = generated.clone()
    generated[..., HIGH] *= 1.01
    (found,) = told(real, generated, form)
    assert found.accuracy.mean > 0.8


def test_all_paths_are_learned_and_asked(alike):
    """Three paths of four are as real; one is always told: the AUC is three quarters of 0.5 and a quarter of 1."""
    real, generated = alike
    generated = generated.clone()
    generated[:, 1, ..., HIGH] *= 1.05
    (some,) = told(real, generated, "bars_boosting")
    (alone,) = told(real, generated[:, 1:2], "bars_boosting")
    assert some.auc.mean == pytest.approx(0.625, abs=0.06) and alone.auc.mean > 0.99


def test_what_is_learned_is_asked_of_other_origins(alike):
    """A model that is wild before the middle alone."""
    real, generated = alike
    generated = generated.clone()
    generated[: ORIGINS // 2, ..., HIGH] *= 1.02
    (found,) = told(real, generated, "bars_boosting")
    assert abs(found.accuracy.mean - 0.5) < 0.1


def test_parts_by_their_definitions():
    context, real = valid_bars(2, 1, 25, 2, seed=1)[:, 0], valid_bars(2, 3, 22, 2, seed=2)
    real[0, 1, 4, 1, OPEN] = real[0, 1, 3, 1, CLOSE] * (1.0 + 2e-7)
    real[1, :, 6, 0] = NAN
    windows = Windows(real[..., CLOSE], torch.ones(2, dtype=torch.float64), real, context)
    parts = bar_parts(windows)
    assert parts.shape == (2, 3, 22, 2, 5) and parts.dtype is torch.float32
    moves = (context[0, 1:, 1, CLOSE] / context[0, :-1, 1, CLOSE]).log()
    unit = float(moves.square().mean().sqrt())
    for day in (0, 7):
        opened, high, low, close, volume = real[0, 1, day, 1].tolist()
        past = torch.cat([context[0, :, 1], real[0, 1, :, 1]])[day + 5 : day + 25]
        expected = {
            Part.GAP: math.log(opened / float(past[-1, CLOSE])) / unit,
            Part.BODY: math.log(close / opened) / unit,
            Part.UPPER: math.log(high / max(opened, close)) / unit,
            Part.LOWER: math.log(min(opened, close) / low) / unit,
            Part.VOLUME: math.log(volume) - float(past[:, VOLUME].log().mean()),
        }
        assert parts[0, 1, day, 1].tolist() == pytest.approx([expected[part] for part in Part], abs=1e-4)
    assert float(parts[0, 1, 4, 1, Part.GAP]) == 0.0
    assert not bool(parts[1, :, 6, 0].any()) and bool(parts.isfinite().all())


def test_the_scale_is_that_of_the_context_whatever_comes_after(alike):
    """And of the test's for a stock that did not move."""
    real, _ = sides(*alike)
    real.context[0, :, 2, CLOSE] = 100.0
    parts = bar_parts(real)
    opened, close = (real.bars[0, 0, 0, 2, which] for which in (OPEN, CLOSE))
    assert float(parts[0, 0, 0, 2, Part.BODY]) == pytest.approx(float((close / opened).log() / SCALE[2]), rel=1e-4)
    real.bars[:, :, 10:, :, HIGH] *= 5.0
    assert bool((bar_parts(real)[:, :, :10] == parts[:, :, :10]).all())


def test_inputs_of_the_forms():
    parts, panels = normal(2, 3, 40, 50, 5).float(), torch.arange(50).reshape(2, 25)
    parts[..., Part.UPPER : Part.VOLUME] = parts[..., Part.UPPER : Part.VOLUME].abs()
    parts[0, 1, 25, :5, Part.GAP] = 0.0
    rows, days = stock_bar_rows(parts, panels), stock_bar_sequences(parts, panels)
    assert rows.shape == (2, 3 * 2 * 50, 120) and days.shape == (2, 3 * 50, 40, 6)
    window, stock = parts[0, 1, 20:, 4], rows[0].reshape(3, 2, 50, 120)[1, 1, 4]
    assert stock[:100].reshape(5, 20).T.tolist() == window.tolist()
    assert stock[100:115].tolist() == pytest.approx(
        [*window.mean(0).tolist(), *window.abs().mean(0).tolist(), *window.abs().amax(0).tolist()], abs=1e-5
    )
    ranges = window[:, Part.UPPER] + window[:, Part.LOWER] + window[:, Part.BODY].abs()
    pairs = (
        (window[:, Part.GAP], window[:, Part.BODY]),
        (ranges, window[:, Part.VOLUME]),
        (window[:-1, Part.VOLUME], window[1:, Part.VOLUME]),
    )
    expected = [0.05, float(window[:, Part.GAP].abs().mean() / window[:, Part.BODY].abs().mean())]
    expected += [float(np.corrcoef(*pair)[0, 1]) for pair in pairs]
    assert stock[115:].tolist() == pytest.approx(expected, abs=1e-4)
    assert days[0].reshape(3, 50, 40, 6)[1, 4, 25].tolist() == [*parts[0, 1, 25, 4].tolist(), 1.0]

    panel = parts[0, 1, :, 25:]
    of_panel = panel_bar_sequences(parts, panels)
    assert of_panel.shape == (2, 3 * 2, 40, 15)
    day = of_panel[0].reshape(3, 2, 40, 15)[1, 1, 25]
    assert day[:5].tolist() == pytest.approx(panel[25].mean(0).tolist(), abs=1e-5)
    assert day[7:12].tolist() == pytest.approx(panel[25].std(0, correction=0).tolist(), abs=1e-5)
    assert float(of_panel[0].reshape(3, 2, 40, 15)[1, 0, 25, -1]) == pytest.approx(0.2)
    of_window = panel_bar_rows(parts, panels)
    assert of_window.shape == (2, 3 * 5 * 2, 41) and bool(of_window.isfinite().all())
    last = of_window[0].reshape(3, 5, 2, 41)[1, 4, 1]
    correlation = np.corrcoef(panel[20:, :, Part.VOLUME].T.numpy())
    assert float(last[28]) == pytest.approx((correlation.sum() - 25) / 600, abs=1e-4)


def test_auc_by_its_definition():
    """The share of pairs that are in the right order, a tie being half."""
    real, generated = torch.tensor([[0.0, 1.0], [2.0, 2.0]]), torch.tensor([[1.0, 3.0, -1.0], [2.0, 2.0, 2.0]])
    expected = [(1.0 + 0.5 + 1.0 + 1.0) / 6, 1.0, 2 / 6, 0.5]
    assert wins(real, generated).flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("axis", [1, 2])
def test_the_interval_of_the_auc_draws_the_origins_of_both_classes(axis):
    """Whether real or generated windows of some origins are told, the AUC is as uncertain."""
    values = torch.rand(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = values.reshape(1, -1, 1) if axis == 1 else values.reshape(1, 1, -1)
    found, alone = over_seeds(pairs.expand(1, 30, 30)), over_seeds(values[None])
    assert found == pytest.approx(alone) and found.high - found.low > 0.1


@pytest.mark.parametrize("classify", [weighed_boosting, weighed_gru])
def test_classes_of_different_sizes_have_the_same_weight(classify):
    """Without any difference the logit is zero, not that of fifteen times as many generated inputs."""
    shape = (30,) if classify is weighed_boosting else (5, 3)
    logits = classify(torch.zeros(60, *shape), torch.zeros(900, *shape), torch.zeros(20, *shape), 0)
    assert logits.shape == (20,) and float(logits.abs().max()) < 0.3 < math.log(900 / 60)


def test_every_generated_sequence_is_seen(monkeypatch):
    """Though the steps for the real ones would be over before."""
    seen = []
    monkeypatch.setattr(discriminator_classifiers, "GRU_STEPS", 1)
    monkeypatch.setattr(discriminator_classifiers, "_train", lambda _, batches: seen.extend(x for x, _ in batches))
    real, generated = torch.zeros(40, 2, 1), torch.arange(1.0, 201.0)[:, None, None].expand(-1, 2, 1)
    weighed_gru(real, generated, real, 0)
    marks = torch.cat(seen)[:, 0, 0]
    assert set(marks[marks > 0].tolist()) == set(range(1, 201)) and len(seen) == math.ceil(200 / 32)
    assert int((marks == 0).sum()) == int((marks > 0).sum())


@pytest.mark.assembly
def test_scores_are_repeatable_and_leave_other_draws_alone(alike):
    state = torch.random.get_rng_state()
    first = told(*alike, "panel_bars_boosting", "panel_bars_gru")
    assert bool((state == torch.random.get_rng_state()).all())
    torch.rand(3)
    assert told(*alike, "panel_bars_boosting", "panel_bars_gru") == first


def test_bad_input_is_named(alike, monkeypatch):
    real, synthetic = sides(*alike)
    few = torch.arange(ORIGINS - 1)
    with pytest.raises(ValueError, match=f"{ORIGINS} origins of real windows, {ORIGINS - 1} of generated"):
        discriminate_bars(real, synthetic.select(few), DATES, 1)
    with pytest.raises(ValueError, match=f"{ORIGINS - 1} days of origins for windows of {ORIGINS}"):
        discriminate_bars(real, synthetic, DATES[:-1], 1)
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        discriminate_bars(real, synthetic, DATES, 0)
    with pytest.raises(ValueError, match="at least 20 days, got 5"):
        discriminate_bars(real.days(1, 5), synthetic.days(1, 5), DATES, 1)
    with pytest.raises(ValueError, match="needs bars"):
        discriminate_bars(windows_of(normal(ORIGINS, 1, DAYS, 2)), synthetic, DATES, 1)
    with pytest.raises(ValueError, match=r"2 origins in each half .* got 1 and 1 of 2"):
        discriminate_real_bars(real.select(torch.tensor([0, 1])), [0, 20], 1)
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(ImportError, match=r"pip install 'vecenv\[validate\]'"):
        discriminate_bars(real, synthetic, DATES, 1)
