"""The common level of correlations, with a fast memory, mixed into matrices whose memory is slow.

How two symbols differ from the other pairs takes hundreds of days to tell, but one day has a product of every pair, so
the mean correlation of all pairs can be followed within weeks. It is estimated on along a generated path, while the
matrix stays that of the path's beginning: the level returns to the matrix's own, and the differences of pairs do not
dissolve into noise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LEVEL_DECAY = 0.5 ** (1 / 45)
"""Decay of the exponential means, a half-life of 45 days."""

LEVEL_SHARES = (0.4, 0.5, 0.5, 0.2)
"""Shares of the fast level for returns, gaps, wicks and volumes of a market whose own are not known."""

LEVEL_STRIDE = 5
"""Days between uses of a newer level."""

LEVEL_LIMITS = (0.0, 0.95)
"""Bounds of the fast level."""

PRIOR_CORRELATION = 0.3
"""All correlations before the first day."""

VALUE_LIMIT = 4.0
"""Clipping bound of standardised values, so that one day dominates neither a matrix nor a level."""


class CommonMoves(NamedTuple):
    """Exponential means of a day's mean product of two symbols, and of its mean square. Shape of each: (..., Q)."""

    products: Tensor
    squares: Tensor

    @classmethod
    def at(cls, level: Tensor) -> CommonMoves:
        """Return the means of unit squares at a level of correlation."""
        return cls(level, torch.ones_like(level))

    @classmethod
    def of_day(cls, values: Tensor, valid: Tensor) -> CommonMoves:
        """Return a day's own means, over the symbols with a move. Shapes: (..., K, Q), (..., K)."""
        limited = values.clamp(-VALUE_LIMIT, VALUE_LIMIT) * valid.unsqueeze(-1)
        count, squares = valid.sum(-1, keepdim=True).to(values.dtype), limited.square().sum(-2)
        products = (limited.sum(-2).square() - squares) / (count * (count - 1.0)).clamp(min=1.0)
        return cls(products, squares / count.clamp(min=1.0))

    def after(self, day: CommonMoves, valid: Tensor) -> CommonMoves:
        """Return the means after a day, unchanged by one with fewer than two moves. Shape of `valid`: (..., K)."""
        some = valid.sum(-1, keepdim=True) > 1
        pairs = zip(self, day, strict=True)
        return CommonMoves(*(torch.where(some, torch.lerp(new, old, LEVEL_DECAY), old) for old, new in pairs))

    def level(self) -> Tensor:
        """Return the fast level of correlations, within `LEVEL_LIMITS`. Shape: (..., Q)."""
        return (self.products / self.squares.clamp(min=1e-9)).clamp(*LEVEL_LIMITS)


def mean_correlation(matrices: Tensor) -> Tensor:
    """Return the mean over pairs, 0 of a single symbol. Shape: (..., K, K) -> (...)."""
    size = matrices.shape[-1]
    return (matrices.sum((-2, -1)) - matrices.diagonal(dim1=-2, dim2=-1).sum(-1)) / max(size * (size - 1), 1)


def level_change(mean: Tensor, fast: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and offset that bring correlations of a mean to (1 - share) times it and `share` times a fast level.

    A lower mean scales all correlations; a higher one mixes in a common one of 1. Both keep a matrix positive definite;
    neither is negative, and their sum is at most 1. Shape of each: (...).
    """
    wanted = mean + share * (fast.to(mean) - mean)
    raised = ((wanted - mean) / (1.0 - mean)).clamp(0.0, 1.0)
    # Matrices that are not positive in the mean are not lowered.
    kept = torch.where(mean > 0.0, (wanted / mean).clamp(0.0, 1.0), 1.0)
    return (1.0 - raised) * kept, raised


def rescaled(matrices: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """Return matrices of which each correlation c is ``scale * c + offset``. Shapes: (..., K, K), (...), (...).

    In two passes: the matrices of a block of paths of hundreds of symbols do not fit in a cache.
    """
    changed = torch.addcmul(offset[..., None, None], scale[..., None, None], matrices)
    changed.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    return changed


def with_level(matrices: Tensor, fast: Tensor, share: Tensor) -> Tensor:
    """Return correlation matrices whose mean is (1 - share) times their own and `share` times a fast level.

    A share of 0 keeps their digits. Shapes: (..., K, K), (...), (...).
    """
    return rescaled(matrices, *level_change(mean_correlation(matrices), fast, share))
