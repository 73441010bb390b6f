"""Settings of the market and its background agents, of the learner's seat in it, and of its tasks.

The background agents are those of the configuration rmsc04 of ABIDES: Byrd, Hybinette and Balch, "ABIDES: towards
high-fidelity multi-agent market simulation", PADS 2020. It gives the defaults, but for the makers' first spread (there
50), least quantity (1) and level spacing (5): with those the first ten minutes move fifty times as much as the hours
after them. `rules.md` and `messages.md` beside this file are the specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from vecenv.kernels.order_book.limits import max_quantity
from vecenv.system.settings import (
    Cash,
    Count,
    CountFromZero,
    Items,
    NotNegative,
    Positive,
    PositiveShare,
    Settings,
    Share,
    When,
    Within,
)

MAX_TICKS = 2**23
"""Most ticks of a market, so that its random numbers have indices of 32 bits."""

MAX_CASH_TICKS = 2**51
"""Cash at the start below which twice the equity, up to double the cash, is exact in float64 (2^53)."""

MAX_ORDERS = 64
"""Most orders of a list."""

MAX_SEATS = 64
"""Most seats of a market."""


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

MAKER, VALUE, MOMENTUM, NOISE = range(len(CLASSES))
"""Places of the classes."""


@dataclass(frozen=True, kw_only=True)
class BackgroundConfig(Settings):
    """The market and its background agents; see ``rules.md`` and ``messages.md`` in ``tasks/agent_market``."""

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


def arrival_rates(config: BackgroundConfig) -> Mapping[str, float]:
    """Return the mean number of wakes a tick, by class; that of noise traders until the end of the session."""
    seconds = config.tick_seconds
    return {
        "maker": config.num_makers * seconds / config.maker_seconds,
        "value": config.num_value * seconds / config.value_seconds,
        "momentum": config.num_momentum * seconds / config.momentum_seconds,
        "noise": config.num_noise * seconds / config.session_seconds,
    }


@dataclass(frozen=True, kw_only=True)
class SeatConfig(BackgroundConfig):
    """The learner's seat in a market; see ``tasks/agent_market/messages.md`` for the exact meaning."""

    seats: Annotated[int, Within(1, MAX_SEATS)] = 1
    """Learners in one market. Each is a row of the environment, and as many consecutive rows share a market."""
    initial_cash: Cash = 1_000_000.0
    """Cash at the start, in currency."""
    max_ticks: Count = 10_000
    """Ticks of an episode, after the warm-up."""
    ticks_per_step: Annotated[int, Within(1, 2**16)] = 1
    """Ticks from one action to the next."""
    warm_up_ticks: CountFromZero = 100
    """Ticks of the market before the episode starts, at least; all candles are filled."""
    fair_value: bool = True
    """Show the public estimate of the fundamental, and what is derived from it."""
    depth: bool = False
    """Show the best ten levels of both sides too."""
    observation: Literal["scaled", "raw"] = field(default="scaled", metadata={"earlier": "raw"})
    """Columns times powers of two, so that each is of order one; or in their own units."""
    max_orders: Annotated[int, Within(2, MAX_ORDERS)] = 4
    """Orders of a list, such as an answer in text, at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.5 < self.initial_cash / self.price_tick < MAX_CASH_TICKS:
            raise ValueError(
                f"initial_cash must be from one to fewer than 2^51 price ticks (price_tick {self.price_tick:g}), "
                f"which the account counts, got {self.initial_cash:g}"
            )
        if self.max_ticks % self.ticks_per_step:
            raise ValueError(
                f"max_ticks must be a multiple of ticks_per_step ({self.ticks_per_step}), got {self.max_ticks}"
            )
        if self.warm_up + self.max_ticks >= MAX_TICKS:
            raise ValueError(
                f"max_ticks and the warm-up (warm_up_ticks, at least {NUM_CANDLES} candle_ticks) must be fewer than "
                f"{MAX_TICKS:,} ticks together, got {self.warm_up + self.max_ticks:,}"
            )

    @property
    def warm_up(self) -> int:
        return max(self.warm_up_ticks, NUM_CANDLES * self.candle_ticks)

    @property
    def num_steps(self) -> int:
        return self.max_ticks // self.ticks_per_step


@dataclass(frozen=True, kw_only=True)
class TradingConfig(SeatConfig):
    """Settings of the task `agent_market`."""

    action: Literal["discrete", "continuous", "limit"] = "discrete"
    """Sell, hold or buy at the market; a share of order_size in [-1, 1] at the market; or limit orders."""
    order_size: Count = 100
    """Shares of an order, at most."""
    max_position: Count = 500
    """Shares held or sold short, at most."""
    distances: Annotated[tuple[int, ...], Items(1), When("action", "limit")] = (-1, 0, 1, 2, 5, 10)
    """Distances of limit orders from the best price of their own side, in price ticks, outwards."""
    sizes: Annotated[tuple[PositiveShare, ...], Items(1), When("action", "limit")] = (0.25, 0.5, 1.0)
    """Quantities of limit orders as shares of order_size."""
    reward: Literal["equity", "risk_adjusted", "shortfall"] = "equity"
    """Change of equity; or less drawdown and trades, with a bonus for the Sharpe ratio at the end; or minus what fills
    have cost beyond the mid before the step."""
    reward_scale: Positive | None = None
    """Factor of the reward, in currency; by default rewards are in basis points of what max_position shares are worth
    at mean_price."""
    drawdown_weight: Annotated[NotNegative, When("reward", "risk_adjusted")] = 0.1
    """Weight of the drawdown below the peak equity, of every step."""
    cost_per_share: Annotated[NotNegative, When("reward", "risk_adjusted")] = 0.0
    """Penalty of the reward for a share bought or sold, in currency."""
    sharpe_weight: Annotated[NotNegative, When("reward", "risk_adjusted")] = 0.0
    """Weight of the Sharpe ratio of the steps of the episode, at its end."""
    grade_scale: Positive = 0.01
    """Return of an episode that is graded 0.73; none is graded 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_orders("order_size", "max_position")

    @property
    def scale(self) -> float:
        """Factor of the reward, per unit of currency."""
        if self.reward_scale is not None:
            return self.reward_scale
        return 1e4 / (self.max_position * self.mean_price * self.price_tick)


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig(SeatConfig):
    """Settings of the task `execution`."""

    max_ticks: Count = 600
    """Ticks within which the order is to be executed."""
    ticks_per_step: Annotated[int, Within(1, 2**16)] = 10
    """Ticks from one action to the next."""
    parent_size: Count = 1_000
    """Shares to execute."""
    side: Literal["random", "buy", "sell"] = "random"
    """Side of the parent order."""
    slices: Annotated[tuple[Annotated[float, Within(0, 1e6)], ...], Items(2)] = (0.0, 0.5, 1.0, 2.0, 4.0)
    """Choices of the market order of a step, as multiples of an even slice of the parent order."""
    passive_slices: Annotated[float, Within(0, 1e6, above=True)] = 2.0
    """Quantity of the passive order, as a multiple of an even slice."""
    left_cost: NotNegative = 20.0
    """Cost of what is left at the end, in basis points beyond the mid."""
    reward_scale: Positive = 0.1
    """Reward per basis point of shortfall."""
    grade_scale: Positive = 2.0
    """Shortfall in basis points that is graded 0.27; none is graded 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_orders("parent_size")

    @property
    def even_slice(self) -> int:
        """Shares of an even slice, rounded up so that as many as there are steps suffice."""
        return -(-self.parent_size // self.num_steps)


@dataclass(frozen=True, kw_only=True)
class MarketMakingConfig(SeatConfig):
    """Settings of the task `market_making`."""

    max_ticks: Count = 1_000
    """Ticks of an episode."""
    ticks_per_step: Annotated[int, Within(1, 2**16)] = 5
    """Ticks from one action to the next."""
    quote_size: Count = 100
    """Shares of a quote."""
    max_inventory: Count = 500
    """Shares held or sold short, at most, open quotes included."""
    distances: Annotated[tuple[Count, ...], Items(1)] = (1, 2, 4, 8, 16, 32)
    """Distances of quotes from the mid, in price ticks, rounded outwards."""
    inventory_weight: NotNegative = 1e-5
    """Penalty of the squared inventory in quotes, of every step."""
    reward_scale: Positive = 1e-2
    """Reward per unit of currency."""
    grade_scale: Positive = 500.0
    """Profit in currency that is graded 0.73; none is graded 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quote_size > self.max_inventory:
            raise ValueError(f"quote_size {self.quote_size} is above max_inventory {self.max_inventory}")
        self.check_orders("max_inventory")
