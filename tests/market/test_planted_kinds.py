"""Each kind of planted market has the law that its page states, shows no later day, and hides what it should hide."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, Bars
from vecenv.market.indicators import compute_indicators
from vecenv.market.planted import planted_bars
from vecenv.market.planted_law import DRIFT, Kind, planted_directions, planted_law
from vecenv.market.planted_optimum import planted_target_weights

VOLATILITY = 0.01
HIDDEN: tuple[Kind, ...] = ("momentum", "reversal", "cross_section", "volatility")
FOLLOWING = HIDDEN[:3]
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


def directions_by_hand(kind: Kind, past: list[list[float]]) -> list[int]:
    """Signs of the next means by the rules of the page, from all days of returns so far, oldest first."""
    if kind == "cross_section":
        ranked = sorted(range(len(past[-1])), key=lambda symbol: past[-1][symbol])
        half = len(ranked) // 2
        bottom, top = ranked[:half], ranked[len(ranked) - half :]
        return [(symbol in top) - (symbol in bottom) for symbol in range(len(ranked))]
    window = past[-10:] if kind == "momentum" else past[-1:]
    gains = [math.fsum(column) for column in zip(*window, strict=True)]
    return [(1 if kind == "momentum" else -1) * ((gain > 0) - (gain < 0)) for gain in gains]


@pytest.mark.parametrize("kind", FOLLOWING)
@pytest.mark.parametrize(("num_symbols", "strength"), [(2, 0.0015), (5, 0.02), (6, 0.004)])
def test_means_follow_the_written_rule(kind: Kind, num_symbols: int, strength: float) -> None:
    """Without strength the same draws give the noise alone: the difference is the planted mean, exactly."""
    bars, noise = (planted_bars(2, 40, num_symbols, seed=4, kind=kind, strength=s) for s in (strength, 0.0))
    means = changes(bars) - changes(noise)
    assert means[:, 0].abs().max() < 1e-12
    by_day = changes(bars)
    for path in range(2):
        for day in range(39):
            expected = directions_by_hand(kind, by_day[path, : day + 1].tolist())
            assert means[path, day + 1].tolist() == pytest.approx([strength * d for d in expected], abs=1e-12)
            shown = planted_directions(planted_law(kind, strength), by_day[path : path + 1, : day + 1])
            assert shown[0, -1].tolist() == expected


@pytest.mark.parametrize("kind", FOLLOWING)
def test_noise_has_its_volatility_and_half_of_its_variance_is_the_markets_where_symbols_are_ranked(kind: Kind) -> None:
    noise = changes(planted_bars(512, 100, 3, seed=5, kind=kind, strength=0.0, volatility=VOLATILITY)) / VOLATILITY
    assert_mean(noise, 0.0)
    assert_mean(noise.square(), 1.0)
    assert_mean(noise[..., 0] * noise[..., 1], 0.5 if kind == "cross_section" else 0.0)
    assert_mean(noise[:, 1:] * noise[:, :-1], 0.0)


@pytest.mark.parametrize(("kind", "window"), [("momentum", 10), ("reversal", 1)])
def test_next_return_has_the_sign_of_the_window_and_the_size_of_the_strength(kind: Kind, window: int) -> None:
    strength = 0.002
    bars = planted_bars(1024, 120, 2, seed=6, kind=kind, strength=strength)
    gain = changes(bars).unfold(1, window, 1).sum(-1)[:, :-1]
    after = changes(bars)[:, window:]
    sign = 1 if kind == "momentum" else -1
    assert_mean(sign * gain.sign() * after, strength)
    assert_mean(gain.sign(), 0.0)
    assert_mean(gain[..., 0].sign() * gain[..., 1].sign(), 0.0)


def test_returns_that_reverse_have_the_autocovariance_of_the_formula() -> None:
    """E[R(t) R(t + 1)] = -strength E|R|, and the sign changes with probability Phi(strength / volatility)."""
    strength = 0.004
    daily = changes(planted_bars(1024, 120, 2, seed=7, kind="reversal", strength=strength))[:, 1:]
    ratio = strength / VOLATILITY
    below = 0.5 * math.erfc(ratio / math.sqrt(2))
    size = VOLATILITY * math.sqrt(2 / math.pi) * math.exp(-(ratio**2) / 2) + strength * (1 - 2 * below)
    assert_mean(daily.abs(), size)
    assert_mean(daily[:, 1:] * daily[:, :-1], -strength * size)
    assert_mean((daily[:, 1:].sign() != daily[:, :-1].sign()).double(), 1 - below)


@pytest.mark.parametrize("num_symbols", [2, 5, 10])
def test_ranks_pay_and_the_market_earns_what_cash_earns(num_symbols: int) -> None:
    strength, half = 0.002, num_symbols // 2
    daily = changes(planted_bars(1024, 100, num_symbols, seed=8, kind="cross_section", strength=strength))
    relative = daily - daily.mean(dim=-1, keepdim=True)
    order = relative[:, :-1].argsort(dim=-1)
    after = daily[:, 1:].gather(-1, order)
    assert_mean(after[..., -half:], strength)
    assert_mean(after[..., :half], -strength)
    if num_symbols % 2:
        assert_mean(after[..., half], 0.0)
    market = daily.mean(dim=-1)
    assert_mean(market, 0.0)
    # Neither the market's past nor its width times it.
    assert_mean(market[:, :-1].sign() * market[:, 1:], 0.0)
    assert_mean((relative[:, :-1].std(dim=-1) - relative.std(dim=-1).mean()) * market[:, 1:], 0.0)


@pytest.mark.parametrize(("strength", "flip"), [(0.7, 0.02), (0.4, 0.2)])
def test_volatility_has_two_regimes_of_one_mean(strength: float, flip: float) -> None:
    bars = planted_bars(4096, 80, 2, seed=9, kind="volatility", strength=strength, flip=flip)
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
    calm = both[:, :-5].abs() < 0.3
    for chosen in (calm, ~calm):
        assert_mean(centred[:, 5:] * chosen.unsqueeze(-1), 0.0)


@pytest.mark.parametrize("flip", [0.02, 0.2])
def test_the_range_of_a_day_does_not_reveal_its_regime(flip: float) -> None:
    """Given open and close, exp(-2 (m - x)(m - y) / v) of an extreme m of a bridge is uniform, with one v for all."""
    bars = planted_bars(512, 200, 2, seed=10, kind="volatility", flip=flip)
    open_, high, low, close = (bars.ohlcv[..., field].log() for field in (OPEN, HIGH, LOW, CLOSE))
    regime = changes(bars).mean(dim=-1, keepdim=True).abs() / VOLATILITY
    for extreme in (high, low):
        uniform = torch.exp(-2 * (extreme - open_) * (extreme - close) / VOLATILITY**2)
        assert_mean(uniform, 0.5)
        assert_mean(uniform.square(), 1 / 3)
        for days in (0, 1):
            assert_mean((uniform[:, : 200 - days] - 0.5) * regime[:, days:], 0.0)


@pytest.mark.parametrize("kind", HIDDEN)
def test_bars_are_valid_and_show_prices_alone(kind: Kind) -> None:
    bars = planted_bars(8, 300, 5, seed=11, kind=kind)
    open_, high, low, close = (bars.ohlcv[..., field] for field in (OPEN, HIGH, LOW, CLOSE))
    assert bars.ohlcv.isfinite().all() and (low > 0).all()
    assert (low <= torch.minimum(open_, close)).all() and (high >= torch.maximum(open_, close)).all()
    assert torch.equal(open_[:, 1:], close[:, :-1])
    assert not bars.columns and not bars.context and bars.source == f"planted {kind}, seed 11"


@pytest.mark.parametrize("kind", HIDDEN)
def test_a_path_depends_on_seed_and_number_alone(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    many, few = planted_bars(9, 120, 5, seed=7, kind=kind), planted_bars(4, 120, 5, seed=7, kind=kind)
    assert torch.equal(few.ohlcv, many.ohlcv[:4])
    assert not torch.equal(few.ohlcv, planted_bars(4, 120, 5, seed=8, kind=kind).ohlcv)
    assert not torch.equal(many.ohlcv[0], many.ohlcv[1])
    if kind != "cross_section":
        assert torch.equal(few.ohlcv[:, :, :3], planted_bars(4, 120, 3, seed=7, kind=kind).ohlcv)
    monkeypatch.setattr("vecenv.market.synthetic._BARS_PER_BLOCK", 1200)
    assert torch.equal(few.ohlcv, planted_bars(4, 120, 5, seed=7, kind=kind).ohlcv)


@pytest.mark.parametrize("kind", HIDDEN)
def test_days_do_not_depend_on_later_ones(kind: Kind) -> None:
    short, long = (planted_bars(3, days, 4, seed=9, kind=kind) for days in (50, 200))
    assert torch.equal(short.ohlcv, long.ohlcv[:, :50])


@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("day", [0, 4, 30])
def test_weights_do_not_depend_on_later_days(kind: Kind, day: int) -> None:
    ohlcv = planted_bars(3, 60, 4, seed=12, kind=kind).ohlcv
    weights = planted_target_weights(ohlcv, kind=kind)
    assert torch.equal(planted_target_weights(ohlcv[:, : day + 1], kind=kind), weights[:, : day + 1])
    other = torch.cat([ohlcv[:, : day + 1], ohlcv[:, day + 1 :].flip(1)], dim=1)
    assert torch.equal(planted_target_weights(other, kind=kind)[:, : day + 1], weights[:, : day + 1])


def shown(bars: Bars, name: str) -> Tensor:
    listed = torch.zeros(bars.ohlcv.shape[0], bars.ohlcv.shape[2], dtype=torch.int64)
    return compute_indicators(bars.ohlcv, listed, [name])[:, 60:, :, 0]


def test_indicators_show_what_is_hidden() -> None:
    """Signs agree almost always; where they do not, a return of ten days compounds what their sum does not."""
    for kind, name in (("momentum", "momentum_10"), ("reversal", "daily_change"), ("cross_section", "daily_change")):
        bars = planted_bars(32, 250, 6, seed=13, kind=kind)
        seen = shown(bars, name)
        if kind == "cross_section":
            seen = seen - seen.median(dim=-1, keepdim=True).values - 1e-15
        held = planted_target_weights(bars.ohlcv, kind=kind)[:, 60:] > 0
        agrees = (held == ((seen < 0) if kind == "reversal" else (seen > 0))).double().mean()
        assert agrees > (0.98 if kind == "momentum" else 0.9999)
    bars = planted_bars(32, 250, 6, seed=13, kind="volatility")
    exposure = planted_target_weights(bars.ohlcv, kind="volatility")[:, 60:].sum(dim=-1)
    both = torch.stack([exposure.flatten(), shown(bars, "volatility_20").mean(dim=-1).flatten()])
    assert torch.corrcoef(both)[0, 1] < -0.7
