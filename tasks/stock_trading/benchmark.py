"""Benchmark portfolio that tilts start from and excess returns are measured against.

``equal_weight`` is restored every day to the same value of every symbol that can trade, and keeps its shares of those
that cannot; ``buy_and_hold`` bought the same value of each at the start of the episode and keeps the shares. Both are
costless and hold no cash.
"""

from __future__ import annotations

import torch
from torch import Tensor

WHOLE = 2.0**44
"""Parts of a portfolio's value in which its positions are counted: whole numbers, whose sums are exact in any order."""


def held_portfolio(close: Tensor, start_close: Tensor, start_tradable: Tensor) -> Tensor:
    """Return the value of each position bought and held since the start, per unit. Shape: (K,), as the closes."""
    bought = start_tradable & (start_close > 0)
    growth = close / torch.where(bought, start_close, 1.0)
    return torch.where(bought, growth, 0.0)


def equal_weight_growth(close: Tensor, next_close: Tensor, tradable: Tensor) -> Tensor:
    """Return the growth of one day of equally weighted tradable symbols; 1 without any. Shapes: (..., K) -> (...).

    It is the portfolio's on a market without gaps. In float64, so that eager and compiled results are equal after
    rounding to float32.
    """
    change = torch.where(tradable, next_close.double() / close.double().clamp(min=1e-12), 0.0)
    count = tradable.sum(-1)
    return torch.where(count > 0, change.sum(-1) / count.clamp(min=1), 1.0)


def restored_growth(parts: Tensor, close: Tensor, next_close: Tensor, tradable: Tensor) -> tuple[Tensor, Tensor]:
    """Return the growth of one day of a portfolio restored to equal weights at its start, and what it holds at the end.

    What it holds of symbols that cannot trade stays as it is; the rest is spread equally over those that can. ``parts``
    are its positions before that, in parts of `WHOLE`; what they lack of it is cash. Shapes: (), (K,), float64.
    """
    free = WHOLE - torch.where(tradable, 0.0, parts).sum(-1, keepdim=True)
    held = torch.where(tradable, torch.floor(free / tradable.sum(-1, keepdim=True).clamp(min=1)), parts)
    change = next_close.double() / close.double().clamp(min=1e-12)
    worth = torch.where(held > 0, torch.floor(held * change), 0.0)
    total = WHOLE - held.sum(-1) + worth.sum(-1)
    return total / WHOLE, torch.floor(worth * WHOLE / total)


def held_growth(close: Tensor, next_close: Tensor, start_close: Tensor, start_tradable: Tensor) -> Tensor:
    """Return the growth of one day of the portfolio bought at the start; 1 if nothing was. Shape: (), float64."""
    bought = start_tradable & (start_close > 0)
    shares = torch.where(bought, 1.0 / torch.where(bought, start_close, 1.0).double(), 0.0)
    value, next_value = (shares * close.double()).sum(-1), (shares * next_close.double()).sum(-1)
    return torch.where(value > 0, next_value / torch.where(value > 0, value, 1.0), 1.0)
