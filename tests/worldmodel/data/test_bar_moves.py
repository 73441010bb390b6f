"""Bars to moves and back."""

from __future__ import annotations

import math

import pytest
import torch

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import (
    INITIAL_VOLATILITY,
    Move,
    MoveState,
    bounded_moves,
    decode_bars,
    encode_bars,
)

NAN = float("nan")


def state_of(num_paths: int, num_symbols: int) -> MoveState:
    close = torch.full((num_paths, num_symbols), math.log(100.0), dtype=torch.float64)
    return MoveState(close, close * 2, torch.full_like(close, INITIAL_VOLATILITY**2))


def test_a_bar_by_hand():
    bars = torch.tensor([[100, 100, 100, 100, 1000.0], [110, 120, 90, 99, 2000.0]], dtype=torch.float64)
    encoded = encode_bars(bars[None, :, None])
    gap, body, upper, lower, volume = encoded.moves[0, 1, 0].tolist()
    assert math.isclose(gap, math.log(1.1)) and math.isclose(body, math.log(99 / 110))
    assert math.isclose(upper, math.log(120 / 110)) and math.isclose(lower, math.log(99 / 90))
    assert math.isclose(volume, math.log(2))
    assert encoded.valid[0, :, 0].tolist() == [False, True]
    expected = 0.94 * INITIAL_VOLATILITY**2 + 0.06 * math.log(0.99) ** 2
    assert math.isclose(float(encoded.last.variance), expected)
    assert math.isclose(float(encoded.last.volume_level), math.log(1000) + 2 / 21 * math.log(2))


def test_moves_make_the_bars_that_they_came_from():
    bars = synthetic_bars(2, 120, 5, seed=3)
    encoded = encode_bars(bars.ohlcv)
    state = MoveState(*(part[:, 1] for part in encoded.before))
    again = decode_bars(state, encoded.moves[:, 1:])
    assert torch.allclose(again, bars.ohlcv[:, 1:], rtol=1e-9)


def test_the_state_before_a_day_knows_nothing_of_the_day():
    ohlcv = synthetic_bars(1, 60, 3, seed=1).ohlcv
    changed = ohlcv.clone()
    changed[:, 40:] *= 1.5
    for one, other in zip(encode_bars(ohlcv).before, encode_bars(changed).before, strict=True):
        assert torch.equal(one[:, :41], other[:, :41])
        assert not torch.equal(one[:, 41:], other[:, 41:])


def test_a_missing_day_is_skipped():
    """The day after a hole moves from the last close there was."""
    ohlcv = synthetic_bars(1, 30, 2, seed=2).ohlcv
    holed = ohlcv.clone()
    holed[0, 10, 0] = NAN
    holed[0, :5, 1] = NAN
    encoded = encode_bars(holed)
    assert encoded.valid[0, :, 0].tolist() == [day not in (0, 10) for day in range(30)]
    assert encoded.valid[0, :, 1].tolist() == [day > 5 for day in range(30)]
    expected = torch.log(ohlcv[0, 11, 0, OPEN] / ohlcv[0, 9, 0, CLOSE])
    assert torch.isclose(encoded.moves[0, 11, 0, 0], expected)
    without = encode_bars(torch.cat([ohlcv[:, :10, :1], ohlcv[:, 11:, :1]], dim=1))
    assert torch.equal(encoded.last.variance[:, :1], without.last.variance)


def test_wild_moves_still_make_valid_bars():
    """Moves of any size, over many days: finite positive prices, and each bar encloses its open and close."""
    moves = torch.randn(20, 400, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
    bars = decode_bars(state_of(20, 3), moves)
    assert bool(bars.isfinite().all()) and float(bars[..., :VOLUME].min()) > 0 and float(bars[..., VOLUME].min()) >= 1
    assert bool((bars[..., HIGH] >= bars[..., OPEN].maximum(bars[..., CLOSE])).all())
    assert bool((bars[..., LOW] <= bars[..., OPEN].minimum(bars[..., CLOSE])).all())
    falling = torch.zeros(1, 200, 1, 5, dtype=torch.float64)
    falling[..., 1] = -100.0
    assert float(decode_bars(state_of(1, 1), falling)[..., :VOLUME].min()) >= 0.01 * math.exp(-0.7)


def test_a_wild_gap_does_not_change_the_return():
    state = state_of(1, 1)
    move = torch.tensor([[[5.0, -4.98, 0.0, 0.0, 0.0]]], dtype=torch.float64)
    bounded = bounded_moves(state, move)[0, 0].tolist()
    assert math.isclose(bounded[0], 0.7) and math.isclose(bounded[0] + bounded[1], 0.02)


def test_a_gap_of_rounded_prices_is_none_and_the_return_stays():
    """An open a millionth above the last close opens at it; one of ten millionths is a gap."""
    ohlcv = torch.tensor([[[100.0, 101.0, 99.0, 100.0, 1e6]], [[100.0001, 103.0, 100.0, 102.0, 1e6]]])[None].double()
    moves = encode_bars(ohlcv).moves[0, 1, 0]
    assert float(moves[Move.GAP]) == 0.0
    assert float(moves[Move.BODY]) == pytest.approx(math.log(1.02), abs=1e-15)
    ohlcv[0, 1, 0, 0] = 100.001
    moves = encode_bars(ohlcv).moves[0, 1, 0]
    assert float(moves[Move.GAP]) == pytest.approx(1e-5, rel=1e-4)
    assert float(moves[Move.GAP] + moves[Move.BODY]) == pytest.approx(math.log(1.02), abs=1e-15)


def test_bars_after_gaps_of_zero_open_at_exactly_the_last_closes():
    """Of many symbols: sums in another order differ in the last bit for some."""
    generator = torch.Generator().manual_seed(0)
    days = torch.zeros(1, 2, 200, 5, dtype=torch.float64)
    days[0, 0, :, : Move.UPPER] = 0.03 * torch.randn(200, 2, generator=generator, dtype=torch.float64)
    bars = decode_bars(state_of(1, 200), days)
    assert torch.equal(bars[0, 1, :, 0], bars[0, 0, :, CLOSE])
