"""Distribution of a number that may be exactly zero: a logit of zero, and a sinh-arcsinh distribution otherwise."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from vecenv.worldmodel.network.sinh_arcsinh import SinhArcsinh

SMALLEST_WICK = 1e-4
"""Shorter wicks count as zero: prices are rounded. In volatilities."""

LONGEST_LOG_WICK = math.log(50.0)
"""Bound of a drawn wick's logarithm, whose distribution has heavy tails of its own. In volatilities."""

ZERO_LOGIT = -3.0
"""Logit of an exact zero for a raw output of 0."""


class Scored(NamedTuple):
    """A quantity of symbols under its distribution. Shape of each: (..., K).

    Attributes:
        density: its log-density, or the log-probability of an exact zero.
        normal: its standard normal number.
        present: whether it is not an exact zero.
    """

    density: Tensor
    normal: Tensor
    present: Tensor

    @classmethod
    def of(cls, law: SinhArcsinh, value: Tensor) -> Scored:
        """Score numbers that are never an exact zero."""
        return cls(law.log_prob(value), law.normal(value), torch.ones_like(value, dtype=torch.bool))


class ZeroInflated(NamedTuple):
    """Distribution of a number that may be exactly zero. Shape of the logit: (...).

    Attributes:
        zero: logit of an exact zero.
        other: distribution otherwise.
    """

    zero: Tensor
    other: SinhArcsinh

    @classmethod
    def of_raw(cls, raw: Tensor, location: Tensor, log_scale: Tensor | float = 0.0) -> ZeroInflated:
        """Return the distribution; location and scale as in `SinhArcsinh.of_raw`. Shapes: (..., 5), (...), (...)."""
        return cls(raw[..., 0] + ZERO_LOGIT, SinhArcsinh.of_raw(raw[..., 1:], location, log_scale))

    def scored(self, value: Tensor) -> Scored:
        """Score numbers."""
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
        length = self.other.drawn(normal).clamp(max=LONGEST_LOG_WICK).exp()
        return length.masked_fill(zero < torch.sigmoid(self.zero), 0.0)
