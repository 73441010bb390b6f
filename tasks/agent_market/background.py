"""Settings of the market's background agents, after the configuration rmsc04 of ABIDES, and their tensors.

ABIDES: Byrd, Hybinette and Balch, "ABIDES: towards high-fidelity multi-agent market simulation", PADS 2020; its
reference configuration rmsc04 gives the defaults, but for the makers' first spread (there 50), least quantity (1) and
level spacing (5): with those the first ten minutes move fifty times as much as the hours after them. `rules.md` beside
this file is the specification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from vecenv.kernels.order_book.book import max_quantity
from vecenv.system.settings import Count, CountFromZero, NotNegative, Positive, Settings, Share, When, Within
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
class BackgroundConfig(Settings):
    """The market and its background agents; see ``tasks/agent_market/rules.md`` for the exact meaning."""

    tick_seconds: Annotated[float, Within(0, 86_400, above=True)] = 1.0
    """Seconds of a tick of time."""
    price_tick: Positive = 0.01
    """Currency of a price tick."""
    clearing: Literal["book", "auction"] = "book"
    """Messages are carried out one after the other in an order book; or all agents act at every tick, and a call
    auction clears their orders at one price."""
    auction_levels: Annotated[int, Within(1, 2**16), When("clearing", "auction")] = 256
    """Prices of an auction, about the last one."""
    auction_spread: Annotated[int, Within(0, 2**16), When("clearing", "auction")] = 10
    """Largest distance of noise and momentum traders' prices from the last one in an auction, in price ticks."""
    room: Annotated[int, Within(1, 2**12), When("clearing", "book")] = 128
    """Orders that a side of the book has room for."""
    slots: Annotated[int, Within(1, 256), When("clearing", "book")] = 6
    """Messages of traders that a tick has room for; more wait."""
    session_seconds: Annotated[Positive, When("clearing", "book")] = 23_400.0
    """Session over which the noise traders wake."""
    mean_price: Annotated[int, Within(1, MAX_FUNDAMENTAL)] = 100_000
    """Mean of the fundamental, in price ticks."""
    reversion: NotNegative = 1.67e-7
    """Rate at which the fundamental returns to its mean, per second."""
    volatility: Annotated[float, Within(0, 2**14)] = 1.58
    """Standard deviation of the fundamental, in price ticks per square root of a second."""
    volatility_spread: Annotated[float, Within(0, 4)] = 0.0
    """Standard deviation of the logarithm of the volatility, which wanders about its mean; the variance stays that of
    `volatility` on average."""
    volatility_seconds: Positive = 900.0
    """Time in which the logarithm of the volatility returns to its mean."""
    shock_rate: NotNegative = 2.77778e-9
    """Rate of megashocks of the fundamental, per second."""
    shock_mean: Annotated[float, Within(0, MAX_FUNDAMENTAL)] = 1_000.0
    """Mean size of a megashock, in price ticks."""
    shock_spread: Annotated[float, Within(0, 2**14)] = 223.6
    """Standard deviation of its size, in price ticks."""
    news_rate: NotNegative = 1 / 1_800
    """Rate of news while there are none, per second."""
    news_magnitude: Annotated[int, Within(1, MAX_FUNDAMENTAL)] = 60
    """Largest shift of the fundamental by news, in price ticks."""
    news_seconds: Positive = 120.0
    """Longest duration of news."""
    num_makers: CountFromZero = 2
    """Market makers."""
    maker_seconds: Annotated[Positive, When("clearing", "book")] = 60.0
    """Mean time between requotes of a maker."""
    levels: Annotated[int, Within(1, 64), When("clearing", "book")] = 10
    """Quotes of a maker on each side."""
    level_spacing: Annotated[int, Within(0, 2**10), When("clearing", "book")] = 1
    """Step between the levels as a multiple of the maker's spread."""
    first_spread: Annotated[int, Within(1, 2**20)] = 10
    """Spread of a maker at the start, in price ticks."""
    spread_alpha: Annotated[Share, When("clearing", "book")] = 0.75
    """Weight of the newest spread in a maker's average."""
    share_of_volume: Annotated[Share, When("clearing", "book")] = 0.025
    """Quantity of each quote as a share of the volume of the last minute."""
    min_quote: Count = 50
    """Least quantity of a quote, in shares."""
    price_skew: Annotated[int, Within(0, 2**16), When("clearing", "book")] = 4
    """Shift of a maker's quotes at one-sided volume, in price ticks."""
    volume_seconds: Positive = 60.0
    """Time over which volume is averaged."""
    num_value: CountFromZero = 102
    """Value traders."""
    value_seconds: Annotated[Positive, When("clearing", "book")] = 175.4
    """Mean time between wakes of a value trader."""
    observation_noise: Annotated[float, Within(0, 2**14)] = 31.62
    """Standard deviation of what value traders observe of the fundamental, in price ticks."""
    aggressive_share: Annotated[Share, When("clearing", "book")] = 0.1
    """Share of value traders' orders at the touch of the other side."""
    depth_spread: Annotated[int, Within(0, 64), When("clearing", "book")] = 2
    """Largest distance of value traders' orders from it, as a multiple of the spread."""
    max_spread: Annotated[int, Within(1, 2**24)] = 100
    """Largest spread that value traders and makers reckon with, and that moves the mid, in price ticks; also how far
    from a value trader's observation the best price must be for it to be taken at once."""
    take_spread: Annotated[int, Within(1, 2**24), When("clearing", "book")] = 20
    """Largest spread at which momentum and noise traders trade, in price ticks."""
    num_momentum: CountFromZero = 12
    """Momentum traders."""
    momentum_seconds: Annotated[Positive, When("clearing", "book")] = 37.0
    """Mean time between wakes of a momentum trader."""
    momentum_every: Count = 1
    """Ticks between the samples of the mid that momentum traders average."""
    num_noise: CountFromZero = 1_000
    """Noise traders, who wake once."""
    maker_latency: Annotated[int, Within(0, MAX_LATENCY), When("clearing", "book")] = 0
    """Ticks from what makers see to their messages."""
    value_latency: Annotated[int, Within(0, MAX_LATENCY), When("clearing", "book")] = 0
    """Ticks from what value traders see to their messages."""
    momentum_latency: Annotated[int, Within(0, MAX_LATENCY), When("clearing", "book")] = 0
    """Ticks from what momentum traders see to their messages."""
    noise_latency: Annotated[int, Within(0, MAX_LATENCY), When("clearing", "book")] = 0
    """Ticks from what noise traders see to their messages."""
    candle_ticks: Count = 1
    """Ticks of a candle."""
    fair_noise: Annotated[int, Within(0, 2**14)] = 30
    """Standard deviation of the public estimate of the fundamental, in price ticks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_owners(0) > 2**20:
            names = ", ".join(f"num_{name}" for name in ("makers", "value", "momentum", "noise"))
            raise ValueError(f"{names} must be at most {2**20:,} agents together, got {self.num_owners(0):,}")
        for name in ("session_seconds", "news_seconds", "volume_seconds"):
            ticks = self.ticks(getattr(self, name))
            if ticks >= 2**31:
                raise ValueError(
                    f"{name} must be fewer than 2^31 ticks (tick_seconds {self.tick_seconds:g}), got {ticks:.4g}"
                )
        counts = {"maker": "num_makers", "value": "num_value", "momentum": "num_momentum"}
        rates = arrival_rates(self)
        for name, count in counts.items():
            if rates[name] > MOST_ARRIVALS:
                raise ValueError(
                    f"{name}_seconds must be so long that at most {MOST_ARRIVALS} agents of a class ({count}) wake in "
                    f"a tick (tick_seconds) on average, got {rates[name]:,.0f}"
                )
        self.check_orders("min_quote")

    def check_orders(self, *names: str) -> None:
        """Raise ValueError if a number of shares is more than the book takes as one order."""
        for name in names:
            if getattr(self, name) > max_quantity(self.room):
                raise ValueError(
                    f"{name} must be at most {max_quantity(self.room):,}, the largest order of a book with room for "
                    f"{self.room:,} a side, got {getattr(self, name):,}"
                )

    def num_owners(self, seats: int) -> int:
        return seats + self.num_makers + self.num_value + self.num_momentum + self.num_noise

    def ticks(self, seconds: float) -> int:
        return max(1, round(seconds / self.tick_seconds))


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
