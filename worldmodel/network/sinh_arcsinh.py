"""Distributions of bars: sinh-arcsinh, and of a number that may be exactly zero and is sinh-arcsinh otherwise.

x = μ + σ sinh((asinh(z) + ε) / δ) with a standard normal z (Jones and Pewsey, "Sinh-arcsinh distributions", Biometrika
2009, eq. 2): four parameters for location, scale, skewness and tails. Since z is a closed form of x, normals that are
correlated among symbols give a Gaussian copula.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

NUM_PARAMETERS = 4

LOG_SCALE_LIMITS = (-5.0, 3.0)

TAIL_LIMITS = (0.35, 2.0)
"""Bounds of δ: below 1 tails are heavier than those of a normal, above 1 lighter."""

SKEW_LIMIT = 2.0

ARGUMENT_LIMIT = 6.0
"""Bound of δ asinh((x - μ) / σ) - ε, for finite gradients: |z| below 202."""


class SinhArcsinh(NamedTuple):
    """The distribution, of raw outputs: location μ, scale σ, skew ε and tail δ. Shape of each: (...)."""

    location: Tensor
    scale: Tensor
    skew: Tensor
    tail: Tensor

    @classmethod
    def of_raw(cls, raw: Tensor, location: Tensor | float = 0.0, log_scale: Tensor | float = 0.0) -> SinhArcsinh:
        """Map raw outputs (..., 4) to parameters within bounds; location and log-scale are added to the raw ones."""
        raw_location, raw_scale, skew, tail = raw.unbind(-1)
        lowest, highest = TAIL_LIMITS
        return cls(
            raw_location + location,
            (raw_scale + log_scale).clamp(*LOG_SCALE_LIMITS).exp(),
            SKEW_LIMIT * torch.tanh(skew / SKEW_LIMIT),
            # About 1, a normal distribution, for a raw output of 0.
            lowest + (highest - lowest) * torch.sigmoid(tail - 0.4),
        )

    def normal(self, value: Tensor) -> Tensor:
        """Return the standard normal number of a value. Shape: (...)."""
        return self._argument(value).sinh()

    def log_prob(self, value: Tensor) -> Tensor:
        argument, standard = self._argument(value), (value - self.location) / self.scale
        steepness = self.tail.log() + argument.cosh().log() - self.scale.log() - 0.5 * torch.log1p(standard.square())
        return steepness - 0.5 * argument.sinh().square() - 0.5 * math.log(2.0 * math.pi)

    def drawn(self, normal: Tensor) -> Tensor:
        """Return the values of standard normal numbers. Shape: (...)."""
        return torch.addcmul(self.location, self.scale, ((normal.asinh() + self.skew) / self.tail).sinh())

    def _argument(self, value: Tensor) -> Tensor:
        standard = (value - self.location) / self.scale
        return (self.tail * standard.asinh() - self.skew).clamp(-ARGUMENT_LIMIT, ARGUMENT_LIMIT)


SMALLEST_WICK = 1e-4
"""Shorter wicks count as zero: prices are rounded. In volatilities."""

LARGEST_MOVE = 16.0
"""Bound of drawn gaps and wicks, in volatilities. Of 291,000 stock-days up to the split none had a larger gap, three
longer wicks. The laws' tails are heavier, and after one gap of 40 a stock would go on with such gaps for good."""

ZERO_LOGIT = -3.0
"""Logit of an exact zero for a raw output of 0."""


class Scored(NamedTuple):
    """Log-density or an exact zero's log-probability, normal number, and whether it is no zero. Shape: (..., K)."""

    density: Tensor
    normal: Tensor
    present: Tensor

    @classmethod
    def of(cls, law: SinhArcsinh, value: Tensor) -> Scored:
        """Score numbers that are never an exact zero."""
        return cls(law.log_prob(value), law.normal(value), torch.ones_like(value, dtype=torch.bool))


class ZeroInflated(NamedTuple):
    """Distribution of a number that may be exactly zero, with logit `zero` of shape (...), and is `other` otherwise."""

    zero: Tensor
    other: SinhArcsinh

    @classmethod
    def of_raw(cls, raw: Tensor, location: Tensor, log_scale: Tensor | float = 0.0) -> ZeroInflated:
        """Return the distribution; location and scale as in `SinhArcsinh.of_raw`. Shapes: (..., 5), (...), (...)."""
        return cls(raw[..., 0] + ZERO_LOGIT, SinhArcsinh.of_raw(raw[..., 1:], location, log_scale))

    def scored(self, value: Tensor) -> Scored:
        other = functional.logsigmoid(-self.zero) + self.other.log_prob(value)
        density = torch.where(value == 0, functional.logsigmoid(self.zero), other)
        return Scored(density, self.other.normal(value), value != 0)

    def scored_wick(self, length: Tensor) -> Scored:
        """Score wicks by a distribution of their logarithm; those below `SMALLEST_WICK` count as zero."""
        value, rest = length.clamp(min=SMALLEST_WICK).log(), functional.logsigmoid(-self.zero)
        least = self.other.normal(torch.full_like(value, math.log(SMALLEST_WICK)))
        below = rest + torch.special.log_ndtr(least)
        zero = torch.logaddexp(functional.logsigmoid(self.zero), below)
        present = length >= SMALLEST_WICK
        density = torch.where(present, rest + self.other.log_prob(value) - value, zero)
        return Scored(density, self.other.normal(value), present)

    def wick(self, normal: Tensor, zero: Tensor) -> Tensor:
        """Return wicks from standard normal and uniform numbers, of a distribution of their logarithm."""
        length = self.other.drawn(normal).clamp(max=math.log(LARGEST_MOVE)).exp()
        return length.masked_fill(zero < torch.sigmoid(self.zero), 0.0)
