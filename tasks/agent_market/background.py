"""Settings of the market's background agents, after the configuration rmsc04 of ABIDES, and their tensors.

ABIDES: Byrd, Hybinette and Balch, "ABIDES: towards high-fidelity multi-agent market simulation", PADS 2020; its
reference configuration rmsc04 gives the defaults, but for the makers' first spread (there 50), least quantity (1) and
level spacing (5): with those the first ten minutes move fifty times as much as the hours after them. `rules.md` beside
this file is the specification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from vecenv.kernels.order_book.book import max_quantity
from vecenv.tasks.agent_market.tables import LOG_BITS, arrival_thresholds, least_entries

MAX_LATENCY = 8
"""Largest latency in ticks."""

MAX_FUNDAMENTAL = 2**24
"""Largest fundamental in price ticks."""

NUM_SAMPLES, SHORT_SAMPLES = 50, 20
"""Samples of the mid that momentum traders average."""

NUM_CANDLES = 65
"""Candles that a market remembers."""

MOST_ARRIVALS = 500
"""Largest mean number of wakes of a class in a tick; exp(-745) is 0."""

CLASSES = ("maker", "value", "momentum", "noise")
"""Classes of background agents, in the order of their owners."""


@dataclass(frozen=True, kw_only=True)
class BackgroundConfig:
    """The market and its background agents; see ``tasks/agent_market/rules.md`` for the exact meaning."""

    tick_seconds: float = 1.0
    """Seconds of a tick of time."""
    price_tick: float = 0.01
    """Currency of a price tick."""
    clearing: Literal["book", "auction"] = "book"
    """Messages are carried out one after the other in an order book; or all agents act at every tick, and a call
    auction clears their orders at one price."""
    auction_levels: int = 256
    """Prices of an auction, about the last one."""
    auction_spread: int = 10
    """Largest distance of noise and momentum traders' prices from the last one in an auction, in price ticks."""
    room: int = 128
    """Orders that a side of the book has room for."""
    slots: int = 6
    """Messages of traders that a tick has room for; more wait."""
    session_seconds: float = 23_400.0
    """Session over which the noise traders wake."""
    mean_price: int = 100_000
    """Mean of the fundamental, in price ticks."""
    reversion: float = 1.67e-7
    """Rate at which the fundamental returns to its mean, per second."""
    volatility: float = 1.58
    """Standard deviation of the fundamental, in price ticks per square root of a second."""
    volatility_spread: float = 0.0
    """Standard deviation of the logarithm of the volatility, which wanders about its mean; the variance stays that of
    `volatility` on average."""
    volatility_seconds: float = 900.0
    """Time in which the logarithm of the volatility returns to its mean."""
    shock_rate: float = 2.77778e-9
    """Rate of megashocks of the fundamental, per second."""
    shock_mean: float = 1_000.0
    """Mean size of a megashock, in price ticks."""
    shock_spread: float = 223.6
    """Standard deviation of its size, in price ticks."""
    news_rate: float = 1 / 1_800
    """Rate of news while there are none, per second."""
    news_magnitude: int = 60
    """Largest shift of the fundamental by news, in price ticks."""
    news_seconds: float = 120.0
    """Longest duration of news."""
    num_makers: int = 2
    """Market makers."""
    maker_seconds: float = 60.0
    """Mean time between requotes of a maker."""
    levels: int = 10
    """Quotes of a maker on each side."""
    level_spacing: int = 1
    """Step between the levels as a multiple of the maker's spread."""
    first_spread: int = 10
    """Spread of a maker at the start, in price ticks."""
    spread_alpha: float = 0.75
    """Weight of the newest spread in a maker's average."""
    share_of_volume: float = 0.025
    """Quantity of each quote as a share of the volume of the last minute."""
    min_quote: int = 50
    """Least quantity of a quote, in shares."""
    price_skew: int = 4
    """Shift of a maker's quotes at one-sided volume, in price ticks."""
    volume_seconds: float = 60.0
    """Time over which volume is averaged."""
    num_value: int = 102
    """Value traders."""
    value_seconds: float = 175.4
    """Mean time between wakes of a value trader."""
    observation_noise: float = 31.62
    """Standard deviation of what value traders observe of the fundamental, in price ticks."""
    aggressive_share: float = 0.1
    """Share of value traders' orders at the touch of the other side."""
    depth_spread: int = 2
    """Largest distance of value traders' orders from it, as a multiple of the spread."""
    max_spread: int = 100
    """Largest spread that value traders and makers reckon with, and that moves the mid, in price ticks; also how far
    from a value trader's observation the best price must be for it to be taken at once."""
    take_spread: int = 20
    """Largest spread at which momentum and noise traders trade, in price ticks."""
    num_momentum: int = 12
    """Momentum traders."""
    momentum_seconds: float = 37.0
    """Mean time between wakes of a momentum trader."""
    momentum_every: int = 1
    """Ticks between the samples of the mid that momentum traders average."""
    num_noise: int = 1_000
    """Noise traders, who wake once."""
    maker_latency: int = 0
    """Ticks from what makers see to their messages."""
    value_latency: int = 0
    """Ticks from what value traders see to their messages."""
    momentum_latency: int = 0
    """Ticks from what momentum traders see to their messages."""
    noise_latency: int = 0
    """Ticks from what noise traders see to their messages."""
    candle_ticks: int = 1
    """Ticks of a candle."""
    fair_noise: int = 30
    """Standard deviation of the public estimate of the fundamental, in price ticks."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in _SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise ValueError(f"{name} must be at most {most:,}, got {getattr(self, name):,}")
        for item in fields(BackgroundConfig):
            if item.type == "int" and not float(getattr(self, item.name)).is_integer():
                raise ValueError(f"{item.name} must be a whole number, got {getattr(self, item.name)}")
        if self.num_owners(0) > 2**20:
            raise ValueError(f"a market has at most {2**20:,} background agents, got {self.num_owners(0):,}")
        for name in ("session_seconds", "news_seconds", "volume_seconds"):
            ticks = self.ticks(getattr(self, name))
            if ticks >= 2**31:
                raise ValueError(f"{name} must be fewer than 2^31 ticks of {self.tick_seconds:g} s, got {ticks:,}")
        busiest = max(list(arrival_rates(self).values())[:3])
        if busiest > MOST_ARRIVALS:
            raise ValueError(
                f"at most {MOST_ARRIVALS} agents of a class can wake in a tick on average, got {busiest:,.0f}"
            )
        if self.min_quote > max_quantity(self.room):
            raise ValueError(f"min_quote must be at most {max_quantity(self.room):,}, got {self.min_quote:,}")

    def num_owners(self, seats: int) -> int:
        return seats + self.num_makers + self.num_value + self.num_momentum + self.num_noise

    def inapplicable(self) -> dict[str, str]:
        of_auctions = ("auction_levels", "auction_spread")
        if self.clearing == "auction":
            return dict.fromkeys(_OF_BOOKS, "clearing book")
        return dict.fromkeys(of_auctions, "clearing auction")

    def ticks(self, seconds: float) -> int:
        return max(1, round(seconds / self.tick_seconds))


_POSITIVE: tuple[str, ...] = ("tick_seconds", "price_tick", "room", "slots", "session_seconds", "mean_price", "levels")
_POSITIVE += ("news_seconds", "volatility_seconds", "maker_seconds", "value_seconds", "momentum_seconds")
_POSITIVE += ("volume_seconds", "momentum_every", "min_quote", "first_spread", "news_magnitude", "candle_ticks")
_POSITIVE += ("max_spread", "take_spread")
_NOT_NEGATIVE: tuple[str, ...] = ("reversion", "volatility", "volatility_spread", "shock_rate", "shock_mean")
_NOT_NEGATIVE += ("shock_spread", "news_rate", "level_spacing", "auction_spread", "price_skew", "observation_noise")
_NOT_NEGATIVE += ("num_makers", "num_value", "num_momentum", "num_noise", "depth_spread", "fair_noise")
_NOT_NEGATIVE += tuple(f"{name}_latency" for name in CLASSES)
_OF_BOOKS: tuple[str, ...] = ("room", "slots", "session_seconds", "maker_seconds", "levels", "level_spacing")
_OF_BOOKS += ("spread_alpha", "share_of_volume", "price_skew", "value_seconds", "aggressive_share", "depth_spread")
_OF_BOOKS += ("take_spread", "momentum_seconds", *(f"{name}_latency" for name in CLASSES))
_SHARES = ("spread_alpha", "share_of_volume", "aggressive_share")
_MOST = {"room": 2**12, "slots": 256, "mean_price": MAX_FUNDAMENTAL, "volatility": 2**14, "volatility_spread": 4}
_MOST |= {"auction_levels": 2**16, "auction_spread": 2**16, "shock_mean": MAX_FUNDAMENTAL, "shock_spread": 2**14}
_MOST |= {"news_magnitude": MAX_FUNDAMENTAL, "observation_noise": 2**14, "depth_spread": 64, "fair_noise": 2**14}
_MOST |= {"levels": 64, "level_spacing": 2**10, "price_skew": 2**16, "first_spread": 2**20}
_MOST |= {"max_spread": 2**24, "take_spread": 2**24}
_MOST |= dict.fromkeys((f"{name}_latency" for name in CLASSES), MAX_LATENCY)


NUMBERS: tuple[str, ...] = ("session_ticks", "mean_price", "reversion", "volatility", "log_volatility_spread")
NUMBERS += ("log_volatility_noise", "log_volatility_reversion", "shock_chance", "shock_mean", "shock_spread")
NUMBERS += ("news_chance", "news_magnitude", "news_duration", "level_spacing", "first_spread", "spread_alpha")
NUMBERS += ("share_of_volume", "min_quote", "price_skew", "volume_ticks", "observation_noise", "aggressive_chance")
NUMBERS += ("depth_spread", "momentum_every", *(f"{name}_latency" for name in CLASSES), "fair_noise", "candle_ticks")
NUMBERS += ("max_spread", "take_spread", "auction_spread")
"""Parameters of one number, in the units of the rules."""

ARRIVALS = ("maker_arrivals", "value_arrivals", "momentum_arrivals")
"""Parameters that are tables of thresholds, by class."""


def background_parameters(config: BackgroundConfig) -> dict[str, Tensor]:
    """Return the parameters of the rules as tensors by name: `NUMBERS` of shape () and `ARRIVALS` (C,), int64."""
    tick = config.tick_seconds
    numbers = {
        "session_ticks": config.ticks(config.session_seconds),
        "mean_price": config.mean_price,
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
        "news_magnitude": config.news_magnitude,
        "news_duration": config.ticks(config.news_seconds),
        "level_spacing": config.level_spacing,
        "first_spread": config.first_spread,
        "spread_alpha": round(config.spread_alpha * 2**8),
        "share_of_volume": round(config.share_of_volume * 2**16),
        "min_quote": config.min_quote,
        "price_skew": config.price_skew,
        "volume_ticks": config.ticks(config.volume_seconds),
        "observation_noise": round(config.observation_noise * 2**16),
        "aggressive_chance": round(config.aggressive_share * 2**32),
        "depth_spread": config.depth_spread,
        "momentum_every": config.momentum_every,
        **{f"{name}_latency": getattr(config, f"{name}_latency") for name in CLASSES},
        "fair_noise": config.fair_noise,
        "candle_ticks": config.candle_ticks,
        "max_spread": config.max_spread,
        "take_spread": config.take_spread,
        "auction_spread": config.auction_spread,
    }
    rates = arrival_rates(config)
    # As many entries as the busiest class needs, so that the tables stack.
    count = max(least_entries(rates[name]) for name in CLASSES[:3])
    tables = {f"{name}_arrivals": arrival_thresholds(rates[name], count) for name in CLASSES[:3]}
    return {name: torch.tensor(value, dtype=torch.int64) for name, value in numbers.items()} | tables


def arrival_rates(config: BackgroundConfig) -> Mapping[str, float]:
    """Return the mean number of wakes a tick, by class; that of noise traders until the end of the session."""
    seconds = config.tick_seconds
    return {
        "maker": config.num_makers * seconds / config.maker_seconds,
        "value": config.num_value * seconds / config.value_seconds,
        "momentum": config.num_momentum * seconds / config.momentum_seconds,
        "noise": config.num_noise * seconds / config.session_seconds,
    }


def chance(rate: float) -> int:
    """Return the probability of at least one event of a Poisson number in 2^32."""
    return round(-math.expm1(-rate) * 2**32)
