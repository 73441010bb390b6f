"""Registration records of the tasks of the agent-based market."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from vecenv.learn.domain import Domain
from vecenv.registry import Actions, Task
from vecenv.tasks.agent_market.agents import EXECUTORS, QUOTERS, TRADERS
from vecenv.tasks.agent_market.config import SeatConfig
from vecenv.tasks.agent_market.execution import Execution, ExecutionConfig
from vecenv.tasks.agent_market.figures import execution_figures, trading_figures
from vecenv.tasks.agent_market.market_making import MarketMaking, MarketMakingConfig
from vecenv.tasks.agent_market.records import MarketRecording
from vecenv.tasks.agent_market.text import ExecutionText, MarketMakingText, TradingText
from vecenv.tasks.agent_market.trading import Trading, TradingConfig

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

AGENT_MARKET = Task(
    name="agent_market",
    version="1",
    scenario=Trading,
    config=TradingConfig,
    actions=lambda config: ACTIONS.get(config.action, "other"),
    agents=TRADERS,
    outcomes={"profit": "currency", "traded": "count", "equity": "currency", "evicted": "count"},
    domain=Domain(
        scale="0.5 at no profit, 0.73 at a return of env.grade_scale (a share of the initial cash), 0.27 at minus it",
        reference="hold",
        pictures=trading_figures("Position"),
    ),
    text=TradingText,
    spoken=spoken,
    recording=MarketRecording(),
    text_config=lambda: slow(TradingConfig()),
)

EXECUTION = Task(
    name="execution",
    version="1",
    scenario=Execution,
    config=ExecutionConfig,
    actions=lambda config: "other",
    agents=EXECUTORS,
    outcomes={"shortfall": "count", "shortfall_to_vwap": "count", "left": "count", "evicted": "count"},
    domain=Domain(
        scale="0.5 at no shortfall to the price at the start, 0.27 at one of env.grade_scale, 0.73 at as much gained",
        reference="twap",
        pictures=execution_figures,
    ),
    text=ExecutionText,
    spoken=spoken,
    recording=MarketRecording(),
    text_config=lambda: slow(ExecutionConfig()),
)

MARKET_MAKING = Task(
    name="market_making",
    version="1",
    scenario=MarketMaking,
    config=MarketMakingConfig,
    actions=lambda config: "other",
    agents=QUOTERS,
    outcomes={"profit": "currency", "traded": "count", "shares": "count", "evicted": "count"},
    domain=Domain(
        scale="0.5 at no profit, 0.73 at a profit of env.grade_scale, 0.27 at a loss of it",
        reference="fixed_spread_4",
        pictures=trading_figures("Inventory"),
    ),
    text=MarketMakingText,
    spoken=spoken,
    recording=MarketRecording(),
    text_config=lambda: slow(MarketMakingConfig()),
)
