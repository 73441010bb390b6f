"""Settings of the trading tiers, with the table of the five tiers' rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from vecenv.market.feature_names import TIER_FEATURES
from vecenv.system.settings import Count, Fraction, Items, Positive, PositiveShare, Settings, When, Within
from vecenv.tasks.tiers.grader_names import GRADERS
from vecenv.tasks.tiers.limits import MAX_GAIN, MAX_ORDERS
from vecenv.tasks.tiers.reward_presets import weights_by_name

THREE = ("RELIANCE", "INFY", "TCS")
TEN = (*THREE, "HDFCBANK", "SBIN", "ICICIBANK", "BHARTIARTL", "ITC", "KOTAKBANK", "LT")
TWENTY_FIVE = (
    *TEN,
    *("AXISBANK", "BAJFINANCE", "SUNPHARMA", "TITAN", "HINDUNILVR", "HCLTECH", "WIPRO", "NTPC", "POWERGRID"),
    *("ADANIENT", "TATASTEEL", "JSWSTEEL", "COALINDIA", "ONGC", "MARUTI"),
)

RANDOM_SYMBOL = "random"
"""Placeholder of a randomly drawn symbol per episode."""


@dataclass(frozen=True)
class _TierRules(Settings):
    """What the tiers differ in."""

    symbols: Annotated[tuple[str, ...], Items(1, distinct=True)] = THREE[:1]
    """Symbols of the tier; random as the only symbol draws one per episode."""
    days: Count = 20
    """Days of an episode."""
    initial_cash: Positive = 100_000.0
    """Cash at the start, in the currency of the prices."""
    commission: Fraction = 0.0
    """Share of the traded value."""
    slippage: Fraction = 0.0
    """Share of the price lost to the market on each trade."""
    max_trades: Count = 100
    """Daily trade limit: number of executed orders after which purchases are refused."""
    max_position: Annotated[float, Within(1e-4, 1)] = 1.0
    """Largest share of the portfolio value in one symbol."""
    max_exposure: Annotated[float, Within(1e-4, 1)] = 1.0
    """Largest share of the portfolio value in all symbols together."""
    gate: bool = False
    """Refuse purchases on days on which the market falls."""
    seed_grader: Literal["single", "portfolio", "full"] = "single"
    """Kind of the tier's published grader."""


@dataclass(frozen=True)
class BatchConfig(Settings):
    """Settings that all rules of a batch share."""

    action: Literal["orders", "discrete", "weights", "limit_weights"] = "discrete"
    """Action space; text is parsed into orders in each."""
    max_orders: Annotated[int, Within(1, 1_000)] = MAX_ORDERS
    """Maximum orders per day, M."""
    tilt_gain: Annotated[float, Within(0, MAX_GAIN, above=True), When("action", "limit_weights")] = 1.0
    """limit_weights: factor of the tilts, the logarithm of the change of a weight at an action of 1."""
    reward: str = "signal"
    """Preset of the reward's weights: signal, counterfactual, multi_component, aligned or grade_potential."""
    reward_weights: dict[str, float] = field(default_factory=dict)
    """Component weights that override the preset's."""
    grader: str = "calibrated"
    """Grader of the episodes: calibrated or seed."""
    context: tuple[str, ...] = ()
    """Observed context series, such as vix."""
    currency: str | None = None
    """Prefix of amounts of money in text, by default the sign of the market's currency, if known."""
    text_style: Literal["full", "compact"] = "full"
    """Style of the text."""
    observation: Literal["scaled", "raw"] = field(default="scaled", metadata={"earlier": "raw"})
    """Columns times powers of two, so that each is of order one; or in their own units."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of rewards and average prices; cash and shares are exact in both."""


@dataclass(frozen=True)
class TierConfig(BatchConfig, _TierRules):
    """Rules of a trading tier; see ``rules.md``, ``learner.md`` and ``actions.md`` in ``tasks/tiers``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.commission + self.slippage >= 1:
            raise ValueError(f"commission {self.commission} and slippage {self.slippage} must be below 1 together")
        if RANDOM_SYMBOL in self.symbols and len(self.symbols) > 1:
            raise ValueError(f"{RANDOM_SYMBOL!r} must be the only symbol, got {', '.join(self.symbols)}")
        if self.grader not in GRADERS:
            raise ValueError(f"unknown grader {self.grader!r}; there are {', '.join(GRADERS)}")
        weights_by_name(self.reward, self.reward_weights)

    @property
    def features(self) -> tuple[str, ...]:
        return TIER_FEATURES

    @property
    def market_symbols(self) -> tuple[str, ...]:
        """Symbols to read or to generate; empty if all may be drawn."""
        return () if self.random_symbol else self.symbols

    @property
    def random_symbol(self) -> bool:
        return self.symbols == (RANDOM_SYMBOL,)


_COST = 0.001

TIERS: dict[str, TierConfig] = {
    "single_stock": TierConfig(),
    "single_stock_costs": TierConfig(max_trades=20, commission=_COST, slippage=_COST),
    "multi_stock_3": TierConfig(
        symbols=THREE,
        days=25,
        initial_cash=150_000.0,
        max_trades=15,
        max_position=0.5,
        max_exposure=0.6,
        seed_grader="portfolio",
        commission=_COST,
        slippage=_COST,
    ),
    "portfolio": TierConfig(
        symbols=TEN,
        days=30,
        initial_cash=200_000.0,
        max_trades=10,
        max_position=0.3,
        max_exposure=0.4,
        seed_grader="portfolio",
        commission=_COST,
        slippage=_COST,
    ),
    "full_autonomous": TierConfig(
        symbols=TWENTY_FIVE,
        days=40,
        initial_cash=500_000.0,
        commission=_COST,
        slippage=2 * _COST,
        max_trades=5,
        max_position=0.15,
        max_exposure=0.8,
        gate=True,
        seed_grader="full",
    ),
}
"""The tiers, easiest first."""


def tier_config(name: str) -> TierConfig:
    """Return the rules of a tier, a ValueError for an unknown name."""
    if name not in TIERS:
        raise ValueError(f"unknown tier {name!r}; there are {', '.join(TIERS)}")
    return replace(TIERS[name])


SUCCESS: dict[str, dict[str, float]] = {
    "grade": dict.fromkeys(TIERS, 0.4),
    "regret": dict.fromkeys(TIERS, -0.15) | {"full_autonomous": -0.4},
}
"""Score above which an episode of a tier is a success: slightly below buy-and-hold's typical score.

Its calibrated grade is 0.5 and its mean regret 0.1, in the last tier 0.3 of the account, on NSE and synthetic markets;
one in ten episodes of random orders is graded above 0.4.
"""


@dataclass(frozen=True)
class _Mixture(Settings):
    """Which tiers a batch mixes."""

    tiers: Annotated[tuple[str, ...], Items(1, distinct=True)] = tuple(TIERS)
    """Tiers, easiest first."""
    symbols: Annotated[tuple[str, ...], Items(1, distinct=True)] = TWENTY_FIVE
    """Symbols of the market; each tier trades the first of them, as many as the tier's number of symbols."""
    num_levels: Annotated[int, Within(2, 1_000)] | None = None
    """Number of levels of a continuous difficulty between the tiers, each with a separate hindsight table; by default
    the tiers themselves are the levels."""
    path_share: Annotated[PositiveShare, When("num_levels")] = 0.5
    """Share of the paths that a level draws from: the least volatile for the easiest, the most for the hardest."""


@dataclass(frozen=True)
class CurriculumConfig(BatchConfig, _Mixture):
    """Settings of a curriculum that mixes tiers in one batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Rejects unknown tiers and invalid shared settings.
        _ = self.rules

    @property
    def features(self) -> tuple[str, ...]:
        return self.shared.features

    @property
    def market_symbols(self) -> tuple[str, ...]:
        return self.symbols

    @property
    def shared(self) -> TierConfig:
        """Settings shared by the whole batch, on all symbols."""
        return replace(self._tier(self.tiers[-1]), symbols=self.symbols)

    def _tier(self, name: str) -> TierConfig:
        tier = tier_config(name)
        common = {shared.name: getattr(self, shared.name) for shared in fields(BatchConfig)}
        return replace(tier, symbols=self.symbols[: len(tier.symbols)], **common)

    @property
    def rules(self) -> tuple[TierConfig, ...]:
        """Rows of the rule table, easiest first: the tiers, or the levels of a continuous difficulty."""
        tiers = [self._tier(name) for name in self.tiers]
        if self.num_levels is None:
            return tuple(tiers)
        return tuple(interpolated_rules(tiers, difficulty) for difficulty in self.difficulties)

    @property
    def difficulties(self) -> tuple[float, ...]:
        """Difficulty of each level, from 0 to 1."""
        last = (self.num_levels or len(self.tiers)) - 1
        return tuple(level / (last or 1) for level in range(last + 1))

    @property
    def nearest_tiers(self) -> tuple[str, ...]:
        """Name of each level's tier, or of the nearest."""
        return tuple(self.tiers[math.floor(place * (len(self.tiers) - 1) + 0.5)] for place in self.difficulties)


_NUMBERS = ("initial_cash", "commission", "slippage", "max_position", "max_exposure")
_COUNTS = ("days", "max_trades")


def interpolated_rules(tiers: Sequence[TierConfig], difficulty: float) -> TierConfig:
    """Return the rules at a difficulty: those of tier i of n at i / (n - 1), and linear between two tiers.

    Days, trades a day and the number of symbols are rounded. Gate and kind of grader are the nearest tier's.
    """
    place = difficulty * (len(tiers) - 1)
    easier, harder = tiers[math.floor(place)], tiers[math.ceil(place)]
    nearest, share = tiers[math.floor(place + 0.5)], place - math.floor(place)

    def between(low: float, high: float) -> float:
        return (1.0 - share) * low + share * high

    values: dict[str, Any] = {name: between(getattr(easier, name), getattr(harder, name)) for name in _NUMBERS}
    values |= {name: round(between(getattr(easier, name), getattr(harder, name))) for name in _COUNTS}
    num_symbols = round(between(len(easier.symbols), len(harder.symbols)))
    return replace(nearest, symbols=max(easier.symbols, harder.symbols, key=len)[:num_symbols], **values)
