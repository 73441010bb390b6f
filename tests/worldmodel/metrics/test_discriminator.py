"""Classifiers tell windows apart where they differ, and only there."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from simulated_windows import NAN, correlated, normal, valid_bars, windows_of

from vecenv.market.bars import CLOSE
from vecenv.worldmodel.metrics import discriminator_classifiers
from vecenv.worldmodel.metrics.discriminator import FORMS, discriminate, discriminate_real, halves
from vecenv.worldmodel.metrics.discriminator_features import (
    Feature,
    bar_features,
    draw_panels,
    panel_rows,
    panel_sequences,
    scale_together,
    stock_rows,
)
from vecenv.worldmodel.metrics.windows import align_windows

ORIGINS, DAYS, STOCKS, CONTEXT, EVERY = 40, 20, 6, 20, 20
SCALE = torch.full((STOCKS,), 0.02, dtype=torch.float64)
DATES = range(99, 99 + ORIGINS * EVERY, EVERY)


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    monkeypatch.setattr(discriminator_classifiers, "GRU_STEPS", 40)
    monkeypatch.setattr(discriminator_classifiers, "LSTM_EPOCHS", 10)
    monkeypatch.setattr(discriminator_classifiers, "LEARNING_RATE", 1e-2)


def returns_of(paths: int, seed: int, correlation: float = 0.5) -> torch.Tensor:
    return 0.02 * correlated((ORIGINS, paths, DAYS, STOCKS), correlation, seed)


def bars_of(context: torch.Tensor, returns: torch.Tensor, seed: int) -> torch.Tensor:
    """Return bars with these returns after the last close. Shapes: (O, C, N, 5), (O, M, H, N)."""
    close = context[:, None, -1:, :, CLOSE] * returns.cumsum(2).exp()
    opened = close * (-returns).exp() * (0.005 * normal(*returns.shape, seed=seed + 100)).exp()
    wicks = (0.005 * normal(2, *returns.shape, seed=seed + 200).abs()).exp()
    volume = (12.0 + 0.5 * normal(*returns.shape, seed=seed + 300)).exp()
    return torch.stack(
        [opened, opened.maximum(close) * wicks[0], opened.minimum(close) / wicks[1], close, volume], dim=-1
    )


def sides(real_returns: torch.Tensor, returns: torch.Tensor):
    """Return real windows, and generated ones in single precision, that differ in their returns alone."""
    context = valid_bars(ORIGINS, 1, CONTEXT, STOCKS, seed=9)[:, 0]
    real = bars_of(context, real_returns, seed=1)[:, 0]
    return align_windows(context, real, bars_of(context, returns, seed=2).float(), SCALE)


def accuracies(real, synthetic, *forms: str, seeds: int = 1) -> list[float]:
    told = discriminate(real, synthetic, DATES, seeds, forms)
    return [told[form].mean for form in forms]


@pytest.fixture(scope="module")
def alike():
    return sides(returns_of(1, seed=1), returns_of(2, seed=2))


@pytest.mark.parametrize("form", FORMS)
def test_windows_of_the_same_law_cannot_be_told_apart(alike, form):
    told = discriminate(*alike, DATES, seeds=1, forms=[form])[form]
    assert told.low <= 0.5 <= told.high and told.high - told.low < 0.4


@pytest.mark.parametrize("form", ["boosting", "panel_boosting", "lstm"])
def test_real_windows_of_other_origins_cannot_be_told_apart_though_volatility_grows(form):
    """In each half of the days, so that early origins and late ones could be told apart."""
    growing = torch.linspace(0.5, 2.0, ORIGINS // 2).repeat(2)[:, None, None, None]
    real, _ = sides(growing * returns_of(1, seed=1), returns_of(1, seed=2))
    told = discriminate_real(real, DATES, seeds=2, forms=[form])[form]
    assert told.low <= 0.5 <= told.high


@pytest.mark.parametrize(("form", "least"), [("boosting", 0.8), ("gru", 0.8), ("panel_gru", 0.8)])
def test_another_volatility_is_seen(form, least):
    real, synthetic = sides(returns_of(1, seed=1), 1.8 * returns_of(2, seed=2))
    assert accuracies(real, synthetic, form)[0] > least


@pytest.mark.assembly
def test_days_in_another_order_are_seen():
    """The same days, of which the wild ones come last, or anywhere."""
    real = returns_of(1, seed=1)
    real[:, :, DAYS // 2 :] *= 4.0
    order = normal(ORIGINS, DAYS, seed=3).argsort(-1)
    shuffled = torch.stack([path[:, days] for path, days in zip(real, order, strict=True)])
    told = accuracies(*sides(real, shuffled), "boosting", "gru")
    assert min(told) > 0.7


@pytest.mark.assembly
def test_independent_stocks_are_seen_by_the_joint_forms_alone():
    real, synthetic = sides(returns_of(1, seed=1), returns_of(2, seed=2, correlation=0.0))
    alone, *joint = accuracies(real, synthetic, "boosting", "panel_boosting", "panel_gru")
    assert abs(alone - 0.5) < 0.08 and min(joint) > 0.85


def test_what_is_learned_is_asked_of_other_origins():
    """A model that is wild before the middle alone: what was learned there tells nothing of the days after it."""
    wild = returns_of(2, seed=2)
    wild[: ORIGINS // 2] *= 3.0
    assert abs(accuracies(*sides(returns_of(1, seed=1), wild), "boosting")[0] - 0.5) < 0.08


@pytest.mark.assembly
def test_every_path_may_be_drawn_and_only_one_at_a_time():
    """Of two paths one is as real, so that half of the generated windows are told."""
    paths = returns_of(2, seed=2)
    paths[:, 1] *= 4.0
    both = accuracies(*sides(returns_of(1, seed=1), paths), "boosting", seeds=2)[0]
    one = accuracies(*sides(returns_of(1, seed=1), paths[:, 1:]), "boosting")[0]
    assert 0.6 < both < 0.85 < one


@pytest.mark.assembly
def test_scores_are_repeatable_and_leave_other_draws_alone(alike):
    state = torch.random.get_rng_state()
    first = discriminate(*alike, DATES, 1, ["boosting", "lstm"])
    assert bool((state == torch.random.get_rng_state()).all())
    torch.rand(3)
    assert discriminate(*alike, DATES, 1, ["boosting", "lstm"]) == first
    assert discriminate(*alike, DATES, 2, ["lstm"])["lstm"] != first["lstm"]
    assert discriminate_real(alike[0], DATES, 1, ["boosting"]) == discriminate_real(alike[0], DATES, 1, ["boosting"])


@pytest.mark.parametrize(
    ("every", "horizon", "count"), [(20, 40, 24), (5, 40, 30), (7, 20, 11), (40, 40, 2), (60, 40, 5)]
)
def test_halves_share_no_day(every, horizon, count):
    origins = range(500, 500 + every * count, every)
    days = [{day + ahead for at in half.tolist() for day in [origins[at]] for ahead in range(1, horizon + 1)}
            for half in halves(origins, horizon)]  # fmt: skip
    assert max(days[0]) < min(days[1])
    before, after = halves(origins, horizon)
    assert len(before) == len(after) and before[0] == 0 and after[-1] == count - 1
    # No more than the windows that lie across the middle are left out.
    assert count - 2 * len(before) <= math.ceil(horizon / every)


def test_features_by_their_definitions():
    context, real = valid_bars(2, 1, 20, 2, seed=1)[:, 0], valid_bars(2, 1, 25, 2, seed=2)
    real[1, 0, 4, 0] = NAN
    windows = align_windows(context, real[:, 0], real, torch.ones(2, dtype=torch.float64))[0]
    features = bar_features(windows)
    assert features.shape == (2, 25, 2, 7) and features.dtype is torch.float32
    for day in (0, 7):
        opened, high, low, close, volume = real[0, 0, day, 1].tolist()
        past = torch.cat([context[0, :, 1], real[0, 0, :, 1]])[day : day + 20]
        before = float(past[-1, CLOSE])
        expected = {
            Feature.GAP: math.log(opened / before),
            Feature.BODY: math.log(close / opened),
            Feature.UPPER: math.log(high / max(opened, close)),
            Feature.LOWER: math.log(min(opened, close) / low),
            Feature.RETURN: math.log(close / before),
            Feature.RANGE: math.log(high / low),
            Feature.VOLUME: math.log(volume) - float(past[:, 4].log().mean()),
        }
        assert features[0, day, 1].tolist() == pytest.approx([expected[feature] for feature in Feature], abs=1e-5)
    missing = features[1, :, 0].isnan()
    assert bool(missing[4].all()) and missing[5].nonzero().flatten().tolist() == [
        Feature.GAP,
        Feature.RETURN,
        Feature.VOLUME,
    ]
    assert not bool(features[:, :, 1].isnan().any())


def test_both_sides_are_divided_by_the_spread_of_what_is_learned_from():
    real, synthetic = normal(4, 30, 3, 7).float(), 5.0 * normal(4, 30, 3, 7, seed=1).float()
    fit = torch.tensor([0, 1])
    scaled = scale_together(real, synthetic, fit)
    spread = torch.cat([real[fit], synthetic[fit]]).flatten(0, 1).std(0, correction=0)
    for before, after in zip((real, synthetic), scaled, strict=True):
        assert torch.allclose(after, before / spread, rtol=1e-4)
    assert bool((scale_together(torch.ones(4, 30, 3, 7), torch.ones(4, 30, 3, 7), fit)[0] == 1.0).all())


def test_rows_hold_a_day_and_its_lags():
    features = torch.arange(2 * 30 * 3 * 7, dtype=torch.float32).reshape(2, 30, 3, 7) - 700.0
    rows = stock_rows(features)
    assert rows.shape == (2, 3 * 3, 80)
    second = rows[0].reshape(3, 3, 4, 20)[1, 2]
    span = features[0, 5:25, 2]
    expected = [span[:, Feature.RETURN], span[:, Feature.RETURN].abs(), span[:, Feature.RANGE], span[:, Feature.VOLUME]]
    assert bool((second == torch.stack(expected)).all())


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
    correlation = torch.corrcoef(features[1, 5:25, panels[1], Feature.RETURN].T)
    last = rows[1].reshape(3, 2, 19)[1, 1]
    assert float(last[0]) == pytest.approx((float(correlation.sum()) - 25) / 600, abs=1e-4)
    assert float(last[1]) == pytest.approx(float(torch.linalg.eigvalsh(correlation)[-1]) / 25, abs=1e-4)


@pytest.mark.assembly
def test_gaps_are_no_clue():
    """The real gaps are in both classes."""
    context = valid_bars(ORIGINS, 1, CONTEXT, STOCKS, seed=9)[:, 0]
    real = bars_of(context, returns_of(1, seed=1), seed=1)[:, 0]
    real[:, 5:9, :3] = NAN
    context[3, -1, 1] = NAN
    synthetic = bars_of(context, returns_of(2, seed=2), seed=2).nan_to_num(100.0)
    told = discriminate(
        *align_windows(context, real, synthetic, SCALE), DATES, 1, ["boosting", "lstm", "panel_boosting"]
    )
    assert all(accuracy.low <= 0.5 <= accuracy.high for accuracy in told.values())


def test_bad_input_is_named(alike, monkeypatch):
    real, synthetic = alike
    few = torch.arange(ORIGINS - 1)
    with pytest.raises(ValueError, match=f"{ORIGINS} origins of real windows, {ORIGINS - 1} of generated"):
        discriminate(real, synthetic.select(few), DATES, 1)
    with pytest.raises(ValueError, match=f"{ORIGINS - 1} days of origins for windows of {ORIGINS}"):
        discriminate(real, synthetic, DATES[:-1], 1)
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        discriminate(real, synthetic, DATES, 0)
    with pytest.raises(ValueError, match="at least 20 days, got 5"):
        discriminate(real.days(1, 5), synthetic.days(1, 5), DATES, 1)
    with pytest.raises(ValueError, match="needs bars"):
        discriminate(windows_of(normal(ORIGINS, 1, DAYS, 2)), synthetic, DATES, 1)
    with pytest.raises(ValueError, match=r"1 origins in each half .* got 0 and 0 of 2"):
        halves([10, 20], 40)
    with pytest.raises(ValueError, match=r"2 origins in each half .* got 1 and 1 of 2"):
        discriminate_real(real.select(torch.tensor([0, 1])), [0, 20], 1)
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(ImportError, match=r"pip install 'vecenv\[validate\]'"):
        discriminate(real, synthetic, DATES, 1)
