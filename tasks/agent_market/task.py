"""Registration records of the tasks of the agent-based market."""

from __future__ import annotations

from vecenv.registry import Task
from vecenv.tasks.agent_market.agents import EXECUTORS, QUOTERS, TRADERS
from vecenv.tasks.agent_market.execution import Execution, ExecutionConfig
from vecenv.tasks.agent_market.figures import execution_figures, trading_figures
from vecenv.tasks.agent_market.market_making import MarketMaking, MarketMakingConfig
from vecenv.tasks.agent_market.trading import Trading, TradingConfig

AGENT_MARKET = Task(
    name="agent_market",
    version="1",
    scenario=Trading,
    config=TradingConfig,
    agents=TRADERS,
    reference="hold",
    outcomes={"profit": "currency", "traded": "count", "equity": "currency", "evicted": "count"},
    figures=trading_figures("Position"),
)

EXECUTION = Task(
    name="execution",
    version="1",
    scenario=Execution,
    config=ExecutionConfig,
    agents=EXECUTORS,
    reference="twap",
    outcomes={"shortfall": "count", "shortfall_to_vwap": "count", "left": "count", "evicted": "count"},
    figures=execution_figures,
)

MARKET_MAKING = Task(
    name="market_making",
    version="1",
    scenario=MarketMaking,
    config=MarketMakingConfig,
    agents=QUOTERS,
    reference="fixed_spread_4",
    outcomes={"profit": "currency", "traded": "count", "shares": "count", "evicted": "count"},
    figures=trading_figures("Inventory"),
)
