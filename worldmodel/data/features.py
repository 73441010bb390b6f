"""Input features of the network per symbol and day: moves in units of volatility, and market means.

Scaling is causal: a day is divided by the volatility estimated before it, which is also a feature, so that nothing is
normalised over a window. `observe_day` is used for history and generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from vecenv.worldmodel.data.bar_moves import INITIAL_VOLATILITY, EncodedBars, Move, MoveState, log_return, next_state
from vecenv.worldmodel.data.correlation_level import PRIOR_CORRELATION, CommonMoves

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


State = TypeVar("State", bound=tuple[Any, ...])
"""A tuple of tensors, and of further such tuples."""


def changed(change: Callable[..., Tensor], state: State, *others: State) -> State:
    """Return a state whose tensors are functions of those in the same place of one or more states."""
    parts = zip(state, *others, strict=True)
    return type(state)(*(change(*part) if isinstance(part[0], Tensor) else changed(change, *part) for part in parts))


def stacked(days: Sequence[State]) -> State:
    """Stack the states of successive days. Shape of each tensor: (P, K); of the result: (P, T, K)."""
    return changed(lambda *parts: torch.stack(parts, dim=1), *days)


class FeatureState(NamedTuple):
    """State for scaling the next day. Shape: (..., K).

    That of `market_variance`, the equal-weight market's, is (..., 1), and of `common`, of return, gap, wicks and
    volume, (..., 4).
    """

    moves: MoveState
    slow_variance: Tensor
    market_variance: Tensor
    scales: BarScales
    common: CommonMoves

    @property
    def volatility(self) -> Tensor:
        """Daily volatility that scales the next day's moves. Shape: (..., K)."""
        return _volatility(self.moves.variance)

    def taken(self, take: Callable[[Tensor], Tensor]) -> FeatureState:
        return changed(take, self)

    def write(self, other: FeatureState) -> None:
        changed(Tensor.copy_, self, other)


class ObservedHistory(NamedTuple):
    """A history as network inputs.

    Attributes:
        features: at the end of each day. Shape: (P, T, K, F), float32.
        scaled: moves of each day over the volatility before it; volume unscaled. Shape: (P, T, K, 5), float64.
        volatility: divisor of each day's moves. Shape: (P, T, K), float64.
        valid: whether there is a move. Shape: (P, T, K), bool.
        scales: `BarScales.features` before each day. Shape: (P, T, K, 4), float32.
        quantities: scaled returns, gaps, wicks and volumes, whose correlations are estimated. Shape: (P, T, K, 4),
            float64.
        levels: fast levels of their correlations before each day. Shape: (P, T, 4), float64.
        after: state after each day. Batch: (P, T, K).
    """

    features: Tensor
    scaled: Tensor
    volatility: Tensor
    valid: Tensor
    scales: Tensor
    quantities: Tensor
    levels: Tensor
    after: FeatureState

    @property
    def last(self) -> FeatureState:
        """State after the last day. Batch: (P, K)."""
        return self.after.taken(lambda part: part[:, -1])

    def until(self, day: int) -> ObservedHistory:
        return changed(lambda part: part[:, : day + 1], self)

    def to(self, device: torch.device | str) -> ObservedHistory:
        return changed(lambda part: part.to(device), self)


def initial_state(moves: MoveState) -> FeatureState:
    """Return the state before the first move."""
    variance = torch.full_like(moves.log_close, INITIAL_VOLATILITY**2)
    typical = BarScales.typical(variance)
    common = CommonMoves.at(variance.new_full((*variance.shape[:-1], 1 + NUM_QUANTITIES), PRIOR_CORRELATION))
    return FeatureState(moves._replace(variance=variance), variance, variance[..., :1] / 2.0, typical, common)


def scaled_moves(move: Tensor, volatility: Tensor) -> Tensor:
    """Divide the four price moves by the volatility. Shapes: (..., K, 5), (..., K) -> (..., K, 5)."""
    return torch.cat([move[..., : Move.VOLUME] / volatility.unsqueeze(-1), move[..., Move.VOLUME :]], dim=-1)


def observe_day(state: FeatureState, move: Tensor, valid: Tensor) -> tuple[Tensor, FeatureState]:
    """Return a day's features (..., K, F), and the state after it, unchanged for symbols without a valid move."""
    scaled = scaled_moves(move, state.volatility) * valid.unsqueeze(-1)
    means = _Means(state.slow_variance, state.market_variance, state.scales)
    common = state.common.after(CommonMoves.of_day(_quantities(scaled, state.scales), valid), valid)
    after = _state_after(state.moves, move, valid, means.after(_Means.of_day(move, scaled, valid), valid), common)
    return _features(scaled, after, valid), after


def observe_history(encoded: EncodedBars) -> ObservedHistory:
    """Return what `observe_day` tells of the days of a history, one after the other.

    Only exponential means are computed day by day, everything else of all days at once.
    """
    moves, valid, before = encoded.moves, encoded.valid, encoded.before
    first = initial_state(MoveState(*(part[:, 0] for part in before)))
    volatility = _volatility(before.variance)
    scaled = scaled_moves(moves, volatility)
    told = _Means.of_day(moves, scaled, valid)
    means = [_Means(first.slow_variance, first.market_variance, first.scales)]
    for day in range(moves.shape[1]):
        means.append(means[-1].after(changed(itemgetter((slice(None), day)), told), valid[:, day]))
    scales = stacked(means[:-1]).scales
    # They read the scales before each day.
    quantities = _quantities(scaled, scales)
    daily, common = CommonMoves.of_day(quantities, valid), [first.common]
    for day in range(moves.shape[1]):
        common.append(common[-1].after(changed(itemgetter((slice(None), day)), daily), valid[:, day]))
    after = _state_after(before, moves, valid, stacked(means[1:]), stacked(common[1:]))
    features, levels = _features(scaled, after, valid).float(), stacked(common[:-1]).level()
    return ObservedHistory(features, scaled, volatility, valid, scales.features(), quantities, levels, after)


class _Means(NamedTuple):
    """Exponential means of a state, or a day's own values of the same quantities."""

    slow_variance: Tensor
    market_variance: Tensor
    scales: BarScales

    @classmethod
    def of_day(cls, move: Tensor, scaled: Tensor, valid: Tensor) -> _Means:
        """Return the values of days. Shapes: (..., K, 5), (..., K, 5), (..., K)."""
        daily_return = log_return(move) * valid
        market_return = _mean(daily_return, valid.to(move.dtype))
        return cls(daily_return.square(), market_return.square(), BarScales.of_day(scaled))

    def after(self, day: _Means, valid: Tensor) -> _Means:
        """Return the means after a day; those of symbols without a move are unchanged."""
        slow = SLOW_DECAY * self.slow_variance + (1.0 - SLOW_DECAY) * day.slow_variance
        market = MARKET_DECAY * self.market_variance + (1.0 - MARKET_DECAY) * day.market_variance
        return _Means(
            torch.where(valid, slow, self.slow_variance),
            torch.where(valid.any(-1, keepdim=True), market, self.market_variance),
            self.scales.after(day.scales, valid),
        )


def _volatility(variance: Tensor) -> Tensor:
    return variance.sqrt().clamp(min=LOWEST_VOLATILITY)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the mean over the symbols with a weight, 0 without any. Shapes: (..., K) -> (..., 1)."""
    return (values * weight).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1.0)


def _quantities(scaled: Tensor, before: BarScales) -> Tensor:
    """Return what correlations are estimated of, from scaled moves and the scales before them. Shape: (..., K, 4)."""
    return torch.cat([log_return(scaled).unsqueeze(-1), before.standardised(scaled)], dim=-1)


def _state_after(before: MoveState, move: Tensor, valid: Tensor, means: _Means, common: CommonMoves) -> FeatureState:
    """Return the state after days, from that of the bars before them and the means after them."""
    following = next_state(before, move)
    moves = MoveState(*(torch.where(valid, new, old) for new, old in zip(following, before, strict=True)))
    return FeatureState(moves, *means, common)


def _features(scaled: Tensor, after: FeatureState, valid: Tensor) -> Tensor:
    """Return the features of days from their scaled moves and the state after them. Shape: (..., K, F)."""
    weight = valid.to(scaled.dtype)
    scaled_return = log_return(scaled)
    volume = scaled[..., Move.VOLUME].clamp(-VOLUME_LIMIT, VOLUME_LIMIT)
    log_volatility = after.volatility.log()
    market_return = _mean(scaled_return, weight)
    # On a day without any move, such as the first, the market mean is over all symbols.
    counted = torch.where(valid.any(-1, keepdim=True), weight, 1.0)
    mean_log_volatility = _mean(log_volatility, counted)
    market = [
        market_return.asinh(),
        _mean(scaled_return.abs(), weight) - 0.75,
        _mean((scaled_return - market_return).square(), weight).sqrt() - 0.9,
        _mean(volume, weight),
        0.5 * after.market_variance.clamp(min=1e-8).log() - mean_log_volatility,
        mean_log_volatility - math.log(INITIAL_VOLATILITY),
    ]
    return torch.stack(
        [
            scaled_return.asinh(),
            scaled[..., Move.GAP].asinh(),
            scaled[..., Move.BODY].asinh(),
            scaled[..., Move.UPPER].asinh(),
            scaled[..., Move.LOWER].asinh(),
            volume,
            log_volatility - math.log(INITIAL_VOLATILITY),
            0.5 * after.slow_variance.clamp(min=LOWEST_VOLATILITY**2).log() - log_volatility,
            *(values.expand_as(weight) for values in market),
            (scaled_return - market_return).asinh() * weight,
            weight,
        ],
        dim=-1,
    )


SCALE_DECAY = 0.99
"""Decay of the exponential means, about a hundred days: shorter means forecast the next two months no better."""

MOVE_LIMIT = 4.0
"""Clipping bound of gaps and volume moves, so that one day does not set a scale."""

WICKS_LIMIT = 8.0

SMALLEST_WICKS = 0.05
"""Added to the sum of both wicks before its logarithm, which exists without wicks then."""

LOWEST_SQUARE = 1e-4
"""Lower bound of mean squares."""

NUM_SCALES = 4
GAP_SCALE, WICKS_SCALE, VOLUME_SCALE = 0, 1, 2
"""Positions among `BarScales.features`: logarithms of scales over typical ones."""

HIGHEST_GAP_SCALE, HIGHEST_VOLUME_SCALE = 0.8, 1.2
"""Bounds of these features: the days of both markets have at most 0.72 and 1.07. Beyond them the heads would
extrapolate, and some stock in a hundred paths would go on with gaps that its days take back, for good."""

NUM_QUANTITIES = 3
"""Quantities whose correlations among symbols are estimated: gap, wicks and volume."""

WICKS_SPREAD = 0.6
"""Typical standard deviation of the logarithm of a day's wicks about its mean."""


class BarScales(NamedTuple):
    """Exponential means over the days before the next one. Shape of each: (..., K).

    Of squared gaps, and of the logarithm of both wicks, over the volatility; of squared volume moves; and of whether a
    day opens at the last close.
    """

    gap: Tensor
    log_wicks: Tensor
    volume: Tensor
    still: Tensor

    @classmethod
    def typical(cls, like: Tensor) -> BarScales:
        """Return the scales before the first day, typical of large stocks. Shape: (..., K)."""
        return cls(*(torch.full_like(like, number) for number in (0.25, -0.4, 0.16, 0.05)))

    @classmethod
    def of_day(cls, scaled: Tensor) -> BarScales:
        """Return a day's own values of what is averaged, from moves over the volatility. Shape: (..., K, 5)."""
        gap, volume = _limited(scaled, Move.GAP), _limited(scaled, Move.VOLUME)
        still = (scaled[..., Move.GAP] == 0).to(scaled.dtype)
        return cls(gap.square(), _log_wicks(scaled), volume.square(), still)

    def after(self, day: BarScales, valid: Tensor) -> BarScales:
        """Return the scales after a day, from `of_day`; those of symbols without a valid move are unchanged."""
        means = (SCALE_DECAY * old + (1.0 - SCALE_DECAY) * new for old, new in zip(self, day, strict=True))
        after = BarScales(*(torch.where(valid, new, old) for new, old in zip(means, self, strict=True)))
        return after._replace(gap=after.gap.clamp(min=LOWEST_SQUARE), volume=after.volume.clamp(min=LOWEST_SQUARE))

    def features(self) -> Tensor:
        """Return inputs of the bar heads, about centred. Shape: (..., K, 4), float32."""
        gap, volume = 0.5 * self.gap.log() + math.log(2.0), 0.5 * self.volume.log() - math.log(0.4)
        gap, volume = gap.clamp(max=HIGHEST_GAP_SCALE), volume.clamp(max=HIGHEST_VOLUME_SCALE)
        return torch.stack([gap, self.log_wicks + 0.4, volume, 5.0 * (self.still - 0.05)], dim=-1).float()

    def standardised(self, scaled: Tensor) -> Tensor:
        """Return a day's gap, wicks and volume over their scales, for their correlations. Shape: (..., K, 3)."""
        gap = _limited(scaled, Move.GAP) / self.gap.sqrt()
        wicks = (_log_wicks(scaled) - self.log_wicks) / WICKS_SPREAD
        return torch.stack([gap, wicks, scaled[..., Move.VOLUME] / self.volume.sqrt()], dim=-1)


def _limited(scaled: Tensor, move: Move) -> Tensor:
    return scaled[..., move].clamp(-MOVE_LIMIT, MOVE_LIMIT)


def _log_wicks(scaled: Tensor) -> Tensor:
    both = scaled[..., Move.UPPER] + scaled[..., Move.LOWER]
    return (both.clamp(0.0, WICKS_LIMIT) + SMALLEST_WICKS).log()
