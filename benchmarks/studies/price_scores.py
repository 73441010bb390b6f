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
    """
    close, tradable = tape.ohlcv[..., CLOSE].double(), tape.tradable
    change = (close[:, 1:] / close[:, :-1]).log().where(tradable[:, 1:] & tradable[:, :-1], torch.nan)
    returns = torch.cat([torch.full_like(close[:, :1], torch.nan), change], 1)
    if score == "sentiment":
        values = _mean_of_month(returns) if span == "past" else _earlier(returns, 1)
    else:
        volatility = _mean_of_month(returns.square()).sqrt()
        values = volatility if span == "past" else _earlier(volatility, WINDOW)
    place = SCORES.index(score)
    scores = torch.full((*values.shape, len(SCORES)), NEUTRAL, device=values.device)
    known = torch.zeros(scores.shape, dtype=torch.bool, device=values.device)
    scores[..., place], known[..., place] = fifths(values), values.isfinite()
    return replace(tape, panels=Panels(scores, known))


def _mean_of_month(values: Tensor) -> Tensor:
    """Return means of the month up to each day, NaN without a whole one. Shapes: (P, T, K)."""
    head = torch.full_like(values[:, : WINDOW - 1], torch.nan)
    return torch.cat([head, values.unfold(1, WINDOW, 1).mean(-1)], 1)


def _earlier(values: Tensor, days: int) -> Tensor:
    """Return values as they will be some days later, NaN at the end."""
    return torch.cat([values[:, days:], torch.full_like(values[:, :days], torch.nan)], 1)


def fifths(values: Tensor) -> Tensor:
    """Return the fifth of each day's symbols that a value is in, from 1 for the smallest to 5; neutral for NaN."""
    known = values.isfinite()
    rank = values.where(known, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
    count = known.sum(-1, keepdim=True).clamp(min=1)
    fifth = LOWEST + torch.floor((HIGHEST - LOWEST + 1) * (rank + 0.5) / count)
    return fifth.where(known, NEUTRAL).float()
