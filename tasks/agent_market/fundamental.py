"""The fundamental value of the stock: a mean-reverting walk in integers, with megashocks and news."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.tasks.agent_market.background import MAX_FUNDAMENTAL
from vecenv.tasks.agent_market.market import Rules
from vecenv.tasks.agent_market.streams import MarketStream
from vecenv.tasks.agent_market.tables import GROWTH_BITS, LARGEST_LOG, LOG_BITS, kept_log, table_normal

MAX_DEVIATION = 2**34
"""Largest deviation from the mean that counts for the reversion, in 2^-16 price ticks."""


class Fundamental(NamedTuple):
    """Fundamental in 2^-16 price ticks, log-volatility in 2^-20, news: sign, magnitude, remaining ticks, drift."""

    value: Tensor
    log_volatility: Tensor
    news: Tensor


def advanced(
    value: Tensor, log_volatility: Tensor, news: Tensor, key: EpisodeKey, tick: Tensor, rules: Rules
) -> Fundamental:
    """Return fundamental and news after a tick, from those before it, all int64, and the number of the tick."""
    move, shocked, size, sign = random_bits(key, MarketStream.FUNDAMENTAL, tick)
    away = ((rules.number("mean_price") << 16) - value).clamp(-MAX_DEVIATION, MAX_DEVIATION)
    back = (away * rules.number("reversion") + 2**27) >> 28
    shock = (rules.number("shock_mean") + table_normal(rules.normal, size, rules.number("shock_spread"))).clamp(
        min=0
    ) << 16
    shock = torch.where(sign % 2 == 0, shock, -shock)
    shock = torch.where(shocked < rules.number("shock_chance"), shock, 0)
    scale = (rules.number("volatility") * growth(rules.growth, log_volatility) + 2**15) >> 16
    after = value + back + table_normal(rules.normal, move, scale) + shock + news[3]
    return Fundamental(
        value=after.clamp(2**16, MAX_FUNDAMENTAL * 2**16),
        log_volatility=_log_volatility_after(log_volatility, key, tick, rules),
        news=_news_after(news, key, tick, rules),
    )


def growth(table: Tensor, log: Tensor) -> Tensor:
    """Return the exponential of a logarithm in 2^-20, in 2^-16. Shapes: ()."""
    step = LOG_BITS - GROWTH_BITS
    return table[((log + (LARGEST_LOG << LOG_BITS) + (1 << (step - 1))) >> step)].to(torch.int64)


def _log_volatility_after(log: Tensor, key: EpisodeKey, tick: Tensor, rules: Rules) -> Tensor:
    word = random_bits(key, MarketStream.VOLATILITY, tick)[0]
    back = (log * rules.number("log_volatility_reversion") + 2**27) >> 28
    after = log - back + table_normal(rules.normal, word, rules.number("log_volatility_noise"))
    return kept_log(after)


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
