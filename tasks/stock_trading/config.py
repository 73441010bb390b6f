"""Settings of the stock-trading task and their defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from vecenv.market.feature_names import FINRL_INDICATORS
from vecenv.system.settings import (
    Count,
    CountFromZero,
    Fraction,
    Items,
    NotNegative,
    Positive,
    Settings,
    Share,
    When,
    Within,
)

Rate = Fraction | Annotated[tuple[Fraction, ...], Items(1)]

PERCENT = 100.0

DIFFERENTIAL_SHARPE_SCALE = 1e-3
"""Own factor of the differential Sharpe ratio, whose first days are large."""


@dataclass(frozen=True)
class StockTradingConfig(Settings):
    """Rules of the stock-trading task; see ``rules.md`` and ``learner.md`` in ``tasks/stock_trading``."""

    features: tuple[str, ...] = FINRL_INDICATORS
    """Indicators or numeric columns of the data shown to the agent, per symbol."""
    action: Literal["shares", "weights", "tilt"] = "shares"
    """Orders as a share of hmax, target portfolio weights, or tilts of the benchmark's weights."""
    benchmark: Annotated[
        Literal["equal_weight", "buy_and_hold"], When("action", "tilt"), When("reward", "excess_log_return")
    ] = "equal_weight"
    """Benchmark portfolio of tilts and of the excess return: rebalanced daily, or bought at the start and held."""
    benchmark_cash: Annotated[float, Within(0, 0.5), When("action", "tilt")] = 0.005
    """Weight of cash in the benchmark of tilts, at most 0.5; it also bounds how much cash a tilt can reach."""
    tilt_gain: Annotated[Positive, When("action", "tilt")] = 1.0
    """Change of the logarithm of a weight per unit of tilt."""
    whole_shares: bool = True
    """Trade whole shares, with exact integer accounts; otherwise fractions."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of shares and prices; with whole shares both give the same account."""
    fill: Literal["close", "next_open"] = "close"
    """Orders fill at the close of day t, or at the open of day t+1."""
    rationing: Literal["pro_rata", "by_size"] = "pro_rata"
    """Rationing of insufficient cash: pro rata, or by order size, largest first (FinRL)."""
    reward: Literal["delta_value", "log_return", "excess_log_return", "differential_sharpe", "risk_penalised"] = (
        "delta_value"
    )
    """Reward of a step."""
    initial_cash: Positive = 1_000_000.0
    """Cash at the start, in the currency of the prices."""
    initial_holdings: float | tuple[float, ...] = 0.0
    """Shares held at the start, one number or one per symbol."""
    hmax: Annotated[Positive, When("action", "shares")] = 100.0
    """Largest order in shares per symbol and day."""
    commission: Rate = 0.001
    """Share of the traded value, one number or one per symbol."""
    slippage: Rate = 0.0
    """Share of the price lost to the market on each trade, one number or one per symbol."""
    dead_zone: NotNegative = 0.0
    """Dead zone: actions up to this size, or with weights orders up to this share of the value, are dropped."""
    gate: Literal["none", "turbulence", "vix"] = "none"
    """Context series of the gate: above the threshold nothing is bought and everything is sold."""
    gate_threshold: Annotated[float, Within(high=math.inf), When("gate", told="a gate")] = 120.0
    """Threshold of the gate."""
    stop_loss: NotNegative = 0.0
    """Sell a position that has lost this share of its average purchase price; 0 for never."""
    shorting: bool = False
    """Allow short positions, collateralised by cash."""
    initial_margin: Annotated[NotNegative, When("shorting")] = 0.5
    """Initial margin: cash beyond the value of the shorts required to open one."""
    maintenance_margin: Annotated[float, When("shorting")] = 0.25
    """Maintenance margin: cash beyond the value of the shorts below which everything is closed."""
    borrow_rate: Annotated[NotNegative, When("shorting")] = 0.0
    """Yearly fee on the value of the shorts."""
    ruin_fraction: NotNegative = 0.0
    """The episode ends when the value falls to this share of its start."""
    random_start: bool = True
    """Draw path and start day; otherwise start at the first day."""
    episode_length: Count = 250
    """Days of an episode, at most."""
    min_episode_length: CountFromZero = 0
    """If above 0, lengths are drawn uniformly from here to episode_length."""
    reward_scale: Positive | None = None
    """Factor of the reward, with money in currency; by default the reward's own: returns in per cent, and money in per
    cent of the value at the start."""
    sharpe_decay: Annotated[Share, When("reward", "differential_sharpe")] = 0.01
    """Rate of the exponential means of the differential Sharpe ratio."""
    risk_aversion: Annotated[float, When("reward", "risk_penalised")] = 1.0
    """Weight of the squared return in the risk-penalised reward."""
    min_cash_fraction: NotNegative = 0.0
    """Cash below this share of the value is penalised."""
    cash_penalty_weight: Annotated[float, When("min_cash_fraction", told="a min_cash_fraction above 0")] = 1.0
    """Weight of that penalty."""
    terminal_bonus: float = 0.0
    """Reward on the last step per unit of the episode's return."""
    cash_scale: float | None = None
    """Factor of b in the observation, cash in currency; by default cash is a share of the value at the start."""
    price_scale: float | None = None
    """Factor of p in the observation, closes in currency; by default closes are relative to each symbol's first."""
    holdings_scale: float | None = None
    """Factor of h in the observation, shares; by default their worth, in equal parts of the value at the start."""
    feature_scale: float | None = None
    """Factor of f in the observation; by default each feature has its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if _largest(self.commission) + _largest(self.slippage) >= 1:
            raise ValueError(f"commission {self.commission} and slippage {self.slippage} together must be below 1")
        if self.min_episode_length > self.episode_length:
            raise ValueError(
                f"min_episode_length must be at most episode_length ({self.episode_length}), "
                f"got {self.min_episode_length}"
            )

    @property
    def own_reward_scale(self) -> float:
        """Factor of the reward that makes a day's of order one, without a `reward_scale`."""
        return DIFFERENTIAL_SHARPE_SCALE if self.reward == "differential_sharpe" else PERCENT

    @property
    def context(self) -> tuple[str, ...]:
        return () if self.gate == "none" else (self.gate,)


def _largest(rates: Rate) -> float:
    return max(rates) if isinstance(rates, tuple) else rates
