"""Output distributions of returns: mixtures of Student-t or normal distributions.

Draws are functions of given uniform numbers, so that a path does not depend on the batch. They take raw network outputs
as tensors or NumPy arrays: on a CPU NumPy has a fraction of PyTorch's overhead per operation on small arrays.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vecenv.core.random import box_muller
from vecenv.worldmodel.network.settings import Density

Array = Any
"""A tensor or a NumPy array; results have the type of the inputs."""

LOWEST_FREEDOM = 2.1
"""Lower bound of a Student-t component's degrees of freedom, above two for a finite variance."""

LOG_SCALE_LIMITS = (-5.0, 4.0)


def functions_of(array: Array) -> Any:  # noqa: ANN401, a module
    """Return the array module, torch or numpy, of an array."""
    return torch if isinstance(array, Tensor) else np


def degrees_of_freedom(raw: Array) -> Array:
    """Map a raw output to degrees of freedom. Shape: (...)."""
    raw = raw + 4.0
    if isinstance(raw, Tensor):
        return LOWEST_FREEDOM + functional.softplus(raw)
    positive: Array = LOWEST_FREEDOM + raw.clip(0.0, None) + np.log1p(np.exp(-abs(raw)))
    return positive


def taken(laws: Array, choice: Array) -> Array:
    """Return the parameters of a component that a uniform number selects. Shape: (n, C, ...) -> (n - 1, ...)."""
    module = functions_of(laws)
    share = module.exp(laws[0] - module.amax(laws[0], 0))
    # Compare with the sum of unnormalised weights, which saves a division.
    choice = choice * share.sum(0)
    numbers, below = laws[1:, -1], share[:-1].cumsum(0)
    for component in range(len(below) - 1, -1, -1):
        numbers = module.where(choice < below[component], laws[1:, component], numbers)
    return numbers


class StudentTMixture(NamedTuple):
    """Mixture of C Student-t laws of raw weights, locations, scales and degrees of freedom. Shape: (..., 4 C)."""

    parameters: Tensor

    @staticmethod
    def num_parameters(components: int) -> int:
        return 4 * components

    def mean(self) -> Tensor:
        return _mean(self.parameters.unflatten(-1, (4, -1)))

    def log_prob(self, value: Tensor) -> Tensor:
        weight, location, log_scale, freedom = self.parameters.unflatten(-1, (4, -1)).unbind(-2)
        freedom, log_scale = degrees_of_freedom(freedom), log_scale.clamp(*LOG_SCALE_LIMITS)
        half, standard = 0.5 * freedom, (value.unsqueeze(-1) - location) * (-log_scale).exp()
        constant = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * torch.log(math.pi * freedom)
        density = constant - log_scale - (half + 0.5) * torch.log1p(standard.square() / freedom)
        return torch.logsumexp(functional.log_softmax(weight, -1) + density, dim=-1)

    @staticmethod
    def noise(radial: Tensor, angular: Tensor) -> tuple[Tensor, Tensor]:
        """Turn two uniform numbers into the noise of a draw, a logarithm and a cosine. Shape of each: (...)."""
        return torch.log(radial), torch.cos((2.0 * math.pi) * angular)

    @staticmethod
    def draw_raw(raw: Array, choice: Array, log_radial: Array, cosine: Array) -> Array:
        """Draw from raw parameters (4 C, ...), a uniform number in (0, 1) and `noise`. Shape: (...).

        The method is that of `vecenv.core.random.student_t`.
        """
        module = functions_of(raw)
        location, log_scale, freedom = taken(raw.reshape(4, -1, *raw.shape[1:]), choice)
        freedom = degrees_of_freedom(freedom)
        radius = module.sqrt(freedom * module.expm1(-2.0 / freedom * log_radial))
        return location + module.exp(log_scale.clip(*LOG_SCALE_LIMITS)) * (radius * cosine)


class GaussianMixture(NamedTuple):
    """Mixture of C normal distributions of raw weights, locations and scales. Shape: (..., 3 C)."""

    parameters: Tensor

    @staticmethod
    def num_parameters(components: int) -> int:
        return 3 * components

    def mean(self) -> Tensor:
        return _mean(self.parameters.unflatten(-1, (3, -1)))

    def log_prob(self, value: Tensor) -> Tensor:
        weight, location, log_scale = self.parameters.unflatten(-1, (3, -1)).unbind(-2)
        log_scale = log_scale.clamp(*LOG_SCALE_LIMITS)
        standard = (value.unsqueeze(-1) - location) * (-log_scale).exp()
        density = -0.5 * standard.square() - log_scale - 0.5 * math.log(2.0 * math.pi)
        return torch.logsumexp(functional.log_softmax(weight, -1) + density, dim=-1)

    @staticmethod
    def noise(radial: Tensor, angular: Tensor) -> tuple[Tensor]:
        return (box_muller(radial, angular)[0],)

    @staticmethod
    def draw_raw(raw: Array, choice: Array, normal: Array) -> Array:
        location, log_scale = taken(raw.reshape(3, -1, *raw.shape[1:]), choice)
        return location + functions_of(raw).exp(log_scale.clip(*LOG_SCALE_LIMITS)) * normal


SignedMixture = StudentTMixture | GaussianMixture

MIXTURES: dict[Density, type[SignedMixture]] = {"student-t": StudentTMixture, "gaussian": GaussianMixture}
"""Mixtures of signed numbers by component family."""


class Stretched(NamedTuple):
    """Affine transform of a mixture: shift + exp(log_stretch) × its variable. Shape of both numbers: (...)."""

    mixture: SignedMixture
    shift: Tensor
    log_stretch: Tensor

    def mean(self) -> Tensor:
        return torch.addcmul(self.shift, self.log_stretch.exp(), self.mixture.mean())

    def log_prob(self, value: Tensor) -> Tensor:
        return self.mixture.log_prob((value - self.shift) * (-self.log_stretch).exp()) - self.log_stretch

    def draw(self, choice: Tensor, *noise: Tensor) -> Tensor:
        drawn: Tensor = self.mixture.draw_raw(self.mixture.parameters.movedim(-1, 0), choice, *noise)
        return torch.addcmul(self.shift, self.log_stretch.exp(), drawn)


def _mean(laws: Tensor) -> Tensor:
    return (laws[..., 0, :].softmax(-1) * laws[..., 1, :]).sum(-1)
