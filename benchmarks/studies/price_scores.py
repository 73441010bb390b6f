"""Scores made of prices: where documents have none, and as controls that know the past alone, or the future."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE
from vecenv.market.panels import HIGHEST, LOWEST, NEUTRAL, SCORES, Panels
from vecenv.market.tape import MarketTape

Score = Literal["sentiment", "risk"]
Span = Literal["past", "ahead"]

WINDOW = 21
"""Days of a month."""


def with_scores_of_prices(tape: MarketTape, score: Score, span: Span) -> MarketTape:
    """Return a market with one score, the fifths of its symbols on each day, and no other.

    Sentiment goes by the mean log-return of the month before or, ahead, by the next day's. Risk goes by the volatility
    of the month before or of the month ahead. What is ahead is hindsight: nobody knows it.

    Args:
        tape: the market.
        score: to make.
        span: of days that it tells about.
    """
    values = _values(log_returns(tape), score, span)
    place = SCORES.index(score)
    scores = torch.full((*values.shape, len(SCORES)), NEUTRAL, device=values.device)
    known = torch.zeros(scores.shape, dtype=torch.bool, device=values.device)
    scores[..., place], known[..., place] = fifths(values), values.isfinite()
    return replace(tape, panels=Panels(scores, known))


def log_returns(tape: MarketTape) -> Tensor:
    """Return log-returns from the day before, NaN where a symbol does not trade on both days. Shape: (P, T, K)."""
    close, tradable = tape.ohlcv[..., CLOSE].double(), tape.tradable
    both = tradable[:, 1:] & tradable[:, :-1]
    change = (close[:, 1:] / close[:, :-1]).log().where(both, torch.nan)
    return torch.cat([torch.full_like(close[:, :1], torch.nan), change], 1)


def volatility_of_month(returns: Tensor) -> Tensor:
    """Return the root mean square of the month up to each day, NaN without a whole one. Shapes: (P, T, K)."""
    return _mean_of_month(returns.square()).sqrt()


def _values(returns: Tensor, score: Score, span: Span) -> Tensor:
    if score == "sentiment":
        return _mean_of_month(returns) if span == "past" else _earlier(returns, 1)
    volatility = volatility_of_month(returns)
    return volatility if span == "past" else _earlier(volatility, WINDOW)


def _mean_of_month(values: Tensor) -> Tensor:
    means = values.unfold(1, WINDOW, 1).mean(-1) if values.shape[1] >= WINDOW else values[:, :0]
    head = torch.full_like(values[:, : values.shape[1] - means.shape[1]], torch.nan)
    return torch.cat([head, means], 1)


def _earlier(values: Tensor, days: int) -> Tensor:
    """Return values as they will be some days later, NaN at the end."""
    days = min(days, values.shape[1])
    return torch.cat([values[:, days:], torch.full_like(values[:, :days], torch.nan)], 1)


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
