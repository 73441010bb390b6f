"""Numbers drawn from mixtures whose raw parameters come first, of tensors or of NumPy arrays alike.

On a CPU an operation on a few numbers costs NumPy a fraction of what it costs PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Array = Any
"""A tensor or a NumPy array; what is made of either is of the same kind."""

LOWEST_FREEDOM = 2.1
"""Degrees of freedom of a Student-t component stay above two, so that its variance is finite."""

LOG_SCALE_LIMITS = (-5.0, 4.0)


def functions_of(array: Array) -> Any:  # noqa: ANN401, a module
    """Return the module whose functions take such an array."""
    return torch if isinstance(array, Tensor) else np


def degrees_of_freedom(raw: Array) -> Array:
    """Return the degrees of freedom that a raw number stands for. Shape: (...)."""
    raw = raw + 4.0
    if isinstance(raw, Tensor):
        return LOWEST_FREEDOM + functional.softplus(raw)
    positive: Array = LOWEST_FREEDOM + raw.clip(0.0, None) + np.log1p(np.exp(-abs(raw)))
    return positive


def taken(laws: Array, choice: Array) -> Array:
    """Return the numbers, but its weight, of the component that a uniform number falls on.

    Args:
        laws: raw numbers of C components, the weights first. Shape: (n, C, ...).
        choice: uniform in (0, 1). Shape: (...).

    Returns:
        Shape: (n - 1, ...).
    """
    module = functions_of(laws)
    share = module.exp(laws[0] - module.amax(laws[0], 0))
    # Against the sum of the shares: this spares a division.
    choice = choice * share.sum(0)
    numbers, below = laws[1:, -1], share[:-1].cumsum(0)
    for component in range(len(below) - 1, -1, -1):
        numbers = module.where(choice < below[component], laws[1:, component], numbers)
    return numbers


def normal_draw(raw: Array, choice: Array, normal: Array) -> Array:
    """Draw from a mixture of normal laws.

    Args:
        raw: C numbers each for weights, locations and scales. Shape: (3 C, ...).
        choice: uniform in (0, 1). Shape: (...).
        normal: standard normal. Shape: (...).
    """
    location, log_scale = taken(raw.reshape(3, -1, *raw.shape[1:]), choice)
    return location + functions_of(raw).exp(log_scale.clip(*LOG_SCALE_LIMITS)) * normal


def student_t_draw(raw: Array, choice: Array, log_radial: Array, cosine: Array) -> Array:
    """Draw from a mixture of Student-t laws, by the method of `vecenv.core.random.student_t`.

    Args:
        raw: C numbers each for weights, locations, scales and degrees of freedom. Shape: (4 C, ...).
        choice: uniform in (0, 1). Shape: (...).
        log_radial: logarithm of a uniform number in (0, 1]. Shape: (...).
        cosine: of a uniform angle. Shape: (...).
    """
    module = functions_of(raw)
    location, log_scale, freedom = taken(raw.reshape(4, -1, *raw.shape[1:]), choice)
    freedom = degrees_of_freedom(freedom)
    radius = module.sqrt(freedom * module.expm1(-2.0 / freedom * log_radial))
    return location + module.exp(log_scale.clip(*LOG_SCALE_LIMITS)) * (radius * cosine)
