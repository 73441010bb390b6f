"""Sentiment in actions and risk in rewards: the formulas of one account."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.kernels.rewards import risk_weighed
from vecenv.market.panels import NEUTRAL

MOVE_STEPS = 2.0**30
"""Changes of an action are multiples of 2⁻³⁰. Rounding keeps a compiler from fusing their product with a sum."""

RISK_STEPS = 2.0**20
"""Weighted risks of whole shares are multiples of 2⁻²⁰, so that their sum is exact in single precision in any order."""


def moved_by_sentiment(action: Tensor, sentiment: Tensor, strength: Tensor) -> Tensor:
    """Return actions made larger where the news agree with them, and smaller where they do not.

    a (1 + s (u - 3) sign a), FinRL-DeepSeek (Benhenda, arXiv 2502.07393, 2025), section on LLM-infused PPO, with a
    strength for both signs. All in single precision: float64 in the wide loop over symbols costs twice as much.

    Args:
        action: Shape: (K,), float32.
        sentiment: scores, neutral where there is none. Shape: (K,), float32.
        strength: change per point. Shape: (), float32.

    Returns:
        Shape: (K,), float32.
    """
    change = torch.round(strength * (sentiment - NEUTRAL) * MOVE_STEPS) * (1.0 / MOVE_STEPS)
    return action * torch.where(action < 0, 1.0 - change, 1.0 + change)


def risk_level(
    holdings: Tensor, worth: Tensor, risk_worth: Tensor, strength: Tensor, whole_shares: bool = True
) -> Tensor:
    """Return the risk level of a portfolio: the mean of 1 + s (q - 3), weighted by the value of its positions.

    Args:
        holdings: shares, negative when short. Shape: (K,).
        worth: value of all positions, short ones as positive, in the unit of ``risk_worth``. Shape: ().
        risk_worth: of a share, by `risk_worth`. Shape: (K,).
        strength: change per point. Shape: ().
        whole_shares: round each position's part to `RISK_STEPS`; else the level has a gradient.

    Returns:
        1 without holdings. Shape: (), float32.
    """
    worth = worth.double()
    scale = torch.where(worth > 0, RISK_STEPS / torch.where(worth > 0, worth, 1.0), 0.0).to(risk_worth.dtype)
    parts = holdings.abs().to(risk_worth.dtype) * risk_worth * scale
    mean = (torch.round(parts) if whole_shares else parts).sum(-1).double() / RISK_STEPS
    return (1.0 + strength.double() * mean).to(torch.float32)


def risk_worth(close: Tensor, risk: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return price times risk above neutral, what a share adds to the weighted risk of a portfolio.

    Args:
        close: prices. Shape: any.
        risk: scores, neutral where there is none. Shape: as ``close``.
        dtype: of the result.

    Returns:
        Shape: as ``close``.
    """
    return (close.double() * (risk.double() - NEUTRAL)).to(dtype)


def weighed(reward: Tensor, level: Tensor, published: bool) -> Tensor:
    """Return a reward weighed by a risk level above 0: gains divided, losses multiplied, or both divided.

    Args:
        reward: Shape: any.
        level: Shape: as ``reward``.
        published: divide losses too.
    """
    level = level.to(reward.dtype)
    return reward / level if published else risk_weighed(reward, level)
