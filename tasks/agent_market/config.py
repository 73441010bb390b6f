"""Settings that all tasks of the agent-based market share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from vecenv.system.settings import Cash, Count, CountFromZero, Within
from vecenv.tasks.agent_market.background import NUM_CANDLES, BackgroundConfig

MAX_TICKS = 2**23
"""Most ticks of a market, so that its random numbers have indices of 32 bits."""

MAX_CASH_TICKS = 2**51
"""Cash at the start below which twice the equity, up to double the cash, is exact in float64 (2^53)."""

MAX_ORDERS = 64
"""Most orders of a list."""

MAX_SEATS = 64
"""Most seats of a market."""


@dataclass(frozen=True, kw_only=True)
class SeatConfig(BackgroundConfig):
    """The learner's seat in a market; see ``tasks/agent_market/rules.md`` for the exact meaning."""

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
    """Columns times powers of two, so that each is of order one; or in the units of the rules page alone."""
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
