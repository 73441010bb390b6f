"""Sentiment in actions and risk in rewards: the formulas of one account."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.learn.cppo import risk_weighed
from vecenv.market.panels import NEUTRAL

MOVE_STEPS = 2.0**30
"""Changes of an action are multiples of 2⁻³⁰. Rounding keeps a compiler from fusing their product with a sum."""

RISK_STEPS = 2.0**20
"""Weighted risks of whole shares are multiples of 2⁻²⁰, so that their sum is exact in single precision in any order."""


def moved_by_sentiment(action: Tensor, sentiment: Tensor, strength: Tensor) -> Tensor:
    """Return actions made larger where the news agree with them, and smaller where they do not. Shape: (K,), float32.

    a (1 + s (u - 3) sign a), FinRL-DeepSeek (Benhenda, arXiv 2502.07393, 2025), section on LLM-infused PPO, with a
    strength for both signs, the change per point. Sentiment is neutral where there is none. All in single precision:
    float64 in the wide loop over symbols costs twice as much.
    """
    change = torch.round(strength * (sentiment - NEUTRAL) * MOVE_STEPS) * (1.0 / MOVE_STEPS)
    return action * torch.where(action < 0, 1.0 - change, 1.0 + change)


def risk_level(
    holdings: Tensor, worth: Tensor, risk_worth: Tensor, strength: Tensor, whole_shares: bool = True
) -> Tensor:
    """Return the risk level of a portfolio: the mean of 1 + s (q - 3), weighted by its positions' values. Shape: ().

    ``holdings`` are shares, (K,), negative when short; ``worth`` is the value of all positions, short ones as positive,
    in the unit of ``risk_worth``; ``strength`` the change per point. ``whole_shares`` rounds each position's part to
    `RISK_STEPS`; else the level has a gradient. 1 without holdings.
    """
    worth = worth.double()
    scale = torch.where(worth > 0, RISK_STEPS / torch.where(worth > 0, worth, 1.0), 0.0).to(risk_worth.dtype)
    parts = holdings.abs().to(risk_worth.dtype) * risk_worth * scale
    mean = (torch.round(parts) if whole_shares else parts).sum(-1).double() / RISK_STEPS
    return (1.0 + strength.double() * mean).to(torch.float32)


def risk_worth(close: Tensor, risk: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return price times risk above neutral, what a share adds to a portfolio's weighted risk. Shape: as ``close``."""
    return (close.double() * (risk.double() - NEUTRAL)).to(dtype)


def weighed(reward: Tensor, level: Tensor, published: bool) -> Tensor:
    """Return a reward weighed by a risk level above 0: gains divided, losses multiplied (divided if ``published``)."""
    level = level.to(reward.dtype)
    return reward / level if published else risk_weighed(reward, level)
