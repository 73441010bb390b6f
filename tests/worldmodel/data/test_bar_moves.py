"""Bars to moves and back, and causal scales of gap, wicks and volume."""

from __future__ import annotations

import math

import pytest
import torch

from tests.worldmodel.neural_market import assert_valid_bars
from vecenv.market.bars import CLOSE, OPEN, VOLUME
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import INITIAL_VOLATILITY, MoveState, bounded_moves, decode_bars, encode_bars
from vecenv.worldmodel.data.bar_scales import BarScales


def state_of(num_paths: int, num_symbols: int) -> MoveState:
    close = torch.full((num_paths, num_symbols), math.log(100.0), dtype=torch.float64)
    return MoveState(close, close * 2, torch.full_like(close, INITIAL_VOLATILITY**2))


def test_a_bar_by_hand():
    bars = torch.tensor([[100, 100, 100, 100, 1000.0], [110, 120, 90, 99, 2000.0]], dtype=torch.float64)
    encoded = encode_bars(bars[None, :, None])
    expected = [math.log(1.1), math.log(99 / 110), math.log(120 / 110), math.log(99 / 90), math.log(2)]
    assert encoded.moves[0, 1, 0].tolist() == pytest.approx(expected, rel=1e-12)
    assert encoded.valid[0, :, 0].tolist() == [False, True]
    assert float(encoded.last.variance) == pytest.approx(0.94 * 0.02**2 + 0.06 * math.log(0.99) ** 2)
    assert float(encoded.last.volume_level) == pytest.approx(math.log(1000) + 2 / 21 * math.log(2))


def test_moves_make_the_bars_that_they_came_from_and_a_state_knows_nothing_of_its_day():
    bars = synthetic_bars(2, 60, 5, seed=3).ohlcv
    encoded, changed = encode_bars(bars), bars.clone()
    state = MoveState(*(part[:, 1] for part in encoded.before))
    assert torch.allclose(decode_bars(state, encoded.moves[:, 1:]), bars[:, 1:], rtol=1e-9)
    changed[:, 40:] *= 1.5
    for one, other in zip(encoded.before, encode_bars(changed).before, strict=True):
        assert torch.equal(one[:, :41], other[:, :41]) and not torch.equal(one[:, 41:], other[:, 41:])


def test_a_missing_day_is_skipped():
    """The day after a hole moves from the last close there was."""
    ohlcv = synthetic_bars(1, 30, 2, seed=2).ohlcv
    holed = ohlcv.clone()
    holed[0, 10, 0] = holed[0, :5, 1] = float("nan")
    encoded = encode_bars(holed)
    assert encoded.valid[0, :, 0].tolist() == [day not in (0, 10) for day in range(30)]
    assert encoded.valid[0, :, 1].tolist() == [day > 5 for day in range(30)]
    assert torch.isclose(encoded.moves[0, 11, 0, 0], torch.log(ohlcv[0, 11, 0, OPEN] / ohlcv[0, 9, 0, CLOSE]))
    without = encode_bars(torch.cat([ohlcv[:, :10, :1], ohlcv[:, 11:, :1]], dim=1))
    assert torch.equal(encoded.last.variance[:, :1], without.last.variance)


def test_wild_moves_still_make_valid_bars():
    """Moves of any size, over many days; a wild gap does not change the return."""
    moves = torch.randn(20, 400, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
    assert_valid_bars(decode_bars(state_of(20, 3), moves))
    falling = torch.zeros(1, 200, 1, 5, dtype=torch.float64)
    falling[..., 1] = -100.0
    assert float(decode_bars(state_of(1, 1), falling)[..., :VOLUME].min()) == pytest.approx(0.01)
    assert float(decode_bars(state_of(1, 1), -falling)[..., :VOLUME].max()) == pytest.approx(1e6)
    move = torch.tensor([[[5.0, -4.98, -0.1, 2.0, -99.0]]], dtype=torch.float64)
    expected = [0.7, 0.02 - 0.7, 0.0, 0.7, -2 * math.log(100)]
    assert bounded_moves(state_of(1, 1), move)[0, 0].tolist() == pytest.approx(expected)


def test_gaps_of_rounded_prices_are_none_and_open_at_exactly_the_last_close():
    """A millionth above the last close is none and leaves the return; ten millionths are a gap."""
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


DAYS = [[0.5, 0.2, 0.1, 0.3, 0.4], [0.0, -0.3, 0.0, 0.0, -9.0], [-7.0, 1.0, 20.0, 3.0, 0.1]]
"""Gap, body, upper and lower wick, volume of one symbol."""


def limited(number, bound):
    return max(-bound, min(bound, number))


def test_means_by_plain_numbers():
    gap, wicks, volume, still = 0.25, -0.4, 0.16, 0.05
    scales = BarScales.typical(torch.zeros(1, dtype=torch.float64))
    for day in DAYS:
        scaled = torch.tensor([day], dtype=torch.float64)
        log_wicks = math.log(min(day[2] + day[3], 8.0) + 0.05)
        expected = [limited(day[0], 4.0) / math.sqrt(gap), (log_wicks - wicks) / 0.6, day[4] / math.sqrt(volume)]
        assert scales.standardised(scaled)[0].tolist() == pytest.approx(expected)
        scales = scales.after(BarScales.of_day(scaled), torch.tensor([True]))
        gap = 0.99 * gap + 0.01 * limited(day[0], 4.0) ** 2
        wicks = 0.99 * wicks + 0.01 * log_wicks
        volume = 0.99 * volume + 0.01 * limited(day[4], 4.0) ** 2
        still = 0.99 * still + 0.01 * (day[0] == 0)
        assert [float(part) for part in scales] == pytest.approx([gap, wicks, volume, still])
    shown = [0.5 * math.log(gap / 0.25), wicks + 0.4, 0.5 * math.log(volume / 0.16), 5 * (still - 0.05)]
    assert scales.features()[0].tolist() == pytest.approx(shown, rel=1e-6)


def test_a_symbol_without_a_bar_keeps_its_scales_and_those_of_still_days_stay_above_zero():
    scales, here = BarScales.typical(torch.zeros(2, dtype=torch.float64)), torch.tensor([True, False])
    for _ in range(2000):
        after = scales.after(BarScales.of_day(torch.zeros(2, 5, dtype=torch.float64)), here)
        assert all(float(new[1]) == float(old[1]) for old, new in zip(scales, after, strict=True))
        scales = after
    assert [float(part[0]) for part in scales] == pytest.approx([1e-4, math.log(0.05), 1e-4, 1.0], rel=1e-6)
