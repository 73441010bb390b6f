"""Settings that all tasks of the agent-based market share."""

from __future__ import annotations

from dataclasses import dataclass

from vecenv.tasks.agent_market.background import NUM_CANDLES, BackgroundConfig

MAX_TICKS = 2**23
"""Most ticks of a market, so that its random numbers have indices of 32 bits."""

MAX_ORDERS = 64
"""Most orders of a list."""

MAX_SEATS = 64
"""Most seats of a market."""


@dataclass(frozen=True, kw_only=True)
class SeatConfig(BackgroundConfig):
    """The learner's seat in a market; see ``tasks/agent_market/rules.md`` for the exact meaning."""

    seats: int = 1
    """Learners in one market. Each is a row of the environment, and as many consecutive rows share a market."""
    initial_cash: float = 1_000_000.0
    """Cash at the start, in currency."""
    max_ticks: int = 10_000
    """Ticks of an episode, after the warm-up."""
    ticks_per_step: int = 1
    """Ticks from one action to the next."""
    warm_up_ticks: int = 100
    """Ticks of the market before the episode starts, at least; all candles are filled."""
    fair_value: bool = True
    """Show the public estimate of the fundamental, and what is derived from it."""
    depth: bool = False
    """Show the best ten levels of both sides too."""
    max_orders: int = 4
    """Orders of a list, such as an answer in text, at most."""
    reward_scale: float = 1e-3
    """Factor of the reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("initial_cash", "max_ticks", "ticks_per_step", "reward_scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not self.warm_up_ticks >= 0:
            raise ValueError(f"warm_up_ticks must not be negative, got {self.warm_up_ticks}")
        if not 2 <= self.max_orders <= MAX_ORDERS:
            raise ValueError(f"max_orders must be in 2 … {MAX_ORDERS}, got {self.max_orders}")
        if not 1 <= self.seats <= MAX_SEATS:
            raise ValueError(f"seats must be in 1 … {MAX_SEATS}, got {self.seats}")
        if self.max_ticks % self.ticks_per_step:
            raise ValueError(
                f"max_ticks must be a multiple of ticks_per_step ({self.ticks_per_step}), got {self.max_ticks}"
            )
        if self.warm_up + self.max_ticks >= MAX_TICKS:
            raise ValueError(f"a market has fewer than {MAX_TICKS:,} ticks, got {self.warm_up + self.max_ticks:,}")

    @property
    def warm_up(self) -> int:
        return max(self.warm_up_ticks, NUM_CANDLES * self.candle_ticks)

    @property
    def num_steps(self) -> int:
        return self.max_ticks // self.ticks_per_step
