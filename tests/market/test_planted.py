"""The planted signal is there, pays what theory says, and the random walk pays nothing."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME, Bars
from vecenv.market.planted import (
    planted_bars,
    planted_optimal_actions,
    planted_optimal_growth,
    random_walk_bars,
)
from vecenv.market.planted_draws import START_PRICE

STRENGTH, VOLATILITY, FLIP = 0.01, 0.02, 0.3


@pytest.fixture(scope="module")
def planted() -> Bars:
    return planted_bars(1024, 200, 3, seed=3, strength=STRENGTH, volatility=VOLATILITY, flip=FLIP)


@pytest.fixture(scope="module")
def walk() -> Bars:
    return random_walk_bars(4096, 250, 2, seed=4, volatility=VOLATILITY)


def next_returns(bars: Bars) -> Tensor:
    close = bars.ohlcv[..., CLOSE]
    return close[:, 1:] / close[:, :-1] - 1


def standard_error(sample: Tensor) -> Tensor:
    return sample.std() / sample.numel() ** 0.5


@pytest.mark.parametrize("name", ["planted", "walk"])
@pytest.mark.assembly
def test_bars_are_valid(name: str, request: pytest.FixtureRequest) -> None:
    bars = request.getfixturevalue(name)
    open_, high, low, close = (bars.ohlcv[..., field] for field in (OPEN, HIGH, LOW, CLOSE))
    assert bars.ohlcv.isfinite().all()
    assert (low > 0).all()
    assert (low <= torch.minimum(open_, close)).all()
    assert (high >= torch.maximum(open_, close)).all()
    assert torch.equal(open_[:, 1:], close[:, :-1])
    assert torch.allclose(open_[:, 0], torch.tensor(START_PRICE, dtype=torch.float64))
    assert (bars.ohlcv[..., VOLUME] > 0).all()
    assert len(bars.dates) == bars.ohlcv.shape[1]
    assert len(bars.symbols) == bars.ohlcv.shape[2]


def test_signal_is_a_sign_that_persists(planted: Bars) -> None:
    signal = planted.columns["signal"]
    assert signal.shape == planted.ohlcv.shape[:3]
    assert torch.equal(signal.abs(), torch.ones_like(signal))
    # An independent mean per path and symbol, since days are not independent.
    assert signal.mean(dim=1).mean().abs() < 4 * standard_error(signal.mean(dim=1))
    changes = (signal[:, 1:] != signal[:, :-1]).double()
    assert (changes.mean() - FLIP).abs() < 4 * standard_error(changes)
    assert (signal[:, 0] > 0).double().mean() == pytest.approx(0.5, abs=0.04)


def test_regression_recovers_strength_and_volatility(planted: Bars) -> None:
    signal, returns = planted.columns["signal"][:, :-1], next_returns(planted)
    slopes = signal * returns
    assert (slopes.mean() - STRENGTH).abs() < 4 * standard_error(slopes)
    residual = returns - STRENGTH * signal
    assert residual.std().item() == pytest.approx(VOLATILITY, rel=0.01)
    assert residual.mean().abs() < 4 * standard_error(residual)


def test_noise_is_independent_of_every_signal(planted: Bars) -> None:
    signal = planted.columns["signal"]
    residual = next_returns(planted) - STRENGTH * signal[:, :-1]
    product = signal[:, 1:] * residual
    assert product.mean().abs() < 4 * standard_error(product)
    product = residual[:, 1:] * residual[:, :-1]
    assert product.mean().abs() < 4 * standard_error(product)


@pytest.mark.parametrize("num_symbols", [1, 3])
def test_optimal_policy_earns_what_theory_says(planted: Bars, num_symbols: int) -> None:
    signal = planted.columns["signal"][:, :-1, :num_symbols]
    invested = (planted_optimal_actions(signal) > 0).double()
    weights = invested / invested.sum(dim=-1, keepdim=True).clamp(min=1)
    growth = (1 + (weights * next_returns(planted)[..., :num_symbols]).sum(dim=-1)).prod(dim=1)
    expected = planted_optimal_growth(signal.shape[1], num_symbols, STRENGTH, FLIP)
    assert (growth.mean() - expected).abs() < 3 * standard_error(growth)
    # The rule earns far more than holding, else the test above could not fail.
    held = planted.ohlcv[:, -1, 0, CLOSE] / planted.ohlcv[:, 0, 0, CLOSE]
    assert growth.mean() > held.mean() + 10 * standard_error(growth)


@pytest.mark.parametrize(("num_symbols", "flip"), [(1, 0.2), (2, 0.4), (2, 0.0), (3, 0.7)])
def test_growth_equals_sum_over_every_signal_history(num_symbols: int, flip: float) -> None:
    num_steps, strength, expected = 3, 0.05, 0.0
    for history in itertools.product((0, 1), repeat=num_steps * num_symbols):
        signal = torch.tensor(history).view(num_steps, num_symbols)
        changes = (signal[1:] != signal[:-1]).sum().item()
        stays = (num_steps - 1) * num_symbols - changes
        probability = 0.5**num_symbols * flip**changes * (1 - flip) ** stays
        expected += probability * (1 + strength) ** signal.any(dim=1).sum().item()
    growth = planted_optimal_growth(num_steps, num_symbols, strength, flip)
    assert growth == pytest.approx(expected, rel=1e-12)


def test_no_other_rule_on_the_signal_is_better() -> None:
    num_steps, strength, flip, cost = 6, 0.01, 0.3, 0.004
    stay = {(signal, after): 1 - flip if signal == after else flip for signal in (-1, 1) for after in (-1, 1)}
    for price in (0.0, cost):
        value = {(held, signal): 0.0 for held in (0, 1) for signal in (-1, 1)}
        for _ in range(num_steps):
            choice = {
                (held, signal, target): target * strength * signal
                - price * abs(target - held)
                + sum(stay[signal, after] * value[target, after] for after in (-1, 1))
                for held in (0, 1)
                for signal in (-1, 1)
                for target in (0, 1)
            }
            for held, signal in value:
                action = planted_optimal_actions(torch.tensor(float(signal))).item()
                optimal = choice[held, signal, int(action > 0)]
                assert optimal >= choice[held, signal, int(action < 0)]
            value = {(h, s): max(choice[h, s, 0], choice[h, s, 1]) for h, s in value}


def test_worthless_signal_at_strength_zero() -> None:
    bars = planted_bars(512, 100, 1, seed=1, strength=0.0)
    product = bars.columns["signal"][:, :-1] * next_returns(bars)
    assert product.mean().abs() < 4 * standard_error(product)
    assert planted_optimal_growth(50, 2, 0.0, 0.2) == pytest.approx(1)


def test_random_walk_is_a_martingale(walk: Bars) -> None:
    close = walk.ohlcv[..., CLOSE]
    for day in (1, 50, 249):
        total = close[:, day] / START_PRICE - 1
        assert total.mean().abs() < 3 * standard_error(total)
    daily = next_returns(walk)
    assert daily.mean().abs() < 3 * standard_error(daily)
    assert close.log().diff(dim=1).std().item() == pytest.approx(VOLATILITY, rel=0.01)


def test_random_walk_pays_no_simple_rule(walk: Bars) -> None:
    daily = next_returns(walk)
    for position in (daily[:, :-1].sign(), (walk.ohlcv[:, 1:-1, :, CLOSE] < START_PRICE).double()):
        profit = position * daily[:, 1:]
        assert profit.mean().abs() < 3 * standard_error(profit)


def test_path_depends_on_seed_and_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for generate in (planted_bars, random_walk_bars):
        many, few = generate(9, 120, 5, seed=7), generate(4, 100, 3, seed=7)
        assert torch.equal(few.ohlcv, many.ohlcv[:4, :100, :3])
        for name, column in few.columns.items():
            assert torch.equal(column, many.columns[name][:4, :100, :3])
        assert not torch.equal(few.ohlcv, generate(4, 100, 3, seed=8).ohlcv)
    monkeypatch.setattr("vecenv.market.synthetic._BARS_PER_BLOCK", 600)
    assert torch.equal(few.ohlcv, random_walk_bars(4, 100, 3, seed=7).ohlcv)


def test_a_signal_is_drawn_as_before_there_were_other_kinds() -> None:
    bars = planted_bars(3, 200, 2, seed=11)
    assert torch.equal(bars.ohlcv, planted_bars(3, 200, 2, 11, "cpu", 0.01, 0.01, 0.2, "signal").ohlcv)
    recorded = [
        [33.65326803152831, 74.37714308223958],
        [39.94974548272184, 27.920622097669877],
        [88.6915352252141, 66.56891142605387],
    ]
    assert bars.ohlcv[:, -1, :, CLOSE].tolist() == [pytest.approx(row, rel=1e-12) for row in recorded]
    assert bars.columns["signal"].sum(dim=1).tolist() == [[-42.0, 20.0], [-22.0, -40.0], [40.0, 4.0]]


def test_future_signals_change_no_price_before() -> None:
    short, long = planted_bars(2, 50, 2, seed=9), planted_bars(2, 200, 2, seed=9)
    assert torch.equal(short.ohlcv, long.ohlcv[:, :50])
    assert torch.equal(short.columns["signal"], long.columns["signal"][:, :50])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_paths": 0}, "num_paths"),
        ({"num_days": 0}, "num_days"),
        ({"symbols": 0}, "symbol"),
        ({"strength": -0.1}, "strength"),
        ({"volatility": -0.1}, "volatility"),
        ({"volatility": float("nan")}, "volatility"),
        ({"volatility": 0.2}, "below 1"),
        ({"flip": 1.1}, "flip"),
        ({"kind": "carry"}, "unknown kind 'carry' of planted market, expected one of signal, momentum"),
        ({"kind": "momentum", "flip": 0.2}, "flip is for the kinds signal and volatility, not for momentum"),
        ({"kind": "momentum", "volatility": 0.0}, "volatility must be above 0 for the kind momentum"),
        ({"kind": "reversal", "strength": -0.1}, "strength"),
        ({"kind": "reversal", "strength": float("nan")}, "strength"),
        ({"kind": "cross_section"}, "cross_section ranks symbols: it needs at least 2, got 1"),
        ({"kind": "cross_section", "volatility": 0.11, "symbols": 2}, "below 1"),
        ({"kind": "volatility", "strength": 1.0}, "strength must be below 1 for the kind volatility"),
        ({"kind": "volatility", "volatility": 0.07}, "below 1"),
        ({"kind": "volatility", "flip": 0.0}, "flip must be above 0 and below 0.5"),
        ({"kind": "volatility", "flip": 0.5}, "flip must be above 0 and below 0.5"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_bad_planted_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planted_bars(**{"num_paths": 1, "num_days": 10, **arguments})


def test_bad_random_walk_volatility() -> None:
    with pytest.raises(ValueError, match="volatility"):
        random_walk_bars(1, 10, volatility=-0.1)
