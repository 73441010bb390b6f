"""Numbers and tables of the rules: parameters of a market, and what its random words read.

Tables are thresholds of numbers of wakes, normal numbers, order sizes, and exponentials.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book.limits import max_quantity
from vecenv.tasks.agent_market.config import CLASSES, BackgroundConfig, arrival_rates

TABLE_BITS = 12
"""Random words read tables of 2^12 entries by their highest bits."""

LOG_BITS = 20
"""Logarithms of volatility are in 2^-20."""

LARGEST_LOG = 8
"""Largest logarithm of volatility, of either sign."""

GROWTH_BITS = 6
"""The table of growth has 2^6 entries for each unit of a logarithm."""

_ONE_SIZE_SHARES = {100: 0.7, 200: 0.06, 300: 0.004, 400: 0.0329, 500: 0.001, 600: 0.0006, 700: 0.0004, 800: 0.0005}
_ONE_SIZE_SHARES |= {900: 0.0003, 1000: 0.0003}
_LOG_SIZE = NormalDist(2.9, 1.2)
"""Order sizes of rmsc04: a lognormal size in 20% of orders, round lots in the others."""

NUMBERS: tuple[str, ...] = ("session_ticks", "mean_price", "reversion", "volatility", "log_volatility_spread")
NUMBERS += ("log_volatility_noise", "log_volatility_reversion", "shock_chance", "shock_mean", "shock_spread")
NUMBERS += ("news_chance", "news_magnitude", "news_duration", "level_spacing", "first_spread", "spread_alpha")
NUMBERS += ("share_of_volume", "min_quote", "price_skew", "volume_ticks", "observation_noise", "aggressive_chance")
NUMBERS += ("depth_spread", "momentum_every", *(f"{name}_latency" for name in CLASSES), "fair_noise", "candle_ticks")
NUMBERS += ("max_spread", "take_spread", "auction_spread")
"""Parameters of one number, in the units of the rules."""

ARRIVALS = ("maker_arrivals", "value_arrivals", "momentum_arrivals")
"""Parameters that are tables of thresholds, by class."""


class Rules(NamedTuple):
    """Numbers, (P,), in the order of `NUMBERS`, and tables of the rules.

    ``arrivals`` are thresholds of the makers, value and momentum traders, (3, C), int64; ``normal`` and ``sizes`` have
    shape (4096,), ``growth``, the table of exponentials, (1025,), int32.
    """

    numbers: Tensor
    arrivals: Tensor
    normal: Tensor
    sizes: Tensor
    growth: Tensor

    def number(self, name: str) -> Tensor:
        return self.numbers[NUMBERS.index(name)]


def tables_of(config: BackgroundConfig) -> dict[str, Tensor]:
    """Return the tables that all sub-environments share, by name."""
    return {"normal": normal_table(), "sizes": size_table(config.room), "growth": growth_table()}


def rules_of(params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Rules:
    """Return the rules of one sub-environment from its parameters and the shared tables."""
    numbers = torch.stack([params[name] for name in NUMBERS])
    arrivals = torch.stack([params[name] for name in ARRIVALS])
    return Rules(numbers, arrivals, shared["normal"], shared["sizes"], shared["growth"])


def background_parameters(config: BackgroundConfig) -> dict[str, Tensor]:
    """Return the parameters of the rules as tensors by name: `NUMBERS` of shape () and `ARRIVALS` (C,), int64."""
    tick = config.tick_seconds
    computed = {
        "session_ticks": config.ticks(config.session_seconds),
        "reversion": round(-math.expm1(-config.reversion * tick) * 2**28),
        # The mean of exp(2 x) is exp(2 variance).
        "volatility": round(config.volatility * math.exp(-(config.volatility_spread**2)) * math.sqrt(tick) * 2**16),
        "log_volatility_spread": round(config.volatility_spread * 2**LOG_BITS),
        "log_volatility_noise": round(
            config.volatility_spread * math.sqrt(-math.expm1(-2 * tick / config.volatility_seconds)) * 2**LOG_BITS
        ),
        "log_volatility_reversion": round(-math.expm1(-tick / config.volatility_seconds) * 2**28),
        "shock_chance": chance(config.shock_rate * tick),
        "shock_mean": round(config.shock_mean),
        "shock_spread": round(config.shock_spread),
        "news_chance": chance(config.news_rate * tick),
        "news_duration": config.ticks(config.news_seconds),
        "spread_alpha": round(config.spread_alpha * 2**8),
        "share_of_volume": round(config.share_of_volume * 2**16),
        "volume_ticks": config.ticks(config.volume_seconds),
        "observation_noise": round(config.observation_noise * 2**16),
        "aggressive_chance": round(config.aggressive_share * 2**32),
    }
    numbers = {name: computed[name] if name in computed else getattr(config, name) for name in NUMBERS}
    rates = arrival_rates(config)
    # As many entries as the busiest class needs, so that the tables stack.
    count = max(least_entries(rates[name]) for name in CLASSES[:3])
    tables = {f"{name}_arrivals": arrival_thresholds(rates[name], count) for name in CLASSES[:3]}
    return {name: torch.tensor(value, dtype=torch.int64) for name, value in numbers.items()} | tables


def chance(rate: float) -> int:
    """Return the probability of at least one event of a Poisson number in 2^32."""
    return round(-math.expm1(-rate) * 2**32)


def arrival_thresholds(rate: float, entries: int) -> Tensor:
    """Return thresholds of random words: as many as a word reaches is a Poisson number of mean ``rate``."""
    reached, share, thresholds = 0.0, math.exp(-rate), []
    for number in range(entries):
        reached += share
        share *= rate / (number + 1)
        thresholds.append(min(2**32, round(reached * 2**32)))
    return torch.tensor(thresholds, dtype=torch.int64)


def least_entries(rate: float) -> int:
    """Return after how many thresholds a word of 32 bits never goes further."""
    entries = 4
    while int(arrival_thresholds(rate, entries)[-1]) < 2**32 - 1 and entries < 4 * rate + 64:
        entries += 1
    return entries


def normal_table() -> Tensor:
    """Return normal quantiles at the middles of 2^12 equal cells, of variance 1, in 2^-16. Shape: (4096,), int32."""
    cells = 1 << TABLE_BITS
    values = torch.tensor([NormalDist().inv_cdf((cell + 0.5) / cells) for cell in range(cells)], dtype=torch.float64)
    return (values / values.square().mean().sqrt() * 2**16).round().to(torch.int32)


def size_table(room: int) -> Tensor:
    """Return quantiles of the order sizes of rmsc04, in shares, 1 at least. Shape: (4096,), int32."""
    cells = 1 << TABLE_BITS
    round_lots = list(accumulate(_ONE_SIZE_SHARES.values(), initial=1 - sum(_ONE_SIZE_SHARES.values())))
    sizes = []
    for cell in range(cells):
        level = (cell + 0.5) / cells
        if level < round_lots[0]:
            sizes.append(math.exp(_LOG_SIZE.inv_cdf(level / round_lots[0])))
        else:
            sizes.append(list(_ONE_SIZE_SHARES)[bisect_right(round_lots[:-1], level) - 1])
    return torch.tensor(sizes).round().clamp(1, max_quantity(room)).to(torch.int32)


def growth_table() -> Tensor:
    """Return exp(x) for abs(x) <= `LARGEST_LOG` in steps of 2^-`GROWTH_BITS`, in 2^-16. Shape: (1025,), int32."""
    places = range(-LARGEST_LOG << GROWTH_BITS, (LARGEST_LOG << GROWTH_BITS) + 1)
    return torch.tensor([round(math.exp(place / (1 << GROWTH_BITS)) * 2**16) for place in places], dtype=torch.int32)


def table_normal(normal: Tensor, word: Tensor, scale: Tensor) -> Tensor:
    """Return the normal number of a random word times a scale, in the unit of the scale. Shapes: ()."""
    return (normal[word >> (32 - TABLE_BITS)].to(torch.int64) * scale + 2**15) >> 16


def kept_log(log: Tensor) -> Tensor:
    """Return a logarithm in 2^-20 within what `growth_table` holds."""
    return log.clamp(-LARGEST_LOG << LOG_BITS, LARGEST_LOG << LOG_BITS)
