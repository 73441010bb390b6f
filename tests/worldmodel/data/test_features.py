"""Features of a day: the numbers themselves, and that no day sees a later one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from vecenv.market.bars import CLOSE, Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import Move, MoveState, encode_bars
from vecenv.worldmodel.data.features import FEATURES, initial_state, observe_day, observe_history

NAN = float("nan")


@pytest.fixture(scope="module")
def history() -> Bars:
    """Four symbols: one whole, one with holes, one listed late, one whose last bar is early."""
    bars = synthetic_bars(1, 60, 4, seed=5)
    ohlcv = bars.ohlcv.clone()
    ohlcv[0, 10, 1] = ohlcv[0, 30:33, 1] = ohlcv[0, :20, 2] = ohlcv[0, 50:, 3] = NAN
    return replace(bars, ohlcv=ohlcv)


class ReferenceMarket:
    """What scales the next day, kept as plain numbers.

    Args:
        variances: daily variance of each symbol.
    """

    def __init__(self, variances: list[float]) -> None:
        self.variances, self.slow = list(variances), list(variances)
        self.market = variances[0] / 2

    def features(self, moves: list[list[float]], valid: list[bool]) -> list[list[float]]:
        """Observe a day; return the features of each symbol by the definitions of `FEATURES`."""
        here = [k for k, some in enumerate(valid) if some]
        volatility = [max(math.sqrt(variance), 1e-3) for variance in self.variances]
        scaled = [[0.0] * 5 for _ in valid]
        for k in here:
            scaled[k] = [*(number / volatility[k] for number in moves[k][:4]), moves[k][4]]
        returns = [day[0] + day[1] for day in scaled]
        volumes = [min(6.0, max(-6.0, day[4])) for day in scaled]

        def mean(values: list[float]) -> float:
            return sum(values[k] for k in here) / max(len(here), 1)

        for k in here:
            square = (moves[k][0] + moves[k][1]) ** 2
            self.variances[k] = 0.94 * self.variances[k] + 0.06 * square
            self.slow[k] = 0.99 * self.slow[k] + 0.01 * square
        if here:
            self.market = 0.94 * self.market + 0.06 * mean([move[0] + move[1] for move in moves]) ** 2
        logs = [math.log(max(math.sqrt(variance), 1e-3)) for variance in self.variances]
        level, market = mean(logs) if here else sum(logs) / len(logs), mean(returns)
        shared = {
            "market_return": math.asinh(market),
            "market_activity": mean([abs(number) for number in returns]) - 0.75,
            "market_spread": math.sqrt(mean([(number - market) ** 2 for number in returns])) - 0.9,
            "market_volume": mean(volumes),
            "market_volatility": math.log(math.sqrt(self.market)) - level,
            "mean_volatility": level - math.log(0.02),
        }
        rows = []
        for k, day in enumerate(scaled):
            own = {
                "return": math.asinh(returns[k]),
                "gap": math.asinh(day[0]),
                "body": math.asinh(day[1]),
                "upper": math.asinh(day[2]),
                "lower": math.asinh(day[3]),
                "volume": volumes[k],
                "volatility": logs[k] - math.log(0.02),
                "slow_volatility": math.log(math.sqrt(self.slow[k])) - logs[k],
                "relative_return": math.asinh(returns[k] - market) * valid[k],
                "valid": float(valid[k]),
            }
            rows.append([{**shared, **own}[name] for name in FEATURES])
        return rows


def test_features_by_plain_numbers():
    """Five days of three symbols: one misses two days, one's volume is far from its level, no one has a fourth day."""
    generator = torch.Generator().manual_seed(1)
    moves = 0.03 * torch.randn(5, 3, 5, generator=generator, dtype=torch.float64)
    moves[..., Move.UPPER : Move.VOLUME] = moves[..., Move.UPPER : Move.VOLUME].abs()
    moves[..., Move.VOLUME] *= 40
    moves[2, 1, Move.VOLUME] = -9.0
    valid = torch.ones(5, 3, dtype=torch.bool)
    valid[1:3, 0] = valid[3] = False
    zero = torch.zeros(3, dtype=torch.float64)
    state = initial_state(MoveState(zero, zero, zero))
    reference = ReferenceMarket([0.02**2] * 3)
    for day in range(5):
        features, state = observe_day(state, moves[day], valid[day])
        expected = reference.features(moves[day].tolist(), valid[day].tolist())
        assert torch.allclose(features, torch.tensor(expected, dtype=torch.float64), atol=1e-12)
    assert state.moves.variance.tolist() == pytest.approx(reference.variances)
    assert state.slow_variance.tolist() == pytest.approx(reference.slow)
    assert state.market_variance.item() == pytest.approx(reference.market)


@pytest.mark.parametrize("day", [25, 49, 59])
def test_no_look_ahead(history, day):
    """Other bars from the day on leave features before it, and what the day is divided by, as they are."""
    changed = history.ohlcv.clone()
    changed[:, day:, :3] *= torch.tensor([1.1, 1.3, 1.05, 1.2, 3.0], dtype=torch.float64)
    one, other = (observe_history(encode_bars(bars)) for bars in (history.ohlcv, changed))
    assert torch.equal(one.features[:, :day], other.features[:, :day])
    assert torch.equal(one.scaled[:, :day], other.scaled[:, :day])
    assert torch.equal(one.volatility[:, : day + 1], other.volatility[:, : day + 1])
    assert not torch.equal(one.features[:, day], other.features[:, day])
    assert not torch.equal(one.scaled[:, day], other.scaled[:, day])


def test_history_is_observed_day_by_day(history):
    """Stepping gives the same features and state; the first bar of a symbol sets its close and its volume level."""
    encoded = encode_bars(history.ohlcv)
    observed = observe_history(encoded)
    state = initial_state(MoveState(*(part[:, 0] for part in encoded.before)))
    for day in range(60):
        if day == 20:
            level = history.ohlcv[:, 20, 2].log()
            state.moves.log_close[:, 2], state.moves.volume_level[:, 2] = level[:, CLOSE], level[:, 4]
        assert torch.allclose(state.volatility, observed.volatility[:, day], rtol=1e-12)
        assert torch.allclose(state.scales.features(), observed.scales[:, day], atol=1e-6)
        standardised = state.scales.standardised(observed.scaled[:, day])
        assert torch.allclose(standardised, observed.standardised[:, day], rtol=1e-12)
        features, state = observe_day(state, encoded.moves[:, day], encoded.valid[:, day])
        assert torch.allclose(features.float(), observed.features[:, day], atol=1e-6)
        for stepped, after in zip(state._tensors(), observed.until(day).last._tensors(), strict=True):
            assert torch.allclose(stepped, after, rtol=1e-12)
    assert torch.equal(observed.valid, encoded.valid)
    factor = torch.cat([observed.volatility.unsqueeze(-1).expand(-1, -1, -1, 4), torch.ones(1, 60, 4, 1)], dim=-1)
    assert torch.allclose(observed.scaled * factor, encoded.moves, rtol=1e-12)
