"""Classifiers tell windows apart where they differ, and only there: those of returns, and those of whole bars."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import pytest
import torch
from simulated_windows import correlated, normal, valid_bars, windows_of
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME
from vecenv.worldmodel.metrics import bar_discriminator, discriminator, discriminator_classifiers
from vecenv.worldmodel.metrics.bar_discriminator import BAR_FORMS, discriminate_bars, discriminate_real_bars, wins
from vecenv.worldmodel.metrics.discriminator import FORMS, deal, discriminate, discriminate_real, halves, over_seeds
from vecenv.worldmodel.metrics.discriminator_classifiers import weighed_boosting, weighed_gru
from vecenv.worldmodel.metrics.windows import Windows, align_windows

ORIGINS, DAYS, STOCKS, CONTEXT, EVERY, PATHS = 40, 20, 6, 20, 20, 3
SCALE = torch.full((STOCKS,), 0.02, dtype=torch.float64)
DATES = range(99, 99 + ORIGINS * EVERY, EVERY)


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    for name, value in (("TREES", 25), ("GRU_STEPS", 40), ("LSTM_EPOCHS", 10), ("LEARNING_RATE", 1e-2),
                        ("WEIGHED_BATCH", 64)):  # fmt: skip
        monkeypatch.setattr(discriminator_classifiers, name, value)


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
    close = known()[:, None, -1:, :, CLOSE] * (gap + body).cumsum(2).exp()
    opened = before(close) * gap.exp()
    wicks = (0.005 * normal(2, *shape, seed=seed + 2000).abs()).exp()
    volume = (12.0 + 0.5 * correlated(shape, 0.5, seed + 3000)).exp()
    highs = [opened.maximum(close) * wicks[0], opened.minimum(close) / wicks[1]]
    return torch.stack([opened, *highs, close, volume], dim=-1)


def before(close: Tensor) -> Tensor:
    return torch.cat([known()[:, None, -1:, :, CLOSE].expand(-1, close.shape[1], -1, -1), close[:, :, :-1]], dim=2)


@pytest.fixture(scope="module")
def real() -> Tensor:
    return market(1, seed=1)


@pytest.fixture
def alike() -> Tensor:
    return market(PATHS, seed=2)


def sides(real: Tensor, generated: Tensor) -> tuple[Windows, Windows]:
    """Real windows, and generated ones in single precision."""
    return align_windows(known(), real[:, 0], generated.float(), SCALE)


def told(real: Tensor, generated: Tensor, *forms: str) -> list[float]:
    """Accuracy of classifiers of either kind."""
    windows, found = sides(real, generated), []
    for form in forms:
        if form in FORMS:
            found.append(discriminate(*windows, DATES, 1, [form])[form].mean)
        else:
            found.append(discriminate_bars(*windows, DATES, 1, [form])[form].accuracy.mean)
    return found


@pytest.mark.parametrize("form", [*FORMS, *BAR_FORMS])
@pytest.mark.assembly
def test_windows_of_the_same_law_cannot_be_told_apart(real, alike, form):
    """Nor real ones of other origins, though volatility grows in each half of the days."""
    growing = market(1, 1, size=torch.linspace(0.5, 2.0, ORIGINS // 2).repeat(2)[:, None, None, None])
    windows, grown = sides(real, alike), sides(growing, alike)[0]
    if form in FORMS:
        intervals = [discriminate(*windows, DATES, 1, [form]), discriminate_real(grown, DATES, 2, [form])]
        intervals = [found[form] for found in intervals]
    else:
        both = [discriminate_bars(*windows, DATES, 1, [form]), discriminate_real_bars(windows[0], DATES, 2, [form])]
        intervals = [interval for found in both for interval in found[form]]
    assert all(found.low - 0.1 < 0.5 < found.high + 0.1 and abs(found.mean - 0.5) < 0.16 for found in intervals)


@pytest.mark.parametrize("form", ["boosting", "bars_boosting"])
def test_what_is_learned_is_asked_of_other_origins(real, alike, form):
    """A model that is wild before the middle alone: what was learned there tells nothing of the days after it."""
    alike[: ORIGINS // 2] = market(PATHS, 2, size=3.0)[: ORIGINS // 2]
    assert abs(told(real, alike, form)[0] - 0.5) < 0.1


@pytest.mark.assembly
def test_planted_faults_are_told_by_the_forms_that_can_see_them(real, alike):
    """Other volatility, order of days, dependence of stocks, volumes of other days, gaps and wicks."""
    wild = market(PATHS, 2, size=1.8)
    assert min(told(real, wild, "boosting", "gru", "panel_gru")) > 0.75
    late = market(1, 1, size=torch.where(torch.arange(DAYS) < DAYS // 2, 1.0, 4.0)[:, None])
    order = normal(ORIGINS, DAYS, seed=3).argsort(-1)
    sizes = torch.where(order < DAYS // 2, 1.0, 4.0)[:, None, :, None]
    assert min(told(late, market(1, 1, size=sizes), "boosting", "gru")) > 0.7
    alone, *joint = told(real, market(PATHS, 2, correlation=0.0), "boosting", "panel_boosting", "panel_gru")
    assert abs(alone - 0.5) < 0.1 and min(joint) > 0.8
    volumes = alike.clone()
    for stock in range(STOCKS):
        volumes[..., stock, VOLUME] = volumes[..., stock, VOLUME].roll(stock, dims=0)
    alone, *joint = told(real, volumes, "bars_boosting", "panel_bars_boosting", "panel_bars_gru")
    assert abs(alone - 0.5) < 0.1 and min(joint) > 0.75
    gaps = alike.clone()
    zero = (gaps[..., OPEN] / before(gaps[..., CLOSE]) - 1.0).abs() < 1e-9
    gaps[..., OPEN] = gaps[..., OPEN].where(~zero, gaps[..., OPEN] * 1.0005)
    gaps[..., HIGH], gaps[..., LOW] = gaps[..., HIGH].maximum(gaps[..., OPEN]), gaps[..., LOW].minimum(gaps[..., OPEN])
    assert min(told(real, gaps, "bars_boosting", "bars_gru")) > 0.7
    wicks = alike.clone()
    wicks[..., HIGH] *= 1.01
    assert min(told(real, wicks, *BAR_FORMS)) > 0.75


def test_every_path_is_drawn_or_asked(real, alike):
    """Of three paths one is told: the AUC is a sixth above a half; a path at a time some windows are."""
    alike[:, 1, ..., HIGH] *= 1.05
    (found,) = discriminate_bars(*sides(real, alike), DATES, 1, ["bars_boosting"]).values()
    assert found.auc.mean == pytest.approx(0.5 + 1 / 6, abs=0.07)
    alike[:, 1] = market(PATHS, 2, size=4.0)[:, 1]
    some, alone = (discriminate(*sides(real, paths), DATES, 2, ["boosting"])["boosting"].mean
                   for paths in (alike[:, :2], alike[:, 1:2]))  # fmt: skip
    assert 0.55 < some < 0.85 < alone


@pytest.mark.parametrize(
    ("every", "horizon", "count"), [(20, 40, 24), (5, 40, 30), (7, 20, 11), (40, 40, 2), (60, 40, 5)]
)
def test_halves_share_no_day(every, horizon, count):
    origins = range(500, 500 + every * count, every)
    before, after = halves(origins, horizon)
    days = [
        {origins[at] + ahead for at in half.tolist() for ahead in range(1, horizon + 1)} for half in (before, after)
    ]
    assert max(days[0]) < min(days[1])
    assert len(before) == len(after) and before[0] == 0 and after[-1] == count - 1
    # No more than the windows that lie across the middle are left out.
    assert count - 2 * len(before) <= math.ceil(horizon / every)


def test_origins_are_dealt_in_equal_numbers():
    dealt = [deal(torch.arange(10, 17), torch.Generator().manual_seed(seed)) for seed in range(20)]
    for one, other in dealt:
        assert len(one) == len(other) == 3 and one.tolist() == sorted(one.tolist())
        assert len({*one.tolist(), *other.tolist()}) == 6 and other.tolist() == sorted(other.tolist())
    assert len({tuple(one.tolist()) for one, _ in dealt}) > 10


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
    assert over_seeds(torch.stack([values, values + 1.0])).mean == pytest.approx(float(values.mean()) + 0.5)


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


@pytest.mark.parametrize(("run", "forms"), [(discriminate, ["boosting", "lstm"]), (discriminate_bars, ["bars_gru"])])
@pytest.mark.assembly
def test_scores_are_repeatable_and_leave_other_draws_alone(real, alike, run, forms):
    windows, state = sides(real, alike), torch.random.get_rng_state()
    first = run(*windows, DATES, 1, forms)
    assert bool((state == torch.random.get_rng_state()).all())
    torch.rand(3)
    assert run(*windows, DATES, 1, forms) == first != run(*windows, DATES, 2, forms)


@pytest.mark.parametrize("module", [discriminator, bar_discriminator])
def test_bad_input_is_named(module: ModuleType, real, alike, monkeypatch):
    run, run_real = ((discriminate, discriminate_real) if module is discriminator
                     else (discriminate_bars, discriminate_real_bars))  # fmt: skip
    known, drawn = sides(real, alike)
    few = drawn.select(torch.arange(ORIGINS - 1))
    for given, told in (
        ((known, few, DATES, 1), f"{ORIGINS} origins of real windows, {ORIGINS - 1} of generated"),
        ((known, drawn, DATES[:-1], 1), f"{ORIGINS - 1} days of origins for windows of {ORIGINS}"),
        ((known, drawn, DATES, 0), "seeds must be at least 1, got 0"),
        ((known.days(1, 19), drawn.days(1, 19), DATES, 1), "at least 20 days, got 19"),
        ((windows_of(normal(ORIGINS, 1, DAYS, 2)), drawn, DATES, 1), "needs bars"),
    ):
        with pytest.raises(ValueError, match=told):
            run(*given)
    with pytest.raises(ValueError, match=r"2 origins in each half .* got 1 and 1 of 2"):
        run_real(known.select(torch.tensor([0, 1])), [0, 20], 1)
    with pytest.raises(ValueError, match=r"1 origins in each half .* got 0 and 0 of 2"):
        halves([10, 20], 40)
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(ImportError, match=r"pip install 'vecenv\[validate\]'"):
        run(known, drawn, DATES, 1)
