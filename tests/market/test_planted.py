"""Each kind of planted market has the law that its page states, shows no later day, and hides what it should hide."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME, Bars
from vecenv.market.planted import planted_bars, planted_optimal_actions, planted_optimal_growth, random_walk_bars
from vecenv.market.planted_draws import START_PRICE
from vecenv.market.planted_law import DRIFT, Kind, planted_directions, planted_law

VOLATILITY = 0.01
KINDS: tuple[Kind, ...] = ("signal", "momentum", "reversal", "cross_section", "volatility")
FOLLOWING = KINDS[1:4]
"""Kinds whose means follow past returns."""


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


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize(("num_symbols", "strength"), [(2, 0.0015), (5, 0.02), (6, 0.004)])
def test_means_follow_the_written_rule(kind: Kind, num_symbols: int, strength: float) -> None:
    """Without strength the same draws give the noise alone: the difference is the planted mean, exactly."""
    bars, noise = (planted_bars(2, 40, num_symbols, seed=4, kind=kind, strength=s) for s in (strength, 0.0))
    means, by_day = changes(bars) - changes(noise), changes(bars)
    assert means[:, 0].abs().max() < 1e-12
    for path, day in itertools.product(range(2), range(39)):
        signal = bars.columns["signal"][path, day].tolist() if kind == "signal" else None
        expected = directions_by_hand(kind, by_day[path, : day + 1].tolist(), signal)
        assert means[path, day + 1].tolist() == pytest.approx([strength * d for d in expected], abs=1e-12)
        if kind in FOLLOWING:
            shown = planted_directions(planted_law(kind, strength), by_day[path : path + 1, : day + 1])
            assert shown[0, -1].tolist() == expected


@pytest.mark.parametrize("kind", KINDS[:4])
def test_noise_has_its_volatility_and_half_of_its_variance_is_the_markets_where_symbols_are_ranked(kind: Kind) -> None:
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
    assert_mean(signal, 0.0)
    assert_mean(signal[:, :1], 0.0)
    assert_mean((signal[:, 1:] != signal[:, :-1]).double(), 0.3)
    bars = planted_bars(3, 200, 2, seed=11)
    assert torch.equal(bars.ohlcv, planted_bars(3, 200, 2, 11, "cpu", 0.01, 0.01, 0.2, "signal").ohlcv)
    recorded = [
        [33.65326803152831, 74.37714308223958],
        [39.94974548272184, 27.920622097669877],
        [88.6915352252141, 66.56891142605387],
    ]
    assert bars.ohlcv[:, -1, :, CLOSE].tolist() == [pytest.approx(row, rel=1e-12) for row in recorded]
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
def test_growth_equals_sum_over_every_signal_history(num_symbols: int, flip: float) -> None:
    num_steps, strength, expected = 3, 0.05, 0.0
    for history in itertools.product((0, 1), repeat=num_steps * num_symbols):
        signal = torch.tensor(history).view(num_steps, num_symbols)
        changed = (signal[1:] != signal[:-1]).sum().item()
        stays = (num_steps - 1) * num_symbols - changed
        probability = 0.5**num_symbols * flip**changed * (1 - flip) ** stays
        expected += probability * (1 + strength) ** signal.any(dim=1).sum().item()
    assert planted_optimal_growth(num_steps, num_symbols, strength, flip) == pytest.approx(expected, rel=1e-12)
    assert planted_optimal_growth(50, num_symbols, 0.0, flip) == pytest.approx(1)


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
                assert choice[held, signal, int(action > 0)] >= choice[held, signal, int(action < 0)]
            value = {(h, s): max(choice[h, s, 0], choice[h, s, 1]) for h, s in value}


def test_random_walk_is_a_martingale_and_pays_no_simple_rule() -> None:
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


def test_bad_planted_arguments():
    for arguments, message in (
        ({"num_paths": 0}, "num_paths"),
        ({"strength": -0.1}, "strength"),
        ({"volatility": 0.2}, "below 1"),
        ({"flip": 1.1}, "flip"),
        ({"kind": "carry"}, "unknown kind 'carry' of planted market, expected one of signal, momentum"),
        ({"kind": "momentum", "flip": 0.2}, "flip is for the kinds signal and volatility, not for momentum"),
        ({"kind": "momentum", "volatility": 0.0}, "volatility must be above 0 for the kind momentum"),
        ({"kind": "reversal", "strength": float("nan")}, "strength"),
        ({"kind": "cross_section"}, "cross_section ranks symbols: it needs at least 2, got 1"),
        ({"kind": "volatility", "strength": 1.0}, "strength must be below 1 for the kind volatility"),
        ({"kind": "volatility", "volatility": 0.07}, "below 1"),
        ({"kind": "volatility", "flip": 0.0}, "flip must be above 0 and below 0.5"),
        ({"kind": "volatility", "flip": 0.5}, "flip must be above 0 and below 0.5"),
        ({"seed": 2**64}, "seed"),
    ):
        with pytest.raises(ValueError, match=message):
            planted_bars(**{"num_paths": 1, "num_days": 10, **arguments})
