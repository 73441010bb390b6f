"""Sampling from mixtures given raw network outputs, for tensors and NumPy arrays.

On a CPU NumPy has a fraction of PyTorch's overhead per operation on small arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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
    """Select a component by a uniform number and return its parameters, without the weight.

    Args:
        laws: raw numbers of C components, the weights first. Shape: (n, C, ...).
        choice: uniform in (0, 1). Shape: (...).

    Returns:
        Shape: (n - 1, ...).
    """
    module = functions_of(laws)
    share = module.exp(laws[0] - module.amax(laws[0], 0))
    # Compare with the sum of unnormalised weights, which saves a division.
    choice = choice * share.sum(0)
    numbers, below = laws[1:, -1], share[:-1].cumsum(0)
    for component in range(len(below) - 1, -1, -1):
        numbers = module.where(choice < below[component], laws[1:, component], numbers)
    return numbers


def normal_draw(raw: Array, choice: Array, normal: Array) -> Array:
    """Draw from a mixture of normal distributions.

    Args:
        raw: C numbers each for weights, locations and scales. Shape: (3 C, ...).
        choice: uniform in (0, 1). Shape: (...).
        normal: standard normal. Shape: (...).
    """
    location, log_scale = taken(raw.reshape(3, -1, *raw.shape[1:]), choice)
    return location + functions_of(raw).exp(log_scale.clip(*LOG_SCALE_LIMITS)) * normal


def student_t_draw(raw: Array, choice: Array, log_radial: Array, cosine: Array) -> Array:
    """Draw from a mixture of Student-t distributions, by the method of `vecenv.core.random.student_t`.

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
