"""Scores of risk made of prices, for markets whose documents have none."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE
from vecenv.market.panels import HIGHEST, LOWEST, NEUTRAL, SCORES, Panels
from vecenv.market.tape import MarketTape

WINDOW = 21
"""Days of the volatility, a month."""


def with_risk_of_prices(tape: MarketTape, ahead: bool) -> MarketTape:
    """Return a market whose scores of risk are the fifths of its symbols by volatility, and that has no other scores.

    Args:
        tape: the market.
        ahead: take the volatility of the month ahead, which nobody knows, instead of the month before.
    """
    volatility = month_volatility(tape, ahead)
    scores = torch.full((*volatility.shape, len(SCORES)), NEUTRAL, device=volatility.device)
    known = torch.zeros(scores.shape, dtype=torch.bool, device=volatility.device)
    risk = SCORES.index("risk")
    scores[..., risk], known[..., risk] = fifths(volatility), volatility.isfinite()
    return replace(tape, panels=Panels(scores, known))


def month_volatility(tape: MarketTape, ahead: bool) -> Tensor:
    """Return the root mean square of a month's daily log-returns, NaN without a whole month of trading.

    Args:
        tape: the market.
        ahead: of the days after each day, instead of those up to it.

    Returns:
        Shape: (P, T, K), float64.
    """
    close, tradable = tape.ohlcv[..., CLOSE].double(), tape.tradable
    both = tradable[:, 1:] & tradable[:, :-1]
    change = (close[:, 1:] / close[:, :-1]).log().where(both, torch.nan)
    month = change.square().unfold(1, WINDOW, 1).mean(-1).sqrt() if change.shape[1] >= WINDOW else change[:, :0]
    volatility = torch.full_like(close, torch.nan)
    # The n-th window has the returns of days n + 1 to n + WINDOW.
    first = 0 if ahead else WINDOW
    volatility[:, first : first + month.shape[1]] = month
    return volatility


def fifths(values: Tensor) -> Tensor:
    """Return the fifth of each day's symbols that a value is in, from 1 for the smallest to 5; neutral for NaN.

    Of fewer than five symbols the fifths of their middle ranks, so that the mean is neutral.

    Args:
        values: Shape: (P, T, K).

    Returns:
        Shape: (P, T, K), float32.
    """
    known = values.isfinite()
    rank = values.where(known, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
    count = known.sum(-1, keepdim=True).clamp(min=1)
    fifth = LOWEST + torch.floor((HIGHEST - LOWEST + 1) * (rank + 0.5) / count)
    return fifth.where(known, NEUTRAL).float()
