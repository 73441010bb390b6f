"""Bars to moves and back, scales and features of days by plain numbers, and correlations of the days before."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.worldmodel.neural_market import assert_valid_bars
from vecenv.market.bars import CLOSE, OPEN, VOLUME
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import Move, MoveState, bounded_moves, decode_bars, encode_bars
from vecenv.worldmodel.data.correlation import DECAY, CorrelationState, positive_definite
from vecenv.worldmodel.data.features import FEATURES, BarScales, initial_state, observe_day, observe_history

NAN = float("nan")


def state_of(num_paths: int, num_symbols: int) -> MoveState:
    close = torch.full((num_paths, num_symbols), math.log(100.0), dtype=torch.float64)
    return MoveState(close, close * 2, torch.full_like(close, 0.02**2))


def test_bars_rounded_gaps_and_wild_moves_by_hand():
    bars = torch.tensor([[100, 100, 100, 100, 1000.0], [110, 120, 90, 99, 2000.0]], dtype=torch.float64)
    encoded = encode_bars(bars[None, :, None])
    expected = [math.log(1.1), math.log(99 / 110), math.log(120 / 110), math.log(99 / 90), math.log(2)]
    assert encoded.moves[0, 1, 0].tolist() == pytest.approx(expected, rel=1e-12)
    assert encoded.valid[0, :, 0].tolist() == [False, True]
    assert float(encoded.last.variance) == pytest.approx(0.94 * 0.02**2 + 0.06 * math.log(0.99) ** 2)
    assert float(encoded.last.volume_level) == pytest.approx(math.log(1000) + 2 / 21 * math.log(2))
    # A millionth above the last close is none and leaves the return; ten millionths are a gap.
    ohlcv = torch.tensor([[[100.0, 101.0, 99.0, 100.0, 1e6]], [[100.0001, 103.0, 100.0, 102.0, 1e6]]])[None].double()
    for opened, gap in ((100.0001, 0.0), (100.001, 1e-5)):
        ohlcv[0, 1, 0, OPEN] = opened
        found = encode_bars(ohlcv).moves[0, 1, 0].tolist()
        assert found[0] == pytest.approx(gap, rel=1e-4) and found[0] + found[1] == pytest.approx(math.log(1.02))
    # Of many symbols: sums in another order differ in the last bit for some.
    days = torch.zeros(1, 2, 200, 5, dtype=torch.float64)
    days[0, 0, :, :2] = 0.03 * torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bars = decode_bars(state_of(1, 200), days)
    assert torch.equal(bars[0, 1, :, OPEN], bars[0, 0, :, CLOSE])
    moves = torch.randn(20, 400, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
    assert_valid_bars(decode_bars(state_of(20, 3), moves))
    falling = torch.zeros(1, 200, 1, 5, dtype=torch.float64)
    falling[..., 1] = -100.0
    assert float(decode_bars(state_of(1, 1), falling)[..., :VOLUME].min()) == pytest.approx(0.01)
    assert float(decode_bars(state_of(1, 1), -falling)[..., :VOLUME].max()) == pytest.approx(1e6)
    # A wild gap does not change the return.
    move = torch.tensor([[[5.0, -4.98, -0.1, 2.0, -99.0]]], dtype=torch.float64)
    expected = [0.7, 0.02 - 0.7, 0.0, 0.7, -2 * math.log(100)]
    assert bounded_moves(state_of(1, 1), move)[0, 0].tolist() == pytest.approx(expected)


def test_moves_make_the_bars_that_they_came_from():
    bars = synthetic_bars(2, 60, 5, seed=3).ohlcv
    encoded, changed = encode_bars(bars), bars.clone()
    state = MoveState(*(part[:, 1] for part in encoded.before))
    assert torch.allclose(decode_bars(state, encoded.moves[:, 1:]), bars[:, 1:], rtol=1e-9)
    changed[:, 40:] *= 1.5
    for one, other in zip(encoded.before, encode_bars(changed).before, strict=True):
        assert torch.equal(one[:, :41], other[:, :41]) and not torch.equal(one[:, 41:], other[:, 41:])
    ohlcv = synthetic_bars(1, 30, 2, seed=2).ohlcv
    holed = ohlcv.clone()
    holed[0, 10, 0] = holed[0, :5, 1] = NAN
    encoded, without = encode_bars(holed), encode_bars(torch.cat([ohlcv[:, :10, :1], ohlcv[:, 11:, :1]], dim=1))
    assert encoded.valid[0, :, 0].tolist() == [day not in (0, 10) for day in range(30)]
    assert encoded.valid[0, :, 1].tolist() == [day > 5 for day in range(30)]
    assert torch.isclose(encoded.moves[0, 11, 0, 0], torch.log(ohlcv[0, 11, 0, OPEN] / ohlcv[0, 9, 0, CLOSE]))
    assert torch.equal(encoded.last.variance[:, :1], without.last.variance)


def limited(number, bound=4.0):
    return max(-bound, min(bound, number))


def test_scales_by_plain_numbers():
    gap, wicks, volume, still = 0.25, -0.4, 0.16, 0.05
    scales = BarScales.typical(torch.zeros(1, dtype=torch.float64))
    for day in ([0.5, 0.2, 0.1, 0.3, 0.4], [0.0, -0.3, 0.0, 0.0, -9.0], [-7.0, 1.0, 20.0, 3.0, 0.1]):
        scaled = torch.tensor([day], dtype=torch.float64)
        log_wicks = math.log(min(day[2] + day[3], 8.0) + 0.05)
        expected = [limited(day[0]) / math.sqrt(gap), (log_wicks - wicks) / 0.6, day[4] / math.sqrt(volume)]
        assert scales.standardised(scaled)[0].tolist() == pytest.approx(expected)
        scales = scales.after(BarScales.of_day(scaled), torch.tensor([True]))
        gap = 0.99 * gap + 0.01 * limited(day[0]) ** 2
        wicks = 0.99 * wicks + 0.01 * log_wicks
        volume = 0.99 * volume + 0.01 * limited(day[4]) ** 2
        still = 0.99 * still + 0.01 * (day[0] == 0)
        assert [float(part) for part in scales] == pytest.approx([gap, wicks, volume, still])
    shown = [0.5 * math.log(gap / 0.25), wicks + 0.4, 0.5 * math.log(volume / 0.16), 5 * (still - 0.05)]
    assert scales.features()[0].tolist() == pytest.approx(shown, rel=1e-6)
    # Beyond what training days had, heads would extrapolate.
    highest = BarScales(*(torch.full((1,), number) for number in (9.0, -0.4, 9.0, 0.05))).features()[0]
    assert highest.tolist() == pytest.approx([0.8, 0.0, 1.2, 0.0])
    start = scales = BarScales.typical(torch.zeros(2, dtype=torch.float64))
    for _ in range(2000):
        scales = scales.after(BarScales.of_day(torch.zeros(2, 5, dtype=torch.float64)), torch.tensor([True, False]))
    assert [float(part[1]) for part in scales] == [float(part[1]) for part in start]
    assert [float(part[0]) for part in scales] == pytest.approx([1e-4, math.log(0.05), 1e-4, 1.0], rel=1e-6)


def plain_features(moves, valid):
    """Features of each day and symbol by the definitions of `FEATURES`, and what scales the day after the last."""
    variances, slow, market, days = np.full(3, 0.02**2), np.full(3, 0.02**2), 0.02**2 / 2, []
    for day, here in zip(moves, valid, strict=True):

        def mean(values, here=here):
            return values[here].mean() if here.any() else 0.0

        units = np.stack([*[np.maximum(np.sqrt(variances), 1e-3)] * 4, np.ones(3)], axis=1)
        gap, body, upper, lower, volume = (day / units * here[:, None]).T
        returns, volume, squares = gap + body, np.clip(volume, -6.0, 6.0), (day[:, 0] + day[:, 1]) ** 2
        variances = np.where(here, 0.94 * variances + 0.06 * squares, variances)
        slow = np.where(here, 0.99 * slow + 0.01 * squares, slow)
        market = 0.94 * market + 0.06 * mean(day[:, 0] + day[:, 1]) ** 2 if here.any() else market
        logs = np.log(np.maximum(np.sqrt(variances), 1e-3))
        level = logs[here].mean() if here.any() else logs.mean()
        known = {
            "market_return": np.arcsinh(mean(returns)),
            "market_activity": mean(np.abs(returns)) - 0.75,
            "market_spread": np.sqrt(mean((returns - mean(returns)) ** 2)) - 0.9,
            "market_volume": mean(volume),
            "market_volatility": np.log(np.sqrt(market)) - level,
            "mean_volatility": level - np.log(0.02),
            "return": np.arcsinh(returns),
            "gap": np.arcsinh(gap),
            "body": np.arcsinh(body),
            "upper": np.arcsinh(upper),
            "lower": np.arcsinh(lower),
            "volume": volume,
            "volatility": logs - np.log(0.02),
            "slow_volatility": np.log(np.sqrt(slow)) - logs,
            "relative_return": np.arcsinh(returns - mean(returns)) * here,
            "valid": here,
        }
        days.append(np.stack([np.broadcast_to(known[name], 3) for name in FEATURES], axis=1))
    return np.stack(days), variances, slow, market


def test_features_by_plain_numbers_and_of_a_history_day_by_day():
    moves = 0.03 * torch.randn(5, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moves[..., Move.UPPER : Move.VOLUME] = moves[..., Move.UPPER : Move.VOLUME].abs()
    moves[..., Move.VOLUME] *= 40
    moves[2, 1, Move.VOLUME] = -9.0
    valid = torch.ones(5, 3, dtype=torch.bool)
    valid[1:3, 0] = valid[3] = False
    state = initial_state(MoveState(*torch.zeros(3, 3, dtype=torch.float64)))
    expected, *after = plain_features(moves.numpy(), valid.numpy())
    for day in range(5):
        features, state = observe_day(state, moves[day], valid[day])
        assert np.allclose(features, expected[day], rtol=0, atol=1e-12)
    for found, number in zip((state.moves.variance, state.slow_variance, state.market_variance), after, strict=True):
        assert np.allclose(found, number)
    history = synthetic_bars(1, 60, 4, seed=5)
    ohlcv = history.ohlcv
    ohlcv[0, 10, 1] = ohlcv[0, 30:33, 1] = ohlcv[0, :20, 2] = ohlcv[0, 50:, 3] = NAN
    encoded = encode_bars(ohlcv)
    observed = observe_history(encoded)
    state = initial_state(MoveState(*(part[:, 0] for part in encoded.before)))
    for day in range(60):
        if day == 20:
            level = ohlcv[:, 20, 2].log()
            state.moves.log_close[:, 2], state.moves.volume_level[:, 2] = level[:, CLOSE], level[:, 4]
        assert torch.allclose(state.volatility, observed.volatility[:, day], rtol=1e-12)
        assert torch.allclose(state.scales.features(), observed.scales[:, day], atol=1e-6)
        standardised = state.scales.standardised(observed.scaled[:, day])
        assert torch.allclose(standardised, observed.quantities[:, day, :, 1:], rtol=1e-12)
        features, state = observe_day(state, encoded.moves[:, day], encoded.valid[:, day])
        assert torch.allclose(features.float(), observed.features[:, day], atol=1e-6)
        torch.testing.assert_close(state, observed.until(day).last, rtol=1e-12, atol=1e-8)
    assert torch.equal(observed.valid, encoded.valid)
    factor = torch.cat([observed.volatility.unsqueeze(-1).expand(-1, -1, -1, 4), torch.ones(1, 60, 4, 1)], dim=-1)
    assert torch.allclose(observed.scaled * factor, encoded.moves, rtol=1e-12)


def normal_returns(days: int, correlation: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(days, len(correlation), generator=generator, dtype=torch.float64)
    return white @ torch.linalg.cholesky(correlation).T


def constant(size: int, level: float) -> Tensor:
    return torch.full((size, size), level, dtype=torch.float64).fill_diagonal_(1.0)


def state_after(returns: Tensor, valid: Tensor | None = None) -> CorrelationState:
    valid = torch.ones_like(returns, dtype=torch.bool) if valid is None else valid
    return CorrelationState.empty(returns.shape[1]).after(returns, valid)


@pytest.mark.parametrize("decay", [DECAY, 0.9, 1.0])
@pytest.mark.parametrize("together", [1, 7, 40])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_sums_are_those_of_a_plain_loop(missing, together, decay):
    returns = 2.0 * normal_returns(40, constant(3, 0.4))
    assert bool((returns.abs() > 4.0).any()) and DECAY == 0.995
    valid = torch.rand(40, 3, generator=torch.Generator().manual_seed(1)) >= missing
    state = CorrelationState.empty(3)
    for days, here in zip(returns.split(together), valid.split(together), strict=True):
        state = state.after(days, here, decay)
    for i in range(3):
        for j in range(3):
            product = first = second = days = 0.0
            for day in range(40):
                if valid[day, i] and valid[day, j]:
                    weight = decay ** (39 - day)
                    x, y = (limited(float(returns[day, k])) for k in (i, j))
                    product += weight * x * y
                    first += weight * x * x
                    second += weight * y * y
                    days += weight
            assert math.isclose(float(state.days[i, j]), days)
            assert math.isclose(float(state.raw()[i, j]), product / math.sqrt(first * second))


@pytest.mark.parametrize(
    ("shrinkage", "symbols", "trust"), [(0.3, 25, 0.7), (0.3, 100, 0.4), (0.2, 4, 0.92), (0.6, 81, 0)]
)
def test_shrinkage_by_plain_numbers(shrinkage, symbols, trust):
    """Without holes: t e raw + (1 - t e) constant with e = n / (n + 60), t = 1 - s sqrt(K / 25) from 0 on."""
    state = state_after(normal_returns(900, constant(symbols, 0.5), seed=5))
    days = sum(0.995**age for age in range(900))
    raw = state.products / state.products.diagonal().sqrt() / state.products.diagonal().sqrt()[:, None]
    evidence = days / (days + 60)
    off = ~torch.eye(symbols, dtype=torch.bool)
    prior = evidence * float(raw[off].mean()) + (1 - evidence) * 0.3
    expected = torch.where(off, trust * evidence * raw + (1 - trust * evidence) * prior, 1.0)
    assert float(torch.linalg.eigvalsh(expected)[0]) > 0.02, "a bounded eigenvalue would change the matrix"
    assert torch.allclose(state.correlation(shrinkage), expected, rtol=1e-9)
    never = state_after(torch.zeros(30, 4, dtype=torch.float64), torch.zeros(30, 4, dtype=torch.bool))
    for nothing in (CorrelationState.empty(4), never):
        assert torch.allclose(nothing.correlation(), constant(4, 0.3))


def test_every_case_gives_a_positive_definite_matrix():
    """Any sizes, ragged days, symbols that are equal and opposite, and sums that contradict one another."""
    sizes = [(days, symbols) for days in (1, 30, 400) for symbols in (1, 2, 40)]
    states = [state_after(normal_returns(days, constant(symbols, 0.5))) for days, symbols in sizes]
    valid = torch.rand(600, 20, generator=torch.Generator().manual_seed(4)) > 0.4
    # Two symbols never share a day, and one never has a return.
    valid[300:, 0] = valid[:300, 1] = valid[:, 2] = False
    states.append(state_after(normal_returns(600, constant(20, 0.9), seed=3) * valid, valid))
    signs = torch.tensor([[1.0, 1.0, -1.0], [1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]], dtype=torch.float64)
    states += [state_after(normal_returns(2000, constant(1, 0.0)) * signs[0])]
    states += [CorrelationState(200.0 * signs, *[torch.full((3, 3), 200.0, dtype=torch.float64)] * 2)]
    for state in states:
        matrix = state.correlation()
        assert bool(matrix.isfinite().all()) and torch.allclose(matrix, matrix.T, atol=1e-14)
        assert torch.allclose(matrix.diagonal(), torch.ones(len(matrix), dtype=torch.float64))
        assert float(torch.linalg.eigvalsh(matrix)[0]) > 0.005
    # A matrix just above the bound stays as it is, bit for bit; one just below is raised to it.
    above, below = (constant(5, 1.0 - lowest) for lowest in (0.0201, 0.0199))
    assert positive_definite(above, 0.02) is above
    raised = positive_definite(below, 0.02)
    assert torch.linalg.eigvalsh(raised)[0].item() == pytest.approx(0.02, rel=1e-3)
    assert raised.diagonal().tolist() == pytest.approx([1.0] * 5, rel=1e-15)
