"""Inputs of the discriminators by their definitions, and classifiers that tell windows apart only where they differ."""

import math
import sys
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.worldmodel.validation.simulated_windows import NAN, correlated, normal, valid_bars, windows_of
from vecenv.market.bars import CLOSE, HIGH, OPEN, VOLUME
from vecenv.worldmodel.validation import classifiers
from vecenv.worldmodel.validation import discriminator_features as inputs
from vecenv.worldmodel.validation.acceptance import Verdict
from vecenv.worldmodel.validation.classifiers import balanced_gru, boosting
from vecenv.worldmodel.validation.criteria import CRITERIA
from vecenv.worldmodel.validation.discriminator import (
    FORMS,
    deal,
    discriminate,
    discriminate_real,
    halves,
    over_seeds,
    wins,
)
from vecenv.worldmodel.validation.discriminator_features import Feature
from vecenv.worldmodel.validation.figures import discriminator_figures
from vecenv.worldmodel.validation.report import verdict
from vecenv.worldmodel.validation.windows import Windows, align_windows


def numbers_of(bar: list[float], past: Tensor) -> dict[str, float]:
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


def test_numbers_of_days_by_their_definitions():
    context, real = valid_bars(2, 1, 20, 2, seed=1)[:, 0], valid_bars(2, 1, 25, 2, seed=2)
    real[1, 0, 4, 0] = NAN
    features = inputs.return_features(
        align_windows(context, real[:, 0], real, torch.tensor([0.02, 0.03], dtype=torch.float64))[0]
    )
    assert features.shape == (2, 25, 2, 7) and features.dtype is torch.float32
    days = torch.cat([context[0, :, 1], real[0, 0, :, 1]])
    for day in (0, 7):
        expected = numbers_of(days[day + 20].tolist(), days[day : day + 20])
        assert features[0, day, 1].tolist() == pytest.approx([expected[name] for name in Feature.__members__], abs=1e-5)
    missing = features[1, :, 0].isnan()
    assert bool(missing[4].all()) and not bool(features[:, :, 1].isnan().any())
    assert missing[5].nonzero().flatten().tolist() == [Feature.GAP, Feature.VOLUME, Feature.RETURN]
    assert torch.equal(inputs.stock_sequences(features, None)[0, 1], features[0, :, 1, :5])
    assert not bool(inputs.stock_sequences(features, None)[1, 0, 4].any())
    # In units of the context's root mean square return, or of the test's for a stock that did not move in it.
    context, real = valid_bars(2, 1, 25, 2, seed=1)[:, 0], valid_bars(2, 3, 22, 2, seed=2)
    real[0, 1, 4, 1, OPEN] = real[0, 1, 3, 1, CLOSE] * (1.0 + 2e-7)
    real[1, :, 6, 0], context[1, :, 1, CLOSE] = NAN, 100.0
    parts = inputs.whole_bars(Windows(real[..., CLOSE], torch.tensor([0.02, 0.03]), real, context))
    assert parts.shape == (2, 3, 22, 2, 5) and parts.dtype is torch.float32
    for origin, unit in ((0, float(context[0, :, 1, CLOSE].log().diff().square().mean().sqrt())), (1, 0.03)):
        days = torch.cat([context[origin, :, 1], real[origin, 1, :, 1]])
        for day in (0, 7):
            expected = numbers_of(days[day + 25].tolist(), days[day + 5 : day + 25])
            numbers = [expected[part.name] / (1.0 if part is Feature.VOLUME else unit) for part in list(Feature)[:5]]
            assert parts[origin, 1, day, 1].tolist() == pytest.approx(numbers, abs=1e-4)
    assert float(parts[0, 1, 4, 1, Feature.GAP]) == 0.0
    assert not bool(parts[1, :, 6, 0].any()) and bool(parts.isfinite().all())


def test_rows_hold_a_day_and_its_lags_in_units_of_the_spread_of_what_is_learned_from():
    features = torch.arange(2 * 30 * 3 * 7, dtype=torch.float32).reshape(2, 30, 3, 7) - 700.0
    rows = inputs.stock_rows(features, None)
    assert rows.shape == (2, 3 * 3, 80)
    span = features[0, 5:25, 2]
    expected = [span[:, Feature.RETURN], span[:, Feature.RETURN].abs(), span[:, Feature.RANGE], span[:, Feature.VOLUME]]
    assert bool((rows[0].reshape(3, 3, 4, 20)[1, 2] == torch.stack(expected)).all())
    real, synthetic = normal(4, 30, 3, 7).float(), 5.0 * normal(4, 30, 3, 7, seed=1).float()
    fit = torch.tensor([0, 1])
    spread = torch.cat([real[fit], synthetic[fit]]).flatten(0, 1).std(0, correction=0)
    for before, after in zip((real, synthetic), inputs.scale_together(real, synthetic, fit), strict=True):
        assert torch.allclose(after, before / spread, rtol=1e-4)
    assert bool((inputs.scale_together(torch.ones(4, 30, 3, 7), torch.ones(4, 30, 3, 7), fit)[0] == 1.0).all())


def movement(values: Tensor) -> list[float]:
    correlation = np.corrcoef(values.T.numpy())
    stocks = len(correlation)
    pairwise = (correlation.sum() - stocks) / (stocks * (stocks - 1))
    first = float(np.linalg.eigvalsh(correlation)[-1]) / stocks
    return [pairwise, first, float(values.mean(1).std()), float(values.std(1).mean())]


def together(one: Tensor, other: Tensor) -> float:
    return float(np.corrcoef(one.numpy(), other.numpy())[0, 1])


def near(expected):
    return pytest.approx([float(each) for each in expected], abs=1e-4)


def test_panels_and_whole_bars_by_their_definitions():
    panels = inputs.draw_panels(60, torch.Generator().manual_seed(0))
    assert panels.shape == (2, 25) and len(panels.unique()) == 50
    assert inputs.draw_panels(7, torch.Generator().manual_seed(0)).sort().values.tolist() == [list(range(7))]
    features = normal(3, 30, 60, 7).float()
    features[0, 0, :, :] = NAN
    sequences, rows = inputs.panel_sequences(features, panels), inputs.panel_rows(features, panels)
    assert sequences.shape == (3, 2, 30, 10) and rows.shape == (3, 2 * 3, 19)
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
    assert rows[1].reshape(3, 2, 19)[1, 1].tolist() == near(expected)
    parts, panels = normal(2, 3, 40, 50, 5).float(), torch.arange(50).reshape(2, 25)
    parts[..., Feature.UPPER : Feature.VOLUME] = parts[..., Feature.UPPER : Feature.VOLUME].abs()
    parts[0, 1, 25, :5, Feature.GAP] = 0.0
    rows, days = inputs.stock_bar_rows(parts, panels), inputs.stock_bar_sequences(parts, panels)
    assert rows.shape == (2, 3 * 2 * 50, 120) and days.shape == (2, 3 * 50, 40, 6)
    window, stock = parts[0, 1, 20:, 4], rows[0].reshape(3, 2, 50, 120)[1, 1, 4]
    gap, body, upper, lower, volume = window.T
    ranges = upper + lower + body.abs()
    expected = [*window.T.flatten(), *window.mean(0), *window.abs().mean(0), *window.abs().amax(0)]
    expected += [0.05, gap.abs().mean() / body.abs().mean()]
    expected += [together(gap, body), together(ranges, volume), together(volume[:-1], volume[1:])]
    assert stock.tolist() == near(expected)
    assert days[0].reshape(3, 50, 40, 6)[1, 4, 25].tolist() == [*parts[0, 1, 25, 4].tolist(), 1.0]
    panel, of_panel = parts[0, 1], inputs.panel_bar_sequences(parts, panels)
    assert of_panel.shape == (2, 3 * 2, 40, 15)
    day = panel[25, :25]
    seen = torch.cat([day, (day[:, 2:4].sum(1) + day[:, 1].abs())[:, None], day[:, :1].abs()], dim=1)
    expected = [*seen.mean(0), *seen.std(0, correction=0), 0.2]
    assert of_panel[0].reshape(3, 2, 40, 15)[1, 0, 25].tolist() == near(expected)
    of_window = inputs.panel_bar_rows(parts, panels)
    assert of_window.shape == (2, 3 * 5 * 2, 41)
    gap, body, upper, lower, volume = panel[15:35, :25].unbind(-1)
    ranges, expected = upper + lower + body.abs(), []
    for kind in (gap, body, gap + body, ranges, volume):
        mean = kind.mean(1)
        expected += [*movement(kind), kind.abs().mean(), kind.abs().max(), together(mean[:-1], mean[1:])]
    expected += [upper.mean(), lower.mean(), 0.01, gap.abs().mean() / body.abs().mean()]
    expected += [together(ranges.mean(1), volume.mean(1)), together((gap + body).mean(1).abs(), volume.mean(1))]
    assert of_window[0].reshape(3, 5, 2, 41)[1, 3, 0].tolist() == near(expected)


ORIGINS, DAYS, STOCKS, CONTEXT, EVERY, PATHS = 40, 20, 6, 20, 20, 3
SCALE = torch.full((STOCKS,), 0.02, dtype=torch.float64)
DATES = range(99, 99 + ORIGINS * EVERY, EVERY)
SHORT = {"TREES": 25, "GRU_STEPS": 40, "LSTM_EPOCHS": 10, "LEARNING_RATE": 1e-2, "WEIGHED_BATCH": 64}


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    for name, value in SHORT.items():
        monkeypatch.setattr(classifiers, name, value)


def known() -> Tensor:
    context = valid_bars(ORIGINS, 1, CONTEXT, STOCKS, seed=9)[:, 0]
    context[..., VOLUME] = (12.0 + 0.5 * correlated((ORIGINS, CONTEXT, STOCKS), 0.5, seed=9)).exp()
    return context


def market(paths: int, seed: int, correlation: float = 0.4, size: Tensor | float = 1.0) -> Tensor:
    """Return bars of correlated returns and volumes, of which a tenth has no gap. Shape: (O, M, H, N, 5)."""
    shape = (ORIGINS, paths, DAYS, STOCKS)
    gap = 0.006 * size * correlated(shape, correlation, seed)
    gap = gap.where(torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.1, 0.0)
    body = 0.018 * size * correlated(shape, correlation, seed + 1000)
    last = known()[:, None, -1:, :, CLOSE]
    close = last * (gap + body).cumsum(2).exp()
    opened = torch.cat([last.expand(-1, paths, -1, -1), close[:, :, :-1]], dim=2) * gap.exp()
    wicks = (0.005 * normal(2, *shape, seed=seed + 2000).abs()).exp()
    volume = (12.0 + 0.5 * correlated(shape, 0.5, seed + 3000)).exp()
    highs = [opened.maximum(close) * wicks[0], opened.minimum(close) / wicks[1]]
    return torch.stack([opened, *highs, close, volume], dim=-1)


REAL = market(1, seed=1)


@pytest.fixture
def alike() -> Tensor:
    return market(PATHS, seed=2)


def sides(real: Tensor, generated: Tensor) -> tuple[Windows, Windows]:
    return align_windows(known(), real[:, 0], generated.float(), SCALE)


def test_what_is_learned_is_asked_of_other_origins_and_of_every_path(alike):
    """A model that is wild before the middle alone: what was learned there tells nothing of the days after it."""
    wild = torch.cat([market(PATHS, 2, size=3.0)[: ORIGINS // 2], market(PATHS, 2)[ORIGINS // 2 :]])
    windows, state = sides(REAL, wild), torch.random.get_rng_state()
    (alone,) = discriminate(*windows, DATES, 1, ["boosting"]).values()
    (bars,) = discriminate(*windows, DATES, 1, ["bars_boosting"]).values()
    assert abs(alone.accuracy.mean - 0.5) < 0.1 and abs(bars.accuracy.mean - 0.5) < 0.1
    assert {"boosting": alone} == discriminate(*windows, DATES, 1, ["boosting"])
    assert torch.equal(state, torch.random.get_rng_state()), "other draws are left alone"
    alike = market(PATHS, 2)
    alike[:, 1, ..., HIGH] *= 1.05
    (found,) = discriminate(*sides(REAL, alike), DATES, 1, ["bars_boosting"]).values()
    assert found.auc.mean == pytest.approx(0.5 + 1 / 6, abs=0.07)
    alike[:, 1] = market(PATHS, 2, size=4.0)[:, 1]
    for paths, low, high in ((alike[:, :2], 0.55, 0.85), (alike[:, 1:2], 0.85, 1.0)):
        assert low < discriminate(*sides(REAL, paths), DATES, 2, ["boosting"])["boosting"].accuracy.mean <= high


@pytest.mark.parametrize("sign", [1, -1])
def test_a_displaced_threshold_and_a_reversed_order_are_seen_by_the_auc(sign, monkeypatch):
    """A classifier that takes all windows for drawn ones and yet ranks them, or that ranks them the wrong way round."""

    def displaced(inputs: Tensor, generated: Tensor, test: Tensor, seed: int) -> Tensor:
        return sign * test.nan_to_num().abs().flatten(1).mean(1) + 100.0

    names = ["boosting", "gru", "bars_boosting", "panel_bars_gru"]
    for name in names:
        monkeypatch.setitem(FORMS, name, FORMS[name]._replace(classify=displaced))
    told = discriminate(*sides(REAL, market(PATHS, 2, size=4.0)), DATES, 1, names)
    figures = discriminator_figures({**told, "lstm": told["gru"]})
    for row in CRITERIA:
        if row.key in figures and row.bar:
            spoiled = row.key.endswith("_score")
            assert verdict(row.bar, row, {}, figures, {}) is (Verdict.MET if spoiled else Verdict.MISSED), row.key
            assert figures[row.key].mean == pytest.approx(0.0 if spoiled else (1 + sign) / 2, abs=0.1)


@pytest.mark.parametrize("auc", [0.5, 0.8])
def test_intervals_hold_a_known_auc(auc):
    """That of two normals a distance d apart is Φ(d / √2); windows of an origin share half of their variance."""
    distance, held, width = math.sqrt(2) * NormalDist().inv_cdf(auc), 0, 0.0
    for seed in range(8):
        real, drawn = (
            0.5**0.5 * (normal(20, 1, seed=3 * seed + k) + normal(20, 9, seed=90 + 3 * seed + k)) for k in (0, 1)
        )
        found = over_seeds(wins(real, drawn + distance)[None])
        held, width = held + (found.low < auc < found.high), width + found.high - found.low
    assert held >= 7 and width / 8 < 0.35


@pytest.mark.assembly
def test_planted_faults_are_told_by_the_forms_that_can_see_them(alike):
    windows = sides(REAL, market(PATHS, 2, correlation=0.0))
    found = discriminate(*windows, DATES, 1, ["boosting", "panel_boosting", "panel_gru"]).values()
    single, *joint = (told.accuracy.mean for told in found)
    assert abs(single - 0.5) < 0.1 and min(joint) > 0.8
    for same in discriminate_real(windows[0], DATES, 2).values():
        assert same.accuracy.low - 0.1 < 0.5 < same.accuracy.high + 0.1
    wild = discriminate(*sides(REAL, market(PATHS, 2, size=1.8)), DATES, 1, ["boosting", "gru", "panel_gru"])
    assert min(told.accuracy.mean for told in wild.values()) > 0.75
    alike[..., HIGH] *= 1.01
    told = discriminate(*sides(REAL, alike), DATES, 1, [name for name, form in FORMS.items() if form.whole_bars])
    assert min(each.accuracy.mean for each in told.values()) > 0.75


def test_halves_deals_and_the_interval_of_the_auc():
    for every, horizon, count in ((20, 40, 24), (5, 40, 30), (7, 20, 11), (40, 40, 2), (60, 40, 5)):
        origins = range(500, 500 + every * count, every)
        before, after = halves(origins, horizon)
        assert origins[int(before.max())] + horizon < origins[int(after.min())] + 1
        assert len(before) == len(after) and before[0] == 0 and after[-1] == count - 1
        # No more than the windows that lie across the middle are left out.
        assert count - 2 * len(before) <= math.ceil(horizon / every)
    dealt = [deal(torch.arange(10, 17), torch.Generator().manual_seed(seed)) for seed in range(20)]
    for one, other in dealt:
        assert len(one) == len(other) == 3 and one.tolist() == sorted(one.tolist())
        assert len({*one.tolist(), *other.tolist()}) == 6 and other.tolist() == sorted(other.tolist())
    assert len({tuple(one.tolist()) for one, _ in dealt}) > 10
    # The share of pairs that are in the right order, a tie being half.
    real, generated = torch.tensor([[0.0, 1.0], [2.0, 2.0]]), torch.tensor([[1.0, 3.0, -1.0], [2.0, 2.0, 2.0]])
    expected = [(1.0 + 0.5 + 1.0 + 1.0) / 6, 1.0, 2 / 6, 0.5]
    assert wins(real, generated).flatten().tolist() == pytest.approx(expected)
    values = torch.rand(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for shape in ((1, 30, 1), (1, 1, 30)):
        found, alone = over_seeds(values.reshape(shape).expand(1, 30, 30)), over_seeds(values[None])
        assert found == pytest.approx(alone) and found.high - found.low > 0.1
    assert over_seeds(torch.stack([values, values + 1.0])).mean == pytest.approx(float(values.mean()) + 0.5)


def test_classes_of_different_sizes_have_the_same_weight(monkeypatch):
    """Without any difference the logit is zero, not that of fifteen times as many generated inputs."""
    for classify, shape in ((boosting, (30,)), (balanced_gru, (5, 3))):
        logits = classify(torch.zeros(960, *shape), torch.arange(960) >= 60, torch.zeros(20, *shape), 0)
        assert logits.shape == (20,) and float(logits.abs().max()) < 0.3 < math.log(900 / 60)
    # Every generated sequence is seen, though the steps for the real ones would be over before.
    seen = []
    monkeypatch.setattr(classifiers, "GRU_STEPS", 1)
    monkeypatch.setattr(classifiers, "_train", lambda _, batches: seen.extend(x for x, _ in batches))
    real, generated = torch.zeros(40, 2, 1), torch.arange(1.0, 201.0)[:, None, None].expand(-1, 2, 1)
    balanced_gru(torch.cat([real, generated]), torch.arange(240) >= 40, real, 0)
    marks = torch.cat(seen)[:, 0, 0]
    assert set(marks[marks > 0].tolist()) == set(range(1, 201)) and len(seen) == math.ceil(200 / 32)
    assert int((marks == 0).sum()) == int((marks > 0).sum())


@pytest.mark.parametrize("form", ["boosting", "bars_boosting"])
def test_bad_input_is_named(form, alike, monkeypatch):
    known, drawn = sides(REAL, alike)
    for given, told in (
        ((known, drawn.select(torch.arange(39)), DATES, 1), "40 origins of real windows, 39 of generated"),
        ((known, drawn, DATES[:-1], 1), "39 days of origins for windows of 40"),
        ((known, drawn, DATES, 0), "seeds must be at least 1, got 0"),
        ((known.days(1, 19), drawn.days(1, 19), DATES, 1), "at least 20 days, got 19"),
        ((windows_of(normal(ORIGINS, 1, DAYS, 2)), drawn, DATES, 1), "needs bars"),
    ):
        with pytest.raises(ValueError, match=told):
            discriminate(*given, [form])
    with pytest.raises(ValueError, match=r"2 origins in each half .* got 1 and 1 of 2"):
        discriminate_real(known.select(torch.tensor([0, 1])), [0, 20], 1, [form])
    with pytest.raises(ValueError, match=r"1 origins in each half .* got 0 and 0 of 2"):
        halves([10, 20], 40)
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(ImportError, match=r"pip install 'vecenv\[validate\]'"):
        discriminate(known, drawn, DATES, 1, [form])
