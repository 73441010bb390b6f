"""Gaussian copula over the symbols of a day, from correlation matrices whose sizes are learned.

The matrix of a quantity is w₀ I + w₁ C + w₂ 11ᵀ with weights that sum to one: C is estimated from the days before, the
others let likelihood lower all correlations and pull them together. Common shocks may be mixed in, which the copula of
one matrix has no room for; the numbers of a symbol are then a mixture of normals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.worldmodel.network.common_shocks import CommonShocks


def mixed_correlation(correlation: Tensor, weights: Tensor) -> Tensor:
    """Return w₀ I + w₁ C + w₂ 11ᵀ.

    Args:
        correlation: C. Shape: (..., K, K).
        weights: of the three parts, not negative, with sum one. Shape: (..., 3).
    """
    identity = torch.eye(correlation.shape[-1], dtype=correlation.dtype, device=correlation.device)
    own, estimated, common = weights[..., None, None].unbind(-3)
    # Exactly one on the diagonal, whatever the rounding of the weights' sum.
    return torch.where(identity > 0, 1.0, estimated * correlation + common + own * identity)


def copula_log_density(factor: Tensor, normal: Tensor, present: Tensor, shocks: CommonShocks | None = None) -> Tensor:
    """Return the log-density of correlated normals over that of independent standard ones.

    Args:
        factor: lower Cholesky factor of their correlation, with absent ones decorrelated. Shape: (..., K, K).
        normal: their numbers. Shape: (..., K).
        present: whether a number counts. Shape: (..., K), bool.
        shocks: common ones. Batch: broadcast to (...).

    Returns:
        Shape: (...).
    """
    normal = normal.where(present, 0.0)
    both = torch.stack([normal, present.to(normal.dtype)], dim=-1)
    white, ones = torch.linalg.solve_triangular(factor, both, upper=False).unbind(-1)
    spread = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    density = 0.5 * (normal.square() - white.square()).sum(-1) - spread
    return density if shocks is None else density + shocks.joint_log_density(white, ones)
