"""Causal scales of a symbol's gap, wicks and volume: exponential means that the bar heads read beside the trunk.

The trunk sees bars in units of the volatility of returns. How large gaps and wicks are in these units drifts over the
years, as does the share of days that open at the last close; these means of the last days carry it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.worldmodel.data.bar_moves import Move

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

    def taken(self, take: Callable[[Tensor], Tensor]) -> BarScales:
        return BarScales(*(take(part) for part in self))

    @classmethod
    def stacked(cls, days: Sequence[BarScales]) -> BarScales:
        """Stack successive days. Shape of each: (P, K); of the result: (P, T, K)."""
        return cls(*(torch.stack(parts, dim=1) for parts in zip(*days, strict=True)))

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
