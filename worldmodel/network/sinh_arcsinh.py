"""Sinh-arcsinh distribution: four parameters for location, scale, skewness and tails, and closed forms both ways.

x = μ + σ sinh((asinh(z) + ε) / δ) with a standard normal z (Jones and Pewsey, "Sinh-arcsinh distributions", Biometrika
2009, eq. 2). Since z is a closed form of x, normals that are correlated among symbols give a Gaussian copula.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

NUM_PARAMETERS = 4

LOG_SCALE_LIMITS = (-5.0, 3.0)

TAIL_LIMITS = (0.35, 2.0)
"""Bounds of δ: below 1 tails are heavier than those of a normal, above 1 lighter."""

SKEW_LIMIT = 2.0

ARGUMENT_LIMIT = 6.0
"""Bound of δ asinh((x - μ) / σ) - ε, for finite gradients: |z| below 202."""


class SinhArcsinh(NamedTuple):
    """The distribution, of raw outputs of a network. Shape of each parameter: (...).

    Attributes:
        location: μ.
        scale: σ.
        skew: ε.
        tail: δ.
    """

    location: Tensor
    scale: Tensor
    skew: Tensor
    tail: Tensor

    @classmethod
    def of_raw(cls, raw: Tensor, location: Tensor | float = 0.0, log_scale: Tensor | float = 0.0) -> SinhArcsinh:
        """Map raw outputs to parameters within their bounds.

        Args:
            raw: Shape: (..., 4).
            location: added to the raw one. Shape: (...).
            log_scale: added to the raw one. Shape: (...).
        """
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
        """Return the log-density. Shape: (...)."""
        argument, standard = self._argument(value), (value - self.location) / self.scale
        steepness = self.tail.log() + argument.cosh().log() - self.scale.log() - 0.5 * torch.log1p(standard.square())
        return steepness - 0.5 * argument.sinh().square() - 0.5 * math.log(2.0 * math.pi)

    def drawn(self, normal: Tensor) -> Tensor:
        """Return the values of standard normal numbers. Shape: (...)."""
        return torch.addcmul(self.location, self.scale, ((normal.asinh() + self.skew) / self.tail).sinh())

    def _argument(self, value: Tensor) -> Tensor:
        standard = (value - self.location) / self.scale
        return (self.tail * standard.asinh() - self.skew).clamp(-ARGUMENT_LIMIT, ARGUMENT_LIMIT)
