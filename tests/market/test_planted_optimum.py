"""The best rules of planted markets earn what is computed of them, and nothing else earns more."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.market.test_planted import changes, directions_by_hand, standard_error
from vecenv.market.bars import Bars
from vecenv.market.planted import planted_bars
from vecenv.market.planted_law import DRIFT, Kind, planted_law
from vecenv.market.planted_optimum import planted_attainable, planted_target_weights

LOG: tuple[Kind, ...] = ("signal", "momentum", "reversal", "cross_section")
DAYS = 251


def weights_of(bars: Bars, kind: Kind, **parameters: float) -> Tensor:
    return planted_target_weights(bars.ohlcv, bars.columns.get("signal"), kind=kind, **parameters)


def daily_returns(bars: Bars, weights: Tensor) -> Tensor:
    """Returns of an account that holds the weights of each close over the next day. Shape: (P, T - 1)."""
    simple = changes(bars)
    return (weights.expand_as(simple)[:, :-1] * simple[:, 1:]).sum(dim=-1)


def sharpe(returns: Tensor) -> float:
    """Sharpe ratio of all days pooled, per year."""
    return (math.sqrt(252) * returns.mean() / returns.std()).item()


def sharpe_error(returns: Tensor) -> float:
    """Jackknife standard error over paths of a pooled Sharpe ratio."""
    groups = torch.arange(len(returns)) // 8
    ratios = torch.tensor([sharpe(returns[groups != group]) for group in range(len(returns) // 8)])
    return ((ratios - ratios.mean()).square().sum() * (len(ratios) - 1) / len(ratios)).sqrt().item()


@pytest.mark.parametrize("num_symbols", [2, 5])
@pytest.mark.parametrize("kind", LOG)
def test_weights_are_equal_where_the_rule_says_up(kind: Kind, num_symbols: int) -> None:
    bars = planted_bars(2, 40, num_symbols, seed=1, kind=kind)
    weights, past = weights_of(bars, kind), changes(bars)
    for path, day in itertools.product(range(2), range(40)):
        signal = bars.columns["signal"][path, day].tolist() if kind == "signal" else None
        up = [direction > 0 for direction in directions_by_hand(kind, past[path, : day + 1].tolist(), signal)]
        expected = [chosen / max(1, sum(up)) for chosen in up]
        assert weights[path, day].tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(("num_symbols", "strength", "flip"), [(1, 0.7, 0.02), (3, 0.5, 0.2)])
def test_exposure_is_that_of_the_sum_over_every_history_of_regimes(
    num_symbols: int, strength: float, flip: float
) -> None:
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
@pytest.mark.parametrize("kind", LOG)
def test_the_rule_and_equal_weights_earn_what_is_computed(kind: Kind, num_symbols: int) -> None:
    bars = planted_bars(256, DAYS, num_symbols, seed=4, kind=kind)
    attainable = planted_attainable(num_symbols, kind)
    both = (weights_of(bars, kind), torch.full((1, 1, num_symbols), 1 / num_symbols))
    rule, equal = (daily_returns(bars, weights).log1p().mean(dim=1) for weights in both)
    assert abs(rule.mean() - attainable.rule) < 3 * standard_error(rule)
    assert abs(equal.mean() - attainable.equal_weight) < 3 * standard_error(equal)
    assert standard_error(rule) < 0.05 * attainable.rule


@pytest.mark.parametrize("num_symbols", [1, 10])
def test_the_sharpe_ratios_are_what_is_computed(num_symbols: int) -> None:
    bars = planted_bars(512, DAYS, num_symbols, seed=5, kind="volatility")
    attainable = planted_attainable(num_symbols, "volatility")
    rule, equal = daily_returns(bars, weights_of(bars, "volatility")), changes(bars)[:, 1:].mean(dim=-1)
    assert abs(sharpe(rule) - attainable.rule) < 3 * sharpe_error(rule)
    assert abs(sharpe(equal) - attainable.equal_weight) < 3 * sharpe_error(equal)
    assert sharpe_error(rule) < 0.09


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
            planted_attainable(2, kind, middle, volatility)
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
def test_no_weights_on_a_grid_are_better(
    kind: Kind, directions: tuple[int, ...], volatility: float, edge: bool
) -> None:
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


def test_attainable_growth_by_hand() -> None:
    """Two symbols, without noise to speak of: up on three of four pairs of signs; one of two by rank."""
    for kind in LOG[:3]:
        rule, equal_weight = planted_attainable(2, kind, 0.01, 1e-9)
        assert rule == pytest.approx(0.75 * math.log(1.01), rel=1e-9)
        assert equal_weight == pytest.approx(0.25 * (math.log(1.01) + math.log(0.99)), rel=1e-9)
    assert planted_attainable(2, "cross_section", 0.01, 1e-9) == pytest.approx((math.log(1.01), 0), abs=1e-12)
    # To the second order, E[log(1 + R)] = mean - (mean² + variance) / 2.
    rule, equal_weight = planted_attainable(10, "cross_section", 0.001, 0.01)
    assert rule == pytest.approx(0.001 - (1e-6 + 5e-5 + 1e-5) / 2, rel=1e-4)
    assert equal_weight == pytest.approx(-(5e-5 + 5e-6) / 2, rel=1e-3)


def test_a_known_regime_bounds_the_sharpe_ratio_and_an_unknown_one_leaves_buy_and_hold() -> None:
    variances = [1e-4 * ((1 + sign * 0.7) ** 2 + 0.25 / 10) for sign in (-1, 1)]
    share = sum(DRIFT**2 / (variance + DRIFT**2) for variance in variances) / 2
    known = math.sqrt(252 * share / (1 - share))
    ratios = [planted_attainable(10, "volatility", 0.7, flip=flip).rule for flip in (0.0005, 0.01, 0.1, 0.3, 0.499)]
    assert ratios == sorted(ratios, reverse=True) and 0.97 * known < ratios[0] < known
    held = planted_attainable(10, "volatility", 0.7).equal_weight
    assert held == pytest.approx(math.sqrt(252) * DRIFT / math.sqrt(sum(variances) / 2), rel=1e-12)
    assert ratios[-1] == pytest.approx(held, rel=2e-3) and ratios[-1] > held


@pytest.mark.nightly
def test_a_finer_quadrature_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> tuple[list[float], list[float]]:
        laws = itertools.product((1, 30), (0.3, 0.7, 0.95), (0.001, 0.02, 0.3))
        return (
            [value for kind in LOG for value in planted_attainable(4, kind)],
            [planted_attainable(number, "volatility", strength, flip=flip).rule for number, strength, flip in laws],
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
    weights, attainable = weights_of(bars, kind, strength=0.0), planted_attainable(3, kind, 0.0)
    if kind == "volatility":
        assert torch.equal(weights, torch.full_like(weights, 1 / 3))
        assert attainable.rule == pytest.approx(attainable.equal_weight, rel=1e-6)
    else:
        assert not weights.any() and attainable.rule == 0.0 and attainable.equal_weight < 0


def test_bad_parameters_are_refused_by_rule_and_attainable() -> None:
    one, two = torch.ones(1, 3, 1, 5), torch.ones(1, 3, 2, 5)
    for arguments, message in (
        ({"kind": "carry"}, "unknown kind 'carry'"),
        ({"kind": "momentum", "flip": 0.1}, "flip is for the kinds"),
        ({"kind": "volatility", "strength": 1.0}, "strength must be below 1"),
        ({"kind": "reversal", "strength": 1e-5}, "no rule is known for strength 1e-05 beside volatility 0.01"),
        ({"kind": "reversal", "strength": 0.6}, "no rule is known for strength 0.6"),
        *(({"kind": kind, "strength": 0.00016, "volatility": 0.02}, "strength 0.00016 beside") for kind in LOG[1:]),
    ):
        with pytest.raises(ValueError, match=message):
            planted_attainable(2, **arguments)
        with pytest.raises(ValueError, match=message):
            planted_target_weights(two, **arguments)
    for number, message in ((1, "at least 2, got 1"), (0, "num_symbols must be at least 1, got 0")):
        with pytest.raises(ValueError, match=message):
            planted_attainable(number, "cross_section")
    for ohlcv, signal, kind, message in (
        (one, None, "cross_section", "at least 2, got 1"),
        (two, None, "signal", "signal is needed for the kind signal"),
        (two, torch.ones(1, 3, 2), "reversal", "no other, the kind is reversal"),
        (two, torch.ones(1, 3, 1), "signal", r"signal must be \(1, 3, 2\) as ohlcv is, got \(1, 3, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            planted_target_weights(ohlcv, signal, kind=kind)
