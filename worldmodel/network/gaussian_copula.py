"""Gaussian copula over the symbols of a day, from correlation matrices whose sizes are learned.

The matrix of a quantity is w₀ I + w₁ C + w₂ 11ᵀ with weights that sum to one: C is estimated from the days before, the
others let likelihood lower all correlations and pull them together.
"""

from __future__ import annotations

import torch
from torch import Tensor


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


def copula_log_density(factor: Tensor, normal: Tensor, present: Tensor) -> Tensor:
    """Return the log-density of correlated standard normals over that of independent ones.

    Args:
        factor: lower Cholesky factor of their correlation, with absent ones decorrelated. Shape: (..., K, K).
        normal: standard normal numbers. Shape: (..., K).
        present: whether a number counts. Shape: (..., K), bool.

    Returns:
        Shape: (...).
    """
    normal = normal.where(present, 0.0)
    white = torch.linalg.solve_triangular(factor, normal.unsqueeze(-1), upper=False).squeeze(-1)
    spread = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (normal.square() - white.square()).sum(-1) - spread
