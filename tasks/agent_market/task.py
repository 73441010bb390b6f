"""Registration records of the tasks of the agent-based market."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from vecenv.learn.domain import Domain
from vecenv.registry import Actions, Task
from vecenv.system.later import later
from vecenv.tasks.agent_market.config import ExecutionConfig, MarketMakingConfig, SeatConfig, TradingConfig

Config = TypeVar("Config", bound=SeatConfig)

TEXT_TICKS, TEXT_STEP, TEXT_CANDLE = 600, 30, 10
"""Ticks of an episode, of a step and of a candle for agents that act by text: twenty answers."""


def spoken(config: Config) -> Config:
    """Return the config that shows ten levels of the book, which texts hold."""
    return replace(config, depth=True)


def slow(config: Config) -> Config:
    """Return the config with few and long steps, for agents that act by text."""
    return replace(config, max_ticks=TEXT_TICKS, ticks_per_step=TEXT_STEP, candle_ticks=TEXT_CANDLE)


ACTIONS: dict[str, Actions] = {"discrete": "one choice", "continuous": "numbers"}
"""What actions of `AGENT_MARKET` are, by their names."""


def market_task(name: str, config: Callable[..., SeatConfig], **more: Any) -> Task:  # noqa: ANN401
    """Return the record of a task of the market."""
    return Task(
        name=name,
        version="1",
        config=config,
        spoken=spoken,
        recording=later("vecenv.tasks.agent_market.records:RECORDING"),
        text_config=lambda: slow(config()),
        **more,
    )


AGENT_MARKET = market_task(
    "agent_market",
    TradingConfig,
    scenario=later("vecenv.tasks.agent_market.trading:Trading"),
    actions=lambda config: ACTIONS.get(config.action, "other"),
    agents=later("vecenv.tasks.agent_market.agents:TRADERS"),
    outcomes={"profit": "currency", "traded": "count", "equity": "currency", "evicted": "count"},
    domain=Domain(
        scale="0.5 at no profit, 0.73 at a return of env.grade_scale (a share of the initial cash), 0.27 at minus it",
        reference="hold",
        pictures=later("vecenv.tasks.agent_market.figures:position_figures"),
    ),
    text=later("vecenv.tasks.agent_market.text:TradingText"),
)

EXECUTION = market_task(
    "execution",
    ExecutionConfig,
    scenario=later("vecenv.tasks.agent_market.execution:Execution"),
    actions=lambda config: "other",
    agents=later("vecenv.tasks.agent_market.agents:EXECUTORS"),
    outcomes={"shortfall": "count", "shortfall_to_vwap": "count", "left": "count", "evicted": "count"},
    domain=Domain(
        scale="0.5 at no shortfall to the price at the start, 0.27 at one of env.grade_scale, 0.73 at as much gained",
        reference="twap",
        pictures=later("vecenv.tasks.agent_market.figures:execution_figures"),
    ),
    text=later("vecenv.tasks.agent_market.text:ExecutionText"),
)

MARKET_MAKING = market_task(
    "market_making",
    MarketMakingConfig,
    scenario=later("vecenv.tasks.agent_market.market_making:MarketMaking"),
    actions=lambda config: "other",
    agents=later("vecenv.tasks.agent_market.agents:QUOTERS"),
    outcomes={"profit": "currency", "traded": "count", "shares": "count", "evicted": "count"},
    domain=Domain(
        scale="0.5 at no profit, 0.73 at a profit of env.grade_scale, 0.27 at a loss of it",
        reference="fixed_spread_4",
        pictures=later("vecenv.tasks.agent_market.figures:inventory_figures"),
    ),
    text=later("vecenv.tasks.agent_market.text:MarketMakingText"),
)
