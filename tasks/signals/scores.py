"""Sentiment in actions and risk in rewards: the formulas of one account."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.market.panels import NEUTRAL


def moved_by_sentiment(action: Tensor, sentiment: Tensor, strength: Tensor) -> Tensor:
    """Return actions made larger where the news agree with them, and smaller where they do not.

    a (1 + s (u - 3) sign a), FinRL-DeepSeek (Benhenda, arXiv 2502.07393, 2025), section on LLM-infused PPO, with a
    strength for both signs.

    Args:
        action: Shape: (K,), float32.
        sentiment: scores, neutral where there is none. Shape: (K,), float32.
        strength: change per point. Shape: (), float32.

    Returns:
        Shape: (K,), float32.
    """
    # The product of two single-precision numbers is exact here, so it does not matter whether it is fused with the sum.
    change = strength.double() * (sentiment - NEUTRAL).double()
    return action * torch.where(action < 0, 1.0 - change, 1.0 + change).to(torch.float32)


def risk_level(holdings: Tensor, close: Tensor, risk: Tensor, strength: Tensor) -> Tensor:
    """Return the risk level of a portfolio: the mean of 1 + s (q - 3), weighted by the value of its positions.

    Args:
        holdings: shares, negative when short. Shape: (K,).
        close: prices in any unit. Shape: (K,).
        risk: scores, neutral where there is none. Shape: (K,).
        strength: change per point. Shape: ().

    Returns:
        1 without holdings. Shape: (), float32.
    """
    worth = holdings.double().abs() * close.double()
    total = worth.sum(-1)
    levels = 1.0 + strength.double() * (risk.double() - NEUTRAL)
    mean = (worth * levels).sum(-1) / torch.where(total > 0, total, 1.0)
    # Rounded at the end: sums of different order are equal then, eager and compiled.
    return torch.where(total > 0, mean, 1.0).to(torch.float32)


def weighed(reward: Tensor, level: Tensor, published: bool) -> Tensor:
    """Return a reward weighed by a risk level above 0: gains divided, losses multiplied, or both divided.

    Args:
        reward: Shape: any.
        level: Shape: as ``reward``.
        published: divide losses too.
    """
    level = level.to(reward.dtype)
    return reward / level if published else torch.where(reward > 0, reward / level, reward * level)
