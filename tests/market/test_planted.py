"""Planted markets have the laws that their page states, and their best rules earn what is computed of them."""

import itertools
import math
from functools import partial
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.learn.small_tasks import planted_growth
from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME, Bars
from vecenv.market.generators import Kind
from vecenv.market.planted import planted_bars, random_walk_bars
from vecenv.market.planted_law import DRIFT, START_PRICE, planted_directions, planted_law
from vecenv.market.planted_optimum import planted_attainable, planted_target_weights

VOLATILITY = 0.01
LOG: tuple[Kind, ...] = ("signal", "momentum", "reversal", "cross_section")
KINDS = (*LOG, "volatility")


def changes(bars: Bars) -> Tensor:
    return bars.ohlcv[..., CLOSE] / bars.ohlcv[..., OPEN] - 1


def standard_error(sample: Tensor) -> Tensor:
    """Of a mean over independent paths. The sample has a mean for each path. Shape: (P,)."""
    return sample.std() / len(sample) ** 0.5


def assert_mean(sample: Tensor, expected: float) -> None:
    """Assert the mean of (P, ...) numbers within four standard errors, which days of a path may depend on."""
    by_path = sample.flatten(1).mean(dim=1)
    assert abs(by_path.mean() - expected) < 4 * standard_error(by_path)


def directions_by_hand(kind: Kind, past: list[list[float]], signal: list[float] | None = None) -> list[float]:
    """Signs of the next means by the rules of the page, from all days of returns so far, oldest first."""
    if signal is not None:
        return signal
    if kind == "cross_section":
        ranked = sorted(range(len(past[-1])), key=lambda symbol: past[-1][symbol])
        half = len(ranked) // 2
        bottom, top = ranked[:half], ranked[len(ranked) - half :]
        return [(symbol in top) - (symbol in bottom) for symbol in range(len(ranked))]
    window = past[-10:] if kind == "momentum" else past[-1:]
    gains = [math.fsum(column) for column in zip(*window, strict=True)]
    return [(1 if kind == "momentum" else -1) * ((gain > 0) - (gain < 0)) for gain in gains]


def weights_of(bars: Bars, kind: Kind, **parameters: float) -> Tensor:
    return planted_target_weights(planted_law(kind, **parameters), bars.ohlcv, bars.columns.get("signal"))


def attainable_of(num_symbols: int, *law: str | float, **parameters: str | float) -> tuple[float, float]:
    return planted_attainable(planted_law(*law, **parameters), num_symbols)


@pytest.mark.parametrize("kind", LOG)
@pytest.mark.parametrize(("num_symbols", "strength"), [(2, 0.0015), (5, 0.02), (6, 0.004)])
def test_means_and_best_weights_follow_the_written_rule(kind: Kind, num_symbols: int, strength: float) -> None:
    """Without strength the same draws give the noise alone: the difference is the planted mean, exactly."""
    bars, noise = (planted_bars(2, 40, num_symbols, seed=4, kind=kind, strength=s) for s in (strength, 0.0))
    means, by_day, weights = changes(bars) - changes(noise), changes(bars), weights_of(bars, kind)
    assert means[:, 0].abs().max() < 1e-12
    for path, day in itertools.product(range(2), range(39)):
        signal = bars.columns["signal"][path, day].tolist() if kind == "signal" else None
        expected = directions_by_hand(kind, by_day[path, : day + 1].tolist(), signal)
        assert means[path, day + 1].tolist() == pytest.approx([strength * d for d in expected], abs=1e-12)
        up = [direction > 0 for direction in expected]
        assert weights[path, day].tolist() == pytest.approx([chosen / max(1, sum(up)) for chosen in up], abs=1e-15)
        if signal is None:
            shown = planted_directions(planted_law(kind, strength), by_day[path : path + 1, : day + 1])
            assert shown[0, -1].tolist() == expected


@pytest.mark.parametrize("kind", LOG)
def test_noise_has_its_volatility(kind: Kind) -> None:
    """Half of its variance is the market's where symbols are ranked."""
    bars = planted_bars(512, 100, 3, seed=5, kind=kind, strength=0.0, volatility=0.02)
    noise = changes(bars) / 0.02
    assert_mean(noise, 0.0)
    assert_mean(noise.square(), 1.0)
    assert_mean(noise[..., 0] * noise[..., 1], 0.5 if kind == "cross_section" else 0.0)
    assert_mean(noise[:, 1:] * noise[:, :-1], 0.0)
    for signal in bars.columns.values():
        assert_mean(signal * noise, 0.0)
        assert_mean(signal[:, :-1] * noise[:, 1:], 0.0)


def test_a_signal_is_a_fair_sign_that_persists_and_its_draws_do_not_change() -> None:
    signal = planted_bars(512, 100, 3, seed=3, flip=0.3).columns["signal"]
    assert torch.equal(signal.abs(), torch.ones_like(signal))
    assert_mean(signal[:, :1], 0.0)
    assert_mean((signal[:, 1:] != signal[:, :-1]).double(), 0.3)
    bars = planted_bars(3, 200, 2, seed=11)
    assert torch.equal(bars.ohlcv, planted_bars(3, 200, 2, 11, "cpu", 0.01, 0.01, 0.2, "signal").ohlcv)
    recorded = [33.65326803152831, 74.37714308223958, 39.94974548272184, 27.920622097669877, 88.6915352252141]
    assert bars.ohlcv[:, -1, :, CLOSE].flatten().tolist()[:5] == pytest.approx(recorded, rel=1e-12)
    assert bars.columns["signal"].sum(dim=1).tolist() == [[-42.0, 20.0], [-22.0, -40.0], [40.0, 4.0]]
    assert torch.equal(bars.context["signal"], bars.columns["signal"].mean(-1))


@pytest.mark.parametrize(("strength", "flip"), [(0.7, 0.02), (0.4, 0.2)])
def test_volatility_has_two_regimes_of_one_mean(strength: float, flip: float) -> None:
    bars = planted_bars(2048, 80, 2, seed=9, kind="volatility", strength=strength, flip=flip)
    centred = (changes(bars) - DRIFT) / VOLATILITY
    both, between = centred[..., 0] * centred[..., 1], centred[..., 0] - centred[..., 1]
    assert_mean(centred, 0.0)
    assert_mean(both, 1 + strength**2)
    assert_mean(between.square(), 2 * 0.25)
    # The covariance of the two regimes' variances decays with the regime.
    for days in (1, 5):
        expected = (1 + strength**2) ** 2 + (2 * strength) ** 2 * (1 - 2 * flip) ** days
        assert_mean(both[:, days:] * both[:, :-days], expected)
    # The symbols' own noise has no regime.
    assert_mean(between[:, 1:].square() * (both[:, :-1] - (1 + strength**2)), 0.0)


def test_the_range_of_a_day_does_not_reveal_its_regime() -> None:
    """Given open and close, exp(-2 (m - x)(m - y) / v) of an extreme m of a bridge is uniform, with one v for all."""
    bars = planted_bars(512, 200, 2, seed=10, kind="volatility")
    open_, high, low, close = (bars.ohlcv[..., field].log() for field in (OPEN, HIGH, LOW, CLOSE))
    regime = changes(bars).mean(dim=-1, keepdim=True).abs() / VOLATILITY
    for extreme in (high, low):
        uniform = torch.exp(-2 * (extreme - open_) * (extreme - close) / VOLATILITY**2)
        assert_mean(uniform, 0.5)
        assert_mean(uniform.square(), 1 / 3)
        for days in (0, 1):
            assert_mean((uniform[:, : 200 - days] - 0.5) * regime[:, days:], 0.0)


@pytest.mark.parametrize("kind", [*KINDS, "walk"])
def test_bars_are_valid_and_depend_on_seed_path_and_earlier_days_alone(kind, monkeypatch):
    bars = random_walk_bars if kind == "walk" else partial(planted_bars, kind=kind)
    many, few = bars(9, 120, 5, 7), bars(4, 90, 5, 7)
    open_, high, low, close = (many.ohlcv[..., field] for field in (OPEN, HIGH, LOW, CLOSE))
    assert many.ohlcv.isfinite().all() and (low > 0).all() and (many.ohlcv[..., VOLUME] > 0).all()
    assert (low <= torch.minimum(open_, close)).all() and (high >= torch.maximum(open_, close)).all()
    assert torch.equal(open_[:, 1:], close[:, :-1])
    assert torch.allclose(open_[:, 0], torch.tensor(START_PRICE, dtype=torch.float64))
    assert torch.equal(few.ohlcv, many.ohlcv[:4, :90])
    assert not torch.equal(few.ohlcv, bars(4, 90, 5, 8).ohlcv) and not torch.equal(many.ohlcv[0], many.ohlcv[1])
    assert many.columns.keys() == many.context.keys() == ({"signal"} if kind == "signal" else set())
    for name, column in few.columns.items():
        assert torch.equal(column, many.columns[name][:4, :90])
    assert many.source == ("random walk, seed 7" if kind == "walk" else f"planted {kind}, seed 7")
    if kind != "cross_section":
        assert torch.equal(few.ohlcv[:, :, :3], bars(4, 90, 3, 7).ohlcv)
    monkeypatch.setattr("vecenv.market.synthetic._BARS_PER_BLOCK", 1200)
    assert torch.equal(few.ohlcv, bars(4, 90, 5, 7).ohlcv)


@pytest.mark.parametrize(("num_symbols", "flip"), [(1, 0.2), (2, 0.4), (2, 0.0), (3, 0.7)])
def test_growth_equals_sum_over_every_signal_history(num_symbols, flip):
    num_steps, strength, expected = 3, 0.05, 0.0
    for history in itertools.product((0, 1), repeat=num_steps * num_symbols):
        signal = torch.tensor(history).view(num_steps, num_symbols)
        changed = (signal[1:] != signal[:-1]).sum().item()
        stays = (num_steps - 1) * num_symbols - changed
        probability = 0.5**num_symbols * flip**changed * (1 - flip) ** stays
        expected += probability * (1 + strength) ** signal.any(dim=1).sum().item()
    assert planted_growth(num_steps, num_symbols, strength, flip) == pytest.approx(expected, rel=1e-12)
    assert planted_growth(50, num_symbols, 0.0, flip) == pytest.approx(1)


def test_a_random_walk_pays_no_rule():
    assert [planted_law(kind).flip for kind in ("signal", "volatility")] == [0.2, 0.02]
    walk = random_walk_bars(4096, 100, 2, seed=4, volatility=0.02)
    close = walk.ohlcv[..., CLOSE]
    daily = close[:, 1:] / close[:, :-1] - 1
    for gain in (close[:, day] / START_PRICE - 1 for day in (1, 50, 99)):
        assert_mean(gain, 0.0)
    assert close.log().diff(dim=1).std().item() == pytest.approx(0.02, rel=0.01)
    for position in (torch.ones_like(daily[:, 1:]), daily[:, :-1].sign(), (close[:, 1:-1] < START_PRICE).double()):
        assert_mean(position * daily[:, 1:], 0.0)
    with pytest.raises(ValueError, match=r"volatility must be at least 0, got -0\.1"):
        random_walk_bars(1, 10, volatility=-0.1)


def test_bad_parameters_are_refused():
    for arguments, message in (
        ({"num_paths": 0}, "num_paths"),
        ({"strength": -0.1}, "strength"),
        ({"volatility": 0.2}, "below 1"),
        ({"flip": 1.1}, r"flip must be in \[0, 1\], got 1\.1"),
        ({"kind": "carry"}, "unknown kind 'carry' of planted market, expected one of signal, momentum"),
        ({"kind": "momentum", "flip": 0.2}, "flip is for the kinds signal and volatility, not for momentum"),
        ({"kind": "momentum", "volatility": 0.0}, "volatility must be above 0 for the kind momentum"),
        ({"kind": "reversal", "strength": float("nan")}, "strength"),
        ({"kind": "cross_section"}, "cross_section ranks symbols: it needs at least 2, got 1"),
        ({"kind": "volatility", "strength": 1.0}, "strength must be below 1 for the kind volatility"),
        ({"kind": "volatility", "volatility": 0.07}, "below 1"),
        ({"kind": "volatility", "flip": 0.0}, "flip must be above 0 and below 0.5"),
        ({"seed": 2**64}, "seed"),
    ):
        with pytest.raises(ValueError, match=message):
            planted_bars(**{"num_paths": 1, "num_days": 10, **arguments})
    one, two = torch.ones(1, 3, 1, 5), torch.ones(1, 3, 2, 5)
    for arguments, message in (
        ({"kind": "momentum", "flip": 0.1}, "flip is for the kinds"),
        ({"kind": "volatility", "strength": 1.0}, "strength must be below 1"),
        ({"kind": "reversal", "strength": 1e-5}, "no rule is known for strength 1e-05 beside volatility 0.01"),
        ({"kind": "reversal", "strength": 0.6}, "no rule is known for strength 0.6"),
        *(({"kind": kind, "strength": 0.00016, "volatility": 0.02}, "strength 0.00016 beside") for kind in LOG[1:]),
    ):
        with pytest.raises(ValueError, match=message):
            attainable_of(2, **arguments)
        with pytest.raises(ValueError, match=message):
            planted_target_weights(planted_law(**arguments), two)
    for number, message in ((1, "at least 2, got 1"), (0, "num_symbols must be at least 1, got 0")):
        with pytest.raises(ValueError, match=message):
            attainable_of(number, "cross_section")
    for ohlcv, signal, kind, message in (
        (one, None, "cross_section", "at least 2, got 1"),
        (two, None, "signal", "signal is needed for the kind signal"),
        (two, torch.ones(1, 3, 2), "reversal", "no other, the kind is reversal"),
        (two, torch.ones(1, 3, 1), "signal", r"signal must be \(1, 3, 2\) as ohlcv is, got \(1, 3, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            planted_target_weights(planted_law(kind), ohlcv, signal)


DAYS = 251


def daily_returns(bars: Bars, weights: Tensor) -> Tensor:
    """Returns of an account that holds the weights of each close over the next day. Shape: (P, T - 1)."""
    simple = changes(bars)
    return (weights.expand_as(simple)[:, :-1] * simple[:, 1:]).sum(dim=-1)


@pytest.mark.parametrize(("num_symbols", "strength", "flip"), [(1, 0.7, 0.02), (3, 0.5, 0.2)])
def test_exposure_is_that_of_the_sum_over_every_history_of_regimes(num_symbols, strength, flip):
    """Variances of the mean of all symbols by the page; the posterior by enumeration, without a recursion."""
    days, volatility = 6, 0.01
    bars = planted_bars(4, days, num_symbols, seed=2, kind="volatility", strength=strength, flip=flip)
    weights = weights_of(bars, "volatility", strength=strength, flip=flip)
    variances = {regime: volatility**2 * ((1 + regime * strength) ** 2 + 0.25 / num_symbols) for regime in (-1, 1)}
    for path, day in itertools.product(range(4), range(days)):
        means = changes(bars)[path, : day + 1].mean(dim=-1).tolist()
        chances = {-1: 0.0, 1: 0.0}
        for history in itertools.product((-1, 1), repeat=day + 2):
            chance = 0.5
            for today, tomorrow in itertools.pairwise(history):
                chance *= 1 - flip if today == tomorrow else flip
            for mean, regime in zip(means, history, strict=False):
                chance *= NormalDist(DRIFT, math.sqrt(variances[regime])).pdf(mean)
            chances[history[-1]] += chance
        variance = sum(chances[r] * variances[r] for r in (-1, 1)) / sum(chances.values())
        expected = (variances[-1] + DRIFT**2) / (variance + DRIFT**2) / num_symbols
        assert weights[path, day].tolist() == pytest.approx([expected] * num_symbols, rel=1e-9)


@pytest.mark.parametrize("num_symbols", [2, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rule_and_equal_weights_earn_what_is_computed(kind: Kind, num_symbols: int) -> None:
    """Growth, or a Sharpe ratio within three standard errors of a jackknife over paths."""
    bars = planted_bars(512 if kind == "volatility" else 256, DAYS, num_symbols, seed=4, kind=kind)
    weights = (weights_of(bars, kind), torch.full((1, 1, num_symbols), 1 / num_symbols))
    for returns, attainable in zip(
        (daily_returns(bars, each) for each in weights), attainable_of(num_symbols, kind), strict=True
    ):
        growth = returns.log1p().mean(dim=1)
        if kind == "volatility":
            assert (math.sqrt(252) * returns.mean() / returns.std()).item() == pytest.approx(attainable, abs=0.15)
        else:
            assert abs(growth.mean() - attainable) < 3 * standard_error(growth) < 2e-4


def expected_growth(directions: tuple[int, ...], weights: np.ndarray, kind: Kind, **parameters: float) -> np.ndarray:
    """E[log(1 + w R)] of many weights by quadrature over all noise. Shapes: (K,), (W, K) -> (W,)."""
    law, num_symbols = planted_law(kind, **parameters), len(directions)
    nodes, chances = np.polynomial.hermite_e.hermegauss(18 if num_symbols < 3 else 12)
    grid = np.array(list(itertools.product(nodes, repeat=num_symbols)))
    chance = np.prod(list(itertools.product(chances / chances.sum(), repeat=num_symbols)), axis=1)
    covariance = np.eye(num_symbols) * law.own_volatility**2 + law.market_volatility**2
    returns = law.strength * np.array(directions) + grid @ np.linalg.cholesky(covariance).T
    return np.log1p(weights @ returns.T) @ chance


def simplex(num_symbols: int, parts: int) -> np.ndarray:
    """All long-only weights in steps of 1 / parts, cash included."""
    grid = np.array(list(itertools.product(range(parts + 1), repeat=num_symbols)))
    return grid[grid.sum(axis=1) <= parts] / parts


def smallest_strength(kind: Kind, volatility: float) -> float:
    low, high = 0.0, 0.1
    for _ in range(60):
        middle = (low + high) / 2
        try:
            attainable_of(2, kind, middle, volatility)
            high = middle
        except ValueError:
            low = middle
    return high


@pytest.mark.parametrize("volatility", [0.01, 0.02])
@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize(
    ("kind", "directions"),
    [
        *(("momentum", signs) for signs in ((1,), (1, 1), (1, -1), (-1, -1), (1, 1, -1))),
        ("cross_section", (1, -1)),
        ("cross_section", (1, 0, -1)),
    ],
)
def test_no_weights_on_a_grid_are_better(kind, directions, volatility, edge):
    """Also at the smallest strength that is taken. Given the signs, signal and reversal have the law of momentum."""
    strength = smallest_strength(kind, volatility) if edge else 0.0015 + volatility**2
    assert strength < 2 * volatility**2 or not edge
    grid = simplex(len(directions), 60 if len(directions) < 3 else 12)
    expected = expected_growth(directions, grid, kind, strength=strength, volatility=volatility)
    up = np.array(directions) > 0
    best = up / max(1, up.sum())
    assert grid[expected.argmax()] == pytest.approx(best)
    own = expected_growth(directions, best[None], kind, strength=strength, volatility=volatility)[0]
    if up.any():
        assert own > 0.2 * strength


def test_attainable_growth_by_hand():
    """Two symbols, without noise to speak of: up on three of four pairs of signs; one of two by rank."""
    for kind in LOG[:3]:
        rule, equal_weight = attainable_of(2, kind, 0.01, 1e-9)
        assert rule == pytest.approx(0.75 * math.log(1.01), rel=1e-9)
        assert equal_weight == pytest.approx(0.25 * (math.log(1.01) + math.log(0.99)), rel=1e-9)
    assert attainable_of(2, "cross_section", 0.01, 1e-9) == pytest.approx((math.log(1.01), 0), abs=1e-12)
    # To the second order, E[log(1 + R)] = mean - (mean² + variance) / 2.
    rule, equal_weight = attainable_of(10, "cross_section", 0.001, 0.01)
    assert rule == pytest.approx(0.001 - (1e-6 + 5e-5 + 1e-5) / 2, rel=1e-4)
    assert equal_weight == pytest.approx(-(5e-5 + 5e-6) / 2, rel=1e-3)
    # A known regime bounds the Sharpe ratio, and an unknown one leaves buy and hold.
    variances = [1e-4 * ((1 + sign * 0.7) ** 2 + 0.25 / 10) for sign in (-1, 1)]
    share = sum(DRIFT**2 / (variance + DRIFT**2) for variance in variances) / 2
    known = math.sqrt(252 * share / (1 - share))
    ratios = [attainable_of(10, "volatility", 0.7, flip=flip).rule for flip in (0.0005, 0.01, 0.1, 0.3, 0.499)]
    assert ratios == sorted(ratios, reverse=True) and 0.97 * known < ratios[0] < known
    held = attainable_of(10, "volatility", 0.7).equal_weight
    assert held == pytest.approx(math.sqrt(252) * DRIFT / math.sqrt(sum(variances) / 2), rel=1e-12)
    assert ratios[-1] == pytest.approx(held, rel=2e-3) and ratios[-1] > held


@pytest.mark.nightly
def test_a_finer_quadrature_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> tuple[list[float], list[float]]:
        laws = itertools.product((1, 30), (0.3, 0.7, 0.95), (0.001, 0.02, 0.3))
        return (
            [value for kind in LOG for value in attainable_of(4, kind)],
            [attainable_of(number, "volatility", strength, flip=flip).rule for number, strength, flip in laws],
        )

    growths, ratios = results()
    monkeypatch.setattr("vecenv.market.planted_optimum._NODES", 512)
    monkeypatch.setattr("vecenv.market.planted_optimum._LOG_ODDS", 1601)
    finer_growths, finer_ratios = results()
    assert growths == pytest.approx(finer_growths, abs=1e-12)
    assert ratios == pytest.approx(finer_ratios, rel=2e-5) and ratios != finer_ratios


@pytest.mark.parametrize("kind", [*LOG, "volatility"])
def test_without_strength_there_is_nothing_to_find(kind: Kind) -> None:
    bars = planted_bars(4, 50, 3, seed=9, kind=kind, strength=0.0)
    weights, attainable = weights_of(bars, kind, strength=0.0), attainable_of(3, kind, 0.0)
    if kind == "volatility":
        assert torch.equal(weights, torch.full_like(weights, 1 / 3))
        assert attainable.rule == pytest.approx(attainable.equal_weight, rel=1e-6)
    else:
        assert not weights.any() and attainable.rule == 0.0 and attainable.equal_weight < 0
