"""The fundamental value of the stock: a mean-reverting walk in integers, with megashocks and news."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.tasks.agent_market.background import MAX_FUNDAMENTAL, TABLE_BITS
from vecenv.tasks.agent_market.market import Rules
from vecenv.tasks.agent_market.streams import MarketStream

MAX_DEVIATION = 2**34
"""Largest deviation from the mean that counts for the reversion, in 2^-16 price ticks."""


class Fundamental(NamedTuple):
    """The fundamental and the news after a tick.

    Attributes:
        value: in 2^-16 price ticks. Shape: (), int64.
        news: sign, magnitude, remaining ticks and drift. Shape: (4,), int64.
    """

    value: Tensor
    news: Tensor


def table_normal(rules: Rules, word: Tensor, scale: Tensor) -> Tensor:
    """Return a normal number times a scale, in the unit of the scale. Shapes: ()."""
    return (rules.normal[word >> (32 - TABLE_BITS)].to(torch.int64) * scale + 2**15) >> 16


def advanced(value: Tensor, news: Tensor, key: EpisodeKey, tick: Tensor, rules: Rules) -> Fundamental:
    """Return fundamental and news after a tick.

    Args:
        value: before it. Shape: (), int64.
        news: before it. Shape: (4,), int64.
        key: of the episode.
        tick: number of it. Shape: (), int64.
        rules: of the market.
    """
    move, shocked, size, sign = random_bits(key, MarketStream.FUNDAMENTAL, tick)
    away = ((rules.number("mean_price") << 16) - value).clamp(-MAX_DEVIATION, MAX_DEVIATION)
    back = (away * rules.number("reversion") + 2**27) >> 28
    shock = (rules.number("shock_mean") + table_normal(rules, size, rules.number("shock_spread"))).clamp(min=0) << 16
    shock = torch.where(sign % 2 == 0, shock, -shock)
    shock = torch.where(shocked < rules.number("shock_chance"), shock, 0)
    after = value + back + table_normal(rules, move, rules.number("volatility")) + shock + news[3]
    return Fundamental(after.clamp(2**16, MAX_FUNDAMENTAL * 2**16), _news_after(news, key, tick, rules))


def _news_after(news: Tensor, key: EpisodeKey, tick: Tensor, rules: Rules) -> Tensor:
    """Return the news after a tick: those that were active, a tick older, or new ones. Shape: (4,)."""
    begin, magnitude, good, duration = random_bits(key, MarketStream.NEWS, tick)
    left = (news[2] - 1).clamp(min=0)
    begins = (left == 0) & (begin < rules.number("news_chance"))
    size = 1 + ((magnitude * rules.number("news_magnitude")) >> 32)
    ticks = 1 + ((duration * rules.number("news_duration")) >> 32)
    sign = torch.where(good % 2 == 0, 1, -1)
    drift = torch.div(size << 16, ticks, rounding_mode="floor") * sign
    fresh = torch.stack([sign, size, ticks, drift])
    old = torch.stack([news[0], news[1], left, news[3]])
    return torch.where(begins, fresh, torch.where(left > 0, old, 0))
