"""Input features of the network per symbol and day: moves in units of volatility, and market means.

Scaling is causal: a day is divided by the volatility estimated before it, which is also a feature, so that nothing is
normalised over a window. `observe_day` is used for history and generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.worldmodel.data.bar_moves import INITIAL_VOLATILITY, EncodedBars, Move, MoveState, log_return, next_state
from vecenv.worldmodel.data.bar_scales import BarScales

SLOW_DECAY = 0.99
"""Decay of the slow exponential mean of squared returns, about a hundred days."""

MARKET_DECAY = 0.94
"""Decay of the exponential mean of the equal-weight market's squared return."""

LOWEST_VOLATILITY = 1e-3
"""Lower bound of the scaling volatility, per day."""

VOLUME_LIMIT = 6.0
"""Clipping bound of log-volume's distance from its level."""

FEATURES = (
    "return",
    "gap",
    "body",
    "upper",
    "lower",
    "volume",
    "volatility",
    "slow_volatility",
    "market_return",
    "market_activity",
    "market_spread",
    "market_volume",
    "market_volatility",
    "mean_volatility",
    "relative_return",
    "valid",
)
"""Features of a symbol's day, in order."""

MARKET_FEATURES = frozenset(
    {
        "market_return",
        "market_activity",
        "market_spread",
        "market_volume",
        "market_volatility",
        "mean_volatility",
        "relative_return",
    }
)
"""Features that depend on the other symbols."""


class FeatureState(NamedTuple):
    """State for scaling the next day.

    Attributes:
        moves: state of the bars.
        slow_variance: slow mean of squared returns, per day. Shape: (..., K).
        market_variance: mean of squared returns of the equal-weight market, per day. Shape: (..., 1).
        scales: of gap, wicks and volume. Batch: (..., K).
    """

    moves: MoveState
    slow_variance: Tensor
    market_variance: Tensor
    scales: BarScales

    @property
    def volatility(self) -> Tensor:
        """Daily volatility that scales the next day's moves. Shape: (..., K)."""
        return self.moves.variance.sqrt().clamp(min=LOWEST_VOLATILITY)

    def taken(self, take: Callable[[Tensor], Tensor]) -> FeatureState:
        """Index every tensor of the state."""
        moves = MoveState(*(take(part) for part in self.moves))
        return FeatureState(moves, take(self.slow_variance), take(self.market_variance), self.scales.taken(take))

    def write(self, other: FeatureState) -> None:
        """Copy another state into this one's tensors in place."""
        for old, new in zip(self._tensors(), other._tensors(), strict=True):
            old.copy_(new)

    @classmethod
    def stacked(cls, states: Sequence[FeatureState]) -> FeatureState:
        """Stack the states after successive days. Batch of each: (P, K); of the result: (P, T, K)."""
        return cls(
            MoveState(*(torch.stack(days, dim=1) for days in zip(*(state.moves for state in states), strict=True))),
            torch.stack([state.slow_variance for state in states], dim=1),
            torch.stack([state.market_variance for state in states], dim=1),
            BarScales(*(torch.stack(days, dim=1) for days in zip(*(state.scales for state in states), strict=True))),
        )

    def _tensors(self) -> tuple[Tensor, ...]:
        return (*self.moves, self.slow_variance, self.market_variance, *self.scales)


class ObservedHistory(NamedTuple):
    """A history as network inputs.

    Attributes:
        features: at the end of each day. Shape: (P, T, K, F), float32.
        scaled: moves of each day over the volatility before it; volume unscaled. Shape: (P, T, K, 5), float64.
        volatility: divisor of each day's moves. Shape: (P, T, K), float64.
        valid: whether there is a move. Shape: (P, T, K), bool.
        scales: `BarScales.features` before each day. Shape: (P, T, K, 4), float32.
        standardised: `BarScales.standardised` of each day. Shape: (P, T, K, 3), float64.
        after: state after each day. Batch: (P, T, K).
    """

    features: Tensor
    scaled: Tensor
    volatility: Tensor
    valid: Tensor
    scales: Tensor
    standardised: Tensor
    after: FeatureState

    @property
    def last(self) -> FeatureState:
        """State after the last day. Batch: (P, K)."""
        return self.after.taken(lambda part: part[:, -1])

    @property
    def quantities(self) -> Tensor:
        """Scaled returns, gaps, wicks and volumes, whose correlations are estimated. Shape: (P, T, K, 4), float64."""
        return torch.cat([log_return(self.scaled).unsqueeze(-1), self.standardised], dim=-1)

    def until(self, day: int) -> ObservedHistory:
        """Return the days up to and including the given position."""
        return self._taken(lambda part: part[:, : day + 1])

    def to(self, device: torch.device | str) -> ObservedHistory:
        """Return the history on a device."""
        return self._taken(lambda part: part.to(device))

    def _taken(self, take: Callable[[Tensor], Tensor]) -> ObservedHistory:
        features, scaled, volatility, valid, scales, standardised = (take(part) for part in self[:-1])
        return ObservedHistory(features, scaled, volatility, valid, scales, standardised, self.after.taken(take))


def initial_state(moves: MoveState) -> FeatureState:
    """Return the state before the first move."""
    variance = torch.full_like(moves.log_close, INITIAL_VOLATILITY**2)
    typical = BarScales.typical(variance)
    return FeatureState(moves._replace(variance=variance), variance, variance[..., :1] / 2.0, typical)


def scaled_moves(move: Tensor, volatility: Tensor) -> Tensor:
    """Divide the four price moves by the volatility. Shapes: (..., K, 5), (..., K) -> (..., K, 5)."""
    return torch.cat([move[..., : Move.VOLUME] / volatility.unsqueeze(-1), move[..., Move.VOLUME :]], dim=-1)


def observe_day(state: FeatureState, move: Tensor, valid: Tensor) -> tuple[Tensor, FeatureState]:
    """Return the features of a completed day, and the state after it.

    Args:
        state: before the day. Batch: (..., K).
        move: of the day. Shape: (..., K, 5).
        valid: whether a symbol has a move; without one its state is unchanged. Shape: (..., K), bool.

    Returns:
        Features and state. Shape of the features: (..., K, F).
    """
    weight = valid.to(move.dtype)
    count = weight.sum(-1, keepdim=True).clamp(min=1.0)
    scaled = scaled_moves(move, state.volatility) * weight.unsqueeze(-1)
    daily_return = log_return(move) * weight
    scaled_return = log_return(scaled)
    volume = scaled[..., Move.VOLUME].clamp(-VOLUME_LIMIT, VOLUME_LIMIT)

    def mean(values: Tensor) -> Tensor:
        return ((values * weight).sum(-1, keepdim=True) / count).expand_as(values)

    following = next_state(state.moves, move)
    moves = MoveState(*(torch.where(valid, new, old) for new, old in zip(following, state.moves, strict=True)))
    slow = SLOW_DECAY * state.slow_variance + (1.0 - SLOW_DECAY) * daily_return.square()
    market_return = mean(daily_return)[..., :1]
    market = MARKET_DECAY * state.market_variance + (1.0 - MARKET_DECAY) * market_return.square()
    some = valid.any(-1, keepdim=True)
    after = FeatureState(
        moves,
        torch.where(valid, slow, state.slow_variance),
        torch.where(some, market, state.market_variance),
        state.scales.after(scaled, valid),
    )

    log_volatility = after.volatility.log()
    market_scaled = mean(scaled_return)
    # On a day without any move, such as the first, the market mean is over all symbols.
    counted = torch.where(some, weight, 1.0)
    mean_log_volatility = (log_volatility * counted).sum(-1, keepdim=True) / counted.sum(-1, keepdim=True)
    features = torch.stack(
        [
            scaled_return.asinh(),
            scaled[..., Move.GAP].asinh(),
            scaled[..., Move.BODY].asinh(),
            scaled[..., Move.UPPER].asinh(),
            scaled[..., Move.LOWER].asinh(),
            volume,
            log_volatility - math.log(INITIAL_VOLATILITY),
            0.5 * after.slow_variance.clamp(min=LOWEST_VOLATILITY**2).log() - log_volatility,
            market_scaled.asinh(),
            mean(scaled_return.abs()) - 0.75,
            mean((scaled_return - market_scaled).square()).sqrt() - 0.9,
            mean(volume),
            (0.5 * after.market_variance.clamp(min=1e-8).log() - mean_log_volatility).expand_as(weight),
            (mean_log_volatility - math.log(INITIAL_VOLATILITY)).expand_as(weight),
            (scaled_return - market_scaled).asinh() * weight,
            weight,
        ],
        dim=-1,
    )
    return features, after


def observe_history(encoded: EncodedBars) -> ObservedHistory:
    """Run `observe_day` over a history."""
    state = initial_state(MoveState(*(part[:, 0] for part in encoded.before)))
    days, states = [], []
    for day in range(encoded.moves.shape[1]):
        # A symbol's listing sets its close and volume level.
        before = MoveState(*(part[:, day] for part in encoded.before))
        state = state._replace(moves=before)
        scaled = scaled_moves(encoded.moves[:, day], state.volatility)
        told = (scaled, state.volatility, state.scales.features(), state.scales.standardised(scaled))
        shown, state = observe_day(state, encoded.moves[:, day], encoded.valid[:, day])
        days.append((shown.float(), *told))
        states.append(state)
    features, scaled, volatility, scales, standardised = (torch.stack(part, 1) for part in zip(*days, strict=True))
    after = FeatureState.stacked(states)
    return ObservedHistory(features, scaled, volatility, encoded.valid, scales, standardised, after)
