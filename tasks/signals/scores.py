"""Sentiment in actions and risk in rewards: the formulas of one account."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.kernels.rewards import risk_weighed
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
    # Signed in single precision, where it is exact. So is the product in double precision, fused with the sum or not.
    agreed = torch.where(action < 0, NEUTRAL - sentiment, sentiment - NEUTRAL)
    return action * (1.0 + strength.double() * agreed.double()).to(torch.float32)


def risk_level(holdings: Tensor, worth: Tensor, risk_worth: Tensor, strength: Tensor) -> Tensor:
    """Return the risk level of a portfolio: the mean of 1 + s (q - 3), weighted by the value of its positions.

    Args:
        holdings: shares, negative when short. Shape: (K,).
        worth: value of all positions, short ones as positive, in the unit of ``risk_worth``. Shape: ().
        risk_worth: of a share, by `risk_worth`. Shape: (K,), float64.
        strength: change per point. Shape: ().

    Returns:
        1 without holdings. Shape: (), float32.
    """
    worth = worth.double()
    mean = (holdings.abs().double() * risk_worth).sum(-1) / torch.where(worth > 0, worth, 1.0)
    # Rounded at the end: sums of different order are equal then, eager and compiled.
    return (1.0 + strength.double() * mean).to(torch.float32)


def risk_worth(close: Tensor, risk: Tensor) -> Tensor:
    """Return price times risk above neutral, what a share adds to the weighted risk of a portfolio.

    Args:
        close: prices. Shape: any.
        risk: scores, neutral where there is none. Shape: as ``close``.

    Returns:
        Shape: as ``close``, float64.
    """
    return close.double() * (risk.double() - NEUTRAL)


def weighed(reward: Tensor, level: Tensor, published: bool) -> Tensor:
    """Return a reward weighed by a risk level above 0: gains divided, losses multiplied, or both divided.

    Args:
        reward: Shape: any.
        level: Shape: as ``reward``.
        published: divide losses too.
    """
    level = level.to(reward.dtype)
    return reward / level if published else risk_weighed(reward, level)
