"""Gaussian copula over the symbols of a day, from correlation matrices whose sizes are learned, with common shocks.

The matrix of a quantity is w₀ I + w₁ C + w₂ 11ᵀ with weights that sum to one: C is estimated from the days before, the
others let likelihood lower all correlations and pull them together.

That copula has one correlation for every day, but a few days a year make most of the co-movement of volume: on NSE
the hour of Diwali, month ends, and days before holidays; others crash at the open. So the normal numbers n of a
quantity are a mixture: without a shock n ~ N(0, R); with shock k, of probability pₖ, n ~ N(μₖ 1, R + τₖ² 11ᵀ). The
mixture is one draw for all symbols of a day. Its density is closed by the rank-one update of R (Sherman and Morrison
1950). Known days of the calendar move n as a whole, by c 1, before any shock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_SHOCKS = 2

SHOCK_LOGITS = (-4.0, -4.0)
"""Logits for raw numbers of 0, against no shock: each on 2% of days before training."""

SHOCK_MEANS = (-1.0, 1.0)
"""Means for raw numbers of 0, of opposite signs so that the two learn different days."""


class CommonShocks(NamedTuple):
    """Mixture of a quantity's shocks, first none, of mean and variance 0. Shape of each: (..., 1 + NUM_SHOCKS)."""

    log_weight: Tensor
    mean: Tensor
    variance: Tensor

    @classmethod
    def of_raw(cls, raw: Tensor, absent: Tensor | None = None) -> CommonShocks:
        """Map each shock's logit, mean and log-size, (..., NUM_SHOCKS, 3), to a mixture, without shocks if `absent`."""
        logit, mean, log_size = raw.unbind(-1)
        # By scalars: a constant tensor would be copied to the device.
        logits = torch.stack([part + own for part, own in zip(logit.unbind(-1), SHOCK_LOGITS, strict=True)], dim=-1)
        means = torch.stack([part + own for part, own in zip(mean.unbind(-1), SHOCK_MEANS, strict=True)], dim=-1)
        if absent is not None:
            logits = logits.masked_fill(absent, -math.inf)
        with_none = (1, 0)
        return cls(
            functional.pad(logits, with_none).log_softmax(-1),
            functional.pad(means, with_none),
            functional.pad((2.0 * log_size).exp(), with_none),
        )

    def drawn(self, uniform: Tensor, normal: Tensor, variance: Tensor) -> Tensor:
        """Return a day's common move: of a shock, or none, and of a common part with a variance of its own.

        A uniform number chooses the shock, a normal one the size of both. Shape: (...).
        """
        above = self.log_weight.exp().cumsum(-1)
        # The sum of the weights may round to below a uniform number near 1.
        above = torch.cat([above[..., :-1], torch.ones_like(above[..., -1:])], dim=-1)
        below = functional.pad(above[..., :-1], (1, 0))
        uniform = uniform.unsqueeze(-1)
        here = (uniform >= below) & (uniform < above)
        moved = self.mean + (self.variance + variance.unsqueeze(-1)).sqrt() * normal.unsqueeze(-1)
        return torch.where(here, moved, 0.0).sum(-1)

    def joint_log_density(self, size: Tensor, along: Tensor) -> Tensor:
        """Return the log-density of a day's numbers over that without shocks, from 1ᵀR⁻¹1 and 1ᵀR⁻¹n. Shape: (...)."""
        # One more dimension for the shocks.
        size, along = size.unsqueeze(-1), along.unsqueeze(-1)
        gain = 1.0 + self.variance * size
        centred = along - self.mean * size
        quadratic = self.mean.square() * size - 2.0 * self.mean * along - self.variance * centred.square() / gain
        return (self.log_weight - 0.5 * (quadratic + gain.log())).logsumexp(-1)


class ShockSizes(nn.Module):
    """Raw numbers of the shocks of each market and quantity."""

    absent: Tensor

    def __init__(self, markets: int, shocked: Sequence[bool]) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.zeros(markets, len(shocked), NUM_SHOCKS, 3))
        self.register_buffer("absent", ~torch.tensor(shocked)[:, None], persistent=False)

    def forward(self, market: int) -> CommonShocks:
        """Return the shocks of a market's quantities; of probability 0 for those without. Batch: (quantities,)."""
        return CommonShocks.of_raw(self.raw[market], self.absent)


class CopulaNoise(NamedTuple):
    """Normal numbers of the estimated and own parts, (4, P, K), of the common one; uniform ones of shocks, (4, P)."""

    estimated: Tensor
    own: Tensor
    common: Tensor
    shock: Tensor


class CopulaDraws(NamedTuple):
    """Draws the normal numbers of the quantities of successive days: s LLᵀ + o I + c 11ᵀ by a part each.

    So matrices whose level moves along a path need no new factor: only the parts' variances move.

    Attributes:
        factor: lower Cholesky factors L of estimated matrices. Shape: (P, 4, K, K).
        variances: s, o and c, not negative, of sum 1. Shape: (3, P, 4).
    """

    factor: Tensor
    variances: Tensor

    def drawn(self, noise: CopulaNoise, shocks: CommonShocks, move: Tensor) -> Tensor:
        """Return a day's numbers, moved as known of it by `move`, (P, 4). Shape: (4, P, K)."""
        estimated, own, common = self.variances.unbind(0)
        shift = shocks.drawn(noise.shock.T, noise.common.T, common) + move
        tied = (self.factor @ noise.estimated.movedim(0, 1).unsqueeze(-1)).squeeze(-1)
        apart = own.sqrt().unsqueeze(-1) * noise.own.movedim(0, 1)
        return (estimated.sqrt().unsqueeze(-1) * tied + apart + shift.unsqueeze(-1)).movedim(1, 0)


class CopulaSums(NamedTuple):
    """What densities read of the numbers n of a day's present symbols. Shape of each: (...).

    The log-density without shocks over that of independent numbers, 1ᵀR⁻¹1 and 1ᵀR⁻¹n.
    """

    plain: Tensor
    size: Tensor
    along: Tensor

    @classmethod
    def of(cls, factor: Tensor, normal: Tensor, present: Tensor) -> CopulaSums:
        """Sum up numbers (..., K) with R of a lower Cholesky factor, in which absent ones are decorrelated."""
        normal = normal.where(present, 0.0)
        both = torch.stack([normal, present.to(normal.dtype)], dim=-1)
        white, ones = torch.linalg.solve_triangular(factor, both, upper=False).unbind(-1)
        spread = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        plain = 0.5 * (normal.square() - white.square()).sum(-1) - spread
        return cls(plain, ones.square().sum(-1), (ones * white).sum(-1))

    def log_density(self, shocks: CommonShocks | None = None, shift: Tensor | float = 0.0) -> Tensor:
        """Return the log-density, of numbers that are moved by c 1 on known days, over that of independent ones."""
        plain, along = self.plain + shift * (self.along - 0.5 * shift * self.size), self.along - shift * self.size
        return plain if shocks is None else plain + shocks.joint_log_density(self.size, along)
