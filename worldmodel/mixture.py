"""Output distributions: mixtures of Student-t or normal laws for signed numbers, of log-normals with an atom for wicks.

Draws are functions of uniform numbers that the caller brings, so that a path is the same whatever the batch.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from vecenv.random import box_muller, student_t

Density = Literal["student-t", "gaussian"]
"""Laws that a mixture for signed numbers may have."""

LOWEST_FREEDOM = 2.1
"""Degrees of freedom of a Student-t component stay above two, so that its variance is finite."""

LOG_SCALE_LIMITS = (-5.0, 4.0)


class StudentTMixture(NamedTuple):
    """Mixture of C Student-t distributions.

    Attributes:
        log_weight: normalised logarithms of the weights. Shape: (..., C).
        location: Shape: (..., C).
        log_scale: Shape: (..., C).
        freedom: degrees of freedom. Shape: (..., C).
    """

    log_weight: Tensor
    location: Tensor
    log_scale: Tensor
    freedom: Tensor

    @staticmethod
    def num_parameters(components: int) -> int:
        """Numbers that `from_parameters` takes for C components."""
        return 4 * components

    @classmethod
    def from_parameters(cls, parameters: Tensor) -> StudentTMixture:
        """Read raw outputs of a network. Shape: (..., 4 C)."""
        weight, location, log_scale, freedom = parameters.unflatten(-1, (4, -1)).unbind(-2)
        return cls(
            functional.log_softmax(weight, -1),
            location,
            log_scale.clamp(*LOG_SCALE_LIMITS),
            LOWEST_FREEDOM + functional.softplus(freedom + 4.0),
        )

    def shifted(self, location: Tensor, log_scale: Tensor) -> StudentTMixture:
        """Return the mixture of location + exp(log_scale) times the variable. Shape of both: (...)."""
        return _shifted(self, location, log_scale)

    def mean(self) -> Tensor:
        """Return the mean. Shape: (...)."""
        return (self.log_weight.exp() * self.location).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density. Shape: (...)."""
        standard = (value.unsqueeze(-1) - self.location) * (-self.log_scale).exp()
        half = 0.5 * self.freedom
        constant = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * torch.log(math.pi * self.freedom)
        density = constant - self.log_scale - (half + 0.5) * torch.log1p(standard.square() / self.freedom)
        return torch.logsumexp(self.log_weight + density, dim=-1)

    def draw(self, choice: Tensor, radial: Tensor, angular: Tensor) -> Tensor:
        """Draw from three uniform numbers in (0, 1). Shape: (...)."""
        component = _chosen(self.log_weight, choice).unsqueeze(-1).expand(*choice.shape, 1, 3)
        laws = torch.stack([self.location, self.log_scale, self.freedom], dim=-1)
        location, log_scale, freedom = laws.gather(-2, component).squeeze(-2).unbind(-1)
        return location + log_scale.exp() * student_t(radial, angular, freedom, unit_variance=False)


class GaussianMixture(NamedTuple):
    """Mixture of C normal distributions.

    Attributes:
        log_weight: normalised logarithms of the weights. Shape: (..., C).
        location: Shape: (..., C).
        log_scale: Shape: (..., C).
    """

    log_weight: Tensor
    location: Tensor
    log_scale: Tensor

    @staticmethod
    def num_parameters(components: int) -> int:
        """Numbers that `from_parameters` takes for C components."""
        return 3 * components

    @classmethod
    def from_parameters(cls, parameters: Tensor) -> GaussianMixture:
        """Read raw outputs of a network. Shape: (..., 3 C)."""
        weight, location, log_scale = parameters.unflatten(-1, (3, -1)).unbind(-2)
        return cls(functional.log_softmax(weight, -1), location, log_scale.clamp(*LOG_SCALE_LIMITS))

    def shifted(self, location: Tensor, log_scale: Tensor) -> GaussianMixture:
        """Return the mixture of location + exp(log_scale) times the variable. Shape of both: (...)."""
        return _shifted(self, location, log_scale)

    def mean(self) -> Tensor:
        """Return the mean. Shape: (...)."""
        return (self.log_weight.exp() * self.location).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density. Shape: (...)."""
        standard = (value.unsqueeze(-1) - self.location) * (-self.log_scale).exp()
        density = -0.5 * standard.square() - self.log_scale - 0.5 * math.log(2.0 * math.pi)
        return torch.logsumexp(self.log_weight + density, dim=-1)

    def draw(self, choice: Tensor, radial: Tensor, angular: Tensor) -> Tensor:
        """Draw from three uniform numbers in (0, 1). Shape: (...)."""
        component = _chosen(self.log_weight, choice)
        location, log_scale = (part.gather(-1, component).squeeze(-1) for part in (self.location, self.log_scale))
        return location + log_scale.exp() * box_muller(radial, angular)[0]


SignedT = TypeVar("SignedT", StudentTMixture, GaussianMixture)
SignedMixture = StudentTMixture | GaussianMixture

MIXTURES: dict[Density, type[SignedMixture]] = {"student-t": StudentTMixture, "gaussian": GaussianMixture}
"""Of signed numbers, by law."""


class WickMixture(NamedTuple):
    """A wick: zero with some probability, else a mixture of C log-normal distributions.

    Attributes:
        zero: logit of the probability of zero. Shape: (...).
        log_weight: normalised logarithms of the weights. Shape: (..., C).
        location: mean of the logarithm. Shape: (..., C).
        log_scale: logarithm of the logarithm's standard deviation. Shape: (..., C).
    """

    zero: Tensor
    log_weight: Tensor
    location: Tensor
    log_scale: Tensor

    @staticmethod
    def num_parameters(components: int) -> int:
        """Numbers that `from_parameters` takes for C components."""
        return 1 + 3 * components

    @classmethod
    def from_parameters(cls, parameters: Tensor) -> WickMixture:
        """Read raw outputs of a network. Shape: (..., 1 + 3 C)."""
        weight, location, log_scale = parameters[..., 1:].unflatten(-1, (3, -1)).unbind(-2)
        return cls(
            parameters[..., 0] - 3.0,
            functional.log_softmax(weight, -1),
            location - 1.0,
            log_scale.clamp(-3.0, 1.5),
        )

    def log_prob(self, value: Tensor, smallest: float = 1e-4) -> Tensor:
        """Return the log-probability of a wick of about zero, or the log-density of a longer one. Shape: (...).

        Args:
            value: Shape: (...).
            smallest: numbers below count as zero, which rounding of prices makes them.
        """
        scale = (-self.log_scale).exp()
        least = torch.special.ndtr((math.log(smallest) - self.location) * scale).clamp(min=1e-30).log()
        log_positive = functional.logsigmoid(-self.zero)
        zero = torch.logaddexp(
            functional.logsigmoid(self.zero), log_positive + torch.logsumexp(self.log_weight + least, dim=-1)
        )
        log_value = value.clamp(min=smallest).log()
        standard = (log_value.unsqueeze(-1) - self.location) * scale
        density = -0.5 * standard.square() - self.log_scale - 0.5 * math.log(2.0 * math.pi)
        positive = torch.logsumexp(self.log_weight + density, dim=-1) - log_value + log_positive
        return torch.where(value < smallest, zero, positive)

    def draw(self, choice: Tensor, normal: Tensor, atom: Tensor) -> Tensor:
        """Draw from a uniform number, a standard normal one, and another uniform one. Shape: (...)."""
        component = _chosen(self.log_weight, choice)
        location = self.location.gather(-1, component).squeeze(-1)
        scale = self.log_scale.gather(-1, component).squeeze(-1).exp()
        return torch.where(atom < torch.sigmoid(self.zero), 0.0, (location + scale * normal).exp())


def _shifted(mixture: SignedT, location: Tensor, log_scale: Tensor) -> SignedT:
    scale = log_scale.exp().unsqueeze(-1)
    return mixture._replace(
        location=location.unsqueeze(-1) + scale * mixture.location,
        log_scale=mixture.log_scale + log_scale.unsqueeze(-1),
    )


def _chosen(log_weight: Tensor, choice: Tensor) -> Tensor:
    """Return the component that a uniform number falls on. Shapes: (..., C), (...) -> (..., 1)."""
    edges = log_weight.exp().cumsum(-1)[..., :-1]
    return (choice.unsqueeze(-1) >= edges).sum(-1, keepdim=True)
