"""Output distributions of returns: mixtures of Student-t or normal distributions.

Draws are functions of given uniform numbers, so that a path does not depend on the batch.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from vecenv.core.random import box_muller
from vecenv.worldmodel.network.component_draw import (
    LOG_SCALE_LIMITS,
    Array,
    degrees_of_freedom,
    normal_draw,
    student_t_draw,
)

Density = Literal["student-t", "gaussian"]
"""Component families of mixtures for signed numbers."""


class StudentTMixture(NamedTuple):
    """Mixture of C Student-t distributions, of raw outputs of a network.

    Attributes:
        parameters: C numbers each for weights, locations, scales and degrees of freedom. Shape: (..., 4 C).
    """

    parameters: Tensor

    @staticmethod
    def num_parameters(components: int) -> int:
        """Numbers of C components."""
        return 4 * components

    def mean(self) -> Tensor:
        """Return the mean. Shape: (...)."""
        return _mean(self.parameters.unflatten(-1, (4, -1)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density. Shape: (...)."""
        weight, location, log_scale, freedom = self.parameters.unflatten(-1, (4, -1)).unbind(-2)
        freedom, log_scale = degrees_of_freedom(freedom), log_scale.clamp(*LOG_SCALE_LIMITS)
        half, standard = 0.5 * freedom, (value.unsqueeze(-1) - location) * (-log_scale).exp()
        constant = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * torch.log(math.pi * freedom)
        density = constant - log_scale - (half + 0.5) * torch.log1p(standard.square() / freedom)
        return torch.logsumexp(functional.log_softmax(weight, -1) + density, dim=-1)

    @staticmethod
    def noise(radial: Tensor, angular: Tensor) -> tuple[Tensor, Tensor]:
        """Turn two uniform numbers into the noise of a draw. Shape of each: (...)."""
        return torch.log(radial), torch.cos((2.0 * math.pi) * angular)

    @staticmethod
    def draw_raw(raw: Array, choice: Array, *noise: Array) -> Array:
        """Draw, as `student_t_draw`. Shape: (4 C, ...) -> (...)."""
        return student_t_draw(raw, choice, *noise)

    def draw(self, choice: Tensor, *noise: Tensor) -> Tensor:
        """Draw from a uniform number in (0, 1) and `noise`. Shape: (...)."""
        drawn: Tensor = self.draw_raw(self.parameters.movedim(-1, 0), choice, *noise)
        return drawn


class GaussianMixture(NamedTuple):
    """Mixture of C normal distributions, of raw outputs of a network.

    Attributes:
        parameters: C numbers each for weights, locations and scales. Shape: (..., 3 C).
    """

    parameters: Tensor

    @staticmethod
    def num_parameters(components: int) -> int:
        """Numbers of C components."""
        return 3 * components

    def mean(self) -> Tensor:
        """Return the mean. Shape: (...)."""
        return _mean(self.parameters.unflatten(-1, (3, -1)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density. Shape: (...)."""
        weight, location, log_scale = self.parameters.unflatten(-1, (3, -1)).unbind(-2)
        log_scale = log_scale.clamp(*LOG_SCALE_LIMITS)
        standard = (value.unsqueeze(-1) - location) * (-log_scale).exp()
        density = -0.5 * standard.square() - log_scale - 0.5 * math.log(2.0 * math.pi)
        return torch.logsumexp(functional.log_softmax(weight, -1) + density, dim=-1)

    @staticmethod
    def noise(radial: Tensor, angular: Tensor) -> tuple[Tensor]:
        """Turn two uniform numbers into the noise of a draw. Shape: (...)."""
        return (box_muller(radial, angular)[0],)

    @staticmethod
    def draw_raw(raw: Array, choice: Array, *noise: Array) -> Array:
        """Draw, as `normal_draw`. Shape: (3 C, ...) -> (...)."""
        return normal_draw(raw, choice, *noise)

    def draw(self, choice: Tensor, *noise: Tensor) -> Tensor:
        """Draw from a uniform number in (0, 1) and `noise`. Shape: (...)."""
        drawn: Tensor = self.draw_raw(self.parameters.movedim(-1, 0), choice, *noise)
        return drawn


SignedMixture = StudentTMixture | GaussianMixture

MIXTURES: dict[Density, type[SignedMixture]] = {"student-t": StudentTMixture, "gaussian": GaussianMixture}
"""Mixtures of signed numbers by component family."""


class Stretched(NamedTuple):
    """Affine transform of a mixture: shift + exp(log_stretch) × its variable.

    Attributes:
        mixture: of the variable.
        shift: Shape: (...).
        log_stretch: Shape: (...).
    """

    mixture: SignedMixture
    shift: Tensor
    log_stretch: Tensor

    def mean(self) -> Tensor:
        """Return the mean. Shape: (...)."""
        return torch.addcmul(self.shift, self.log_stretch.exp(), self.mixture.mean())

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density. Shape: (...)."""
        return self.mixture.log_prob((value - self.shift) * (-self.log_stretch).exp()) - self.log_stretch

    def draw(self, choice: Tensor, *noise: Tensor) -> Tensor:
        """Draw from a uniform number in (0, 1) and the mixture's noise. Shape: (...)."""
        return torch.addcmul(self.shift, self.log_stretch.exp(), self.mixture.draw(choice, *noise))


def _mean(laws: Tensor) -> Tensor:
    return (laws[..., 0, :].softmax(-1) * laws[..., 1, :]).sum(-1)
