"""Rank correlations of signals and moves: the information coefficient."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_ranks(values: Tensor, known: Tensor) -> Tensor:
    """Return the rank of each known value from 0 on, equal ones with their mean rank; of no meaning elsewhere.

    Values are finite. Shapes: (..., n) -> (..., n), float64.
    """
    ordered, place = torch.where(known, values.double(), torch.inf).sort(dim=-1, stable=True)
    number = torch.arange(values.shape[-1], device=values.device, dtype=torch.float64).expand(ordered.shape)
    differs = ordered[..., 1:] != ordered[..., :-1]
    edge = torch.ones_like(ordered[..., :1], dtype=torch.bool)
    first = torch.where(torch.cat([edge, differs], dim=-1), number, -torch.inf).cummax(-1).values
    ends = torch.where(torch.cat([differs, edge], dim=-1), number, torch.inf)
    last = ends.flip(-1).cummin(-1).values.flip(-1)
    return torch.zeros_like(ordered).scatter(-1, place, (first + last) / 2)


def rank_correlation(first: Tensor, second: Tensor, known: Tensor) -> Tensor:
    """Return Spearman's rank correlation of the known pairs, 0 where either is constant. Shapes: (..., n) -> (...).

    Spearman, "The proof and measurement of association between two things", American Journal of Psychology 15(1), 1904.
    """
    count = known.sum(-1, keepdim=True).clamp(min=1)

    def centred(values: Tensor) -> Tensor:
        ranks = torch.where(known, mean_ranks(values, known), 0.0)
        return torch.where(known, ranks - ranks.sum(-1, keepdim=True) / count, 0.0)

    x, y = centred(first), centred(second)
    return cosine((x * y).sum(-1), x.square().sum(-1), y.square().sum(-1))


def cosine(product: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return sum(x y) / sqrt(sum(x^2) sum(y^2)) from these sums, 0 where there is no size, in [-1, 1]."""
    scale = first * second
    there = scale > 0
    return torch.where(there, product / torch.where(there, scale, 1.0).sqrt(), 0.0).clamp(-1.0, 1.0)
