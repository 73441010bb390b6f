"""Encoding of daily bars as moves relative to the previous close, and decoding; all moves decode to valid bars.

A symbol's day is five numbers in units of log-price and log-volume:

    gap    log(open / close before)          upper  log(high / max(open, close)), not negative
    body   log(close / open)                 lower  log(min(open, close) / low), not negative
    volume log(volume) less its level, the exponential mean of the previous days

gap + body is the log-return from close to close. A generator's state between days is a `MoveState`.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, VOLUME, Bars

VARIANCE_DECAY = 0.94
"""Decay of the exponential mean of squared daily returns (RiskMetrics 1996)."""

VOLUME_DECAY = 1.0 - 2.0 / 21.0
"""Decay of the level of log-volume, that of a 20-day exponential mean."""

MOVE_LIMIT = 0.7
"""Bound of return, gap and wicks: at most a doubling or halving of the price. Two moves of 109 NSE symbols since 2015,
and none of the Dow's since 2008, are larger."""

LOG_CLOSE_LIMITS = (math.log(1e-2), math.log(1e6))
"""Bounds of a generated close, so that it never reaches zero or infinity."""

LOG_VOLUME_LIMITS = (0.0, math.log(1e13))

SAME_PRICE = 2e-6
"""Smaller gaps are none: adjusted prices, kept in single precision, of one traded price differ by up to 1e-6."""

INITIAL_VOLATILITY = 0.02
"""Daily volatility of a symbol before its first return."""


class Move(IntEnum):
    """Positions of the five numbers of a symbol's day."""

    GAP = 0
    BODY = 1
    UPPER = 2
    LOWER = 3
    VOLUME = 4


class MoveState(NamedTuple):
    """Log of each symbol's last close, and exponential means of its log-volume and squared returns. Shape: (..., K)."""

    log_close: Tensor
    volume_level: Tensor
    variance: Tensor


class EncodedBars(NamedTuple):
    """Moves (P, T, K, 5), 0 where not `valid`, and the states before each day (P, T, K) and after the last (P, K)."""

    moves: Tensor
    valid: Tensor
    before: MoveState
    last: MoveState

    def until(self, day: int) -> EncodedBars:
        """Return the days up to and including the given position, on which every symbol has a bar."""
        if day + 1 == self.moves.shape[1]:
            return self
        cut = slice(day + 1)
        before = MoveState(*(part[:, cut] for part in self.before))
        return EncodedBars(
            self.moves[:, cut], self.valid[:, cut], before, MoveState(*(part[:, day + 1] for part in self.before))
        )


def encode_bars(ohlcv: Tensor) -> EncodedBars:
    """Encode bars (P, T, K, 5), NaN on days without one, which are skipped and leave a symbol's state unchanged."""
    present = ohlcv[..., CLOSE].isfinite()
    logs = log_bars(ohlcv.where(present.unsqueeze(-1), 1.0))
    batch, days, symbols = present.shape
    zero = torch.zeros(batch, symbols, dtype=ohlcv.dtype, device=ohlcv.device)
    known = torch.zeros_like(zero, dtype=torch.bool)
    state = MoveState(zero, zero, torch.full_like(zero, INITIAL_VOLATILITY**2))
    moves = torch.zeros_like(ohlcv)
    valid = torch.zeros_like(present)
    before: list[MoveState] = []
    for day in range(days):
        now, here = logs[:, day], present[:, day]
        first = here & ~known
        state = MoveState(
            torch.where(first, now[..., CLOSE], state.log_close),
            torch.where(first, now[..., VOLUME], state.volume_level),
            state.variance,
        )
        before.append(state)
        move = encode_bar(state, now)
        valid[:, day] = here & known
        moves[:, day] = move.where(valid[:, day].unsqueeze(-1), 0.0)
        following = next_state(state, move)
        state = MoveState(*(torch.where(valid[:, day], new, old) for new, old in zip(following, state, strict=True)))
        known = known | here
    stacked = MoveState(*(torch.stack(parts, dim=1) for parts in zip(*before, strict=True)))
    return EncodedBars(moves, valid, stacked, state)


def log_bars(ohlcv: Tensor) -> Tensor:
    """Return logarithms of prices and of volumes, which count as at least 1. Shape: (..., 5) -> (..., 5)."""
    return torch.cat([ohlcv[..., :VOLUME], ohlcv[..., VOLUME:].clamp(min=1.0)], dim=-1).log()


def encode_bar(state: MoveState, logs: Tensor) -> Tensor:
    """Return the moves of a day's `log_bars`, the inverse of `decode_bar`. Shapes: (..., K), (..., K, 5)."""
    opened, high, low, closed, volume = logs.unbind(-1)
    gap = opened - state.log_close
    gap = torch.where(gap.abs() < SAME_PRICE, 0.0, gap)
    body = closed - state.log_close - gap
    wicks = high - opened.maximum(closed), opened.minimum(closed) - low
    return torch.stack([gap, body, *wicks, volume - state.volume_level], dim=-1)


def encode_history(bars: Bars) -> EncodedBars:
    """Encode the bars of one path; raise ValueError for several."""
    if len(bars.ohlcv) != 1:
        raise ValueError(f"{bars.source}: a history is one path, got {len(bars.ohlcv)}")
    return encode_bars(bars.ohlcv)


def daily_returns(encoded: EncodedBars) -> tuple[Tensor, Tensor]:
    """Return log-returns from close to close, 0 where missing, and their mask. Shape of each: (T, K)."""
    return log_return(encoded.moves[0]), encoded.valid[0]


def log_return(moves: Tensor) -> Tensor:
    """Return the close-to-close return of moves, in their units. Shape: (..., 5) -> (...)."""
    return moves[..., Move.GAP] + moves[..., Move.BODY]


def next_state(state: MoveState, move: Tensor) -> MoveState:
    """Return the state after a day's moves. Shapes: (..., K), (..., K, 5)."""
    daily_return = log_return(move)
    return MoveState(
        state.log_close + daily_return,
        state.volume_level + (1.0 - VOLUME_DECAY) * move[..., Move.VOLUME],
        VARIANCE_DECAY * state.variance + (1.0 - VARIANCE_DECAY) * daily_return.square(),
    )


def bounded_moves(state: MoveState, move: Tensor) -> Tensor:
    """Clamp moves to their bounds and to those of close and volume. Shapes: (..., K), (..., K, 5).

    The return is clamped before the gap, and the body is return less gap: clamping a large gap does not change the
    return.
    """
    gap, body, upper, lower, volume = move.unbind(-1)
    daily_return = (gap + body).clamp(-MOVE_LIMIT, MOVE_LIMIT)
    daily_return = (state.log_close + daily_return).clamp(*LOG_CLOSE_LIMITS) - state.log_close
    gap = gap.clamp(-MOVE_LIMIT, MOVE_LIMIT)
    volume = (state.volume_level + volume).clamp(*LOG_VOLUME_LIMITS) - state.volume_level
    wicks = (wick.clamp(0.0, MOVE_LIMIT) for wick in (upper, lower))
    return torch.stack([gap, daily_return - gap, *wicks, volume], dim=-1)


def decode_bar(state: MoveState, move: Tensor) -> Tensor:
    """Return open, high, low, close and volume of a day. Shapes: (..., K), (..., K, 5) -> (..., K, 5)."""
    gap, body, upper, lower, volume = move.unbind(-1)
    opened = (state.log_close + gap).exp()
    # The sum is the next state's close, so that a gap of zero opens at exactly this price.
    closed = (state.log_close + (gap + body)).exp()
    # Factors ≥ 1 and ≤ 1 make high and low enclose open and close exactly.
    high = opened.maximum(closed) * upper.exp()
    low = opened.minimum(closed) * (-lower).exp()
    return torch.stack([opened, high, low, closed, (state.volume_level + volume).exp()], dim=-1)


def decode_bars(state: MoveState, moves: Tensor) -> Tensor:
    """Decode moves to bars by `bounded_moves`; high and low enclose the others exactly. Shape of both: (P, T, K, 5)."""
    bars = []
    for move in moves.unbind(1):
        bounded = bounded_moves(state, move)
        bars.append(decode_bar(state, bounded))
        state = next_state(state, bounded)
    return torch.stack(bars, dim=1)
