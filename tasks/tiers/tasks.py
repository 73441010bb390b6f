"""Registration records of the trading tiers and the curriculum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from vecenv.core.scenario import Scenario
from vecenv.market.account import MarketAccount
from vecenv.market.load import MarketOptions
from vecenv.registry import Task
from vecenv.tasks.tiers.agents import AGENTS
from vecenv.tasks.tiers.config import TIERS, TierConfig, tier_config
from vecenv.tasks.tiers.curriculum import Curriculum
from vecenv.tasks.tiers.curriculum_config import CurriculumConfig
from vecenv.tasks.tiers.order_list import MAX_ORDERS
from vecenv.tasks.tiers.recording import TierRecording
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.tools import TierTextWithTools
from vecenv.tasks.tiers.trained import check_trained, trained_on_tiers


def market_options(config: TierConfig | CurriculumConfig) -> MarketOptions:
    """Return the market requirements of a config: context series and symbols."""
    return MarketOptions(symbols=config.market_symbols or None, features=config.features, context=config.context)


def compared(config: Any) -> Any:  # noqa: ANN401
    """Return the config for comparing agents: order-list actions, with the maximum number of orders per day.

    The action space and number of orders that one agent was trained with do not restrict the other agents.
    """
    return replace(config, action="orders", max_orders=max(MAX_ORDERS, config.max_orders))


def spoken(config: Any) -> Any:  # noqa: ANN401
    """Return the config with order-list actions, into which texts are parsed."""
    return replace(config, action="orders")


def tier(name: str, scenario: Callable[..., Scenario], config: Callable[[], Any]) -> Task:
    """Return the record of a tier, or of the curriculum."""
    return Task(
        name=name,
        version="1",
        scenario=scenario,
        config=config,
        market=market_options,
        agents=AGENTS,
        outcomes={"portfolio_value": "currency", "total_return": "share", "cash": "currency"},
        account=MarketAccount(),
        compared=compared,
        one_choice=lambda config: False,
        numbers=lambda config: config.action in ("weights", "limit_weights"),
        trained=trained_on_tiers,
        check_trained=check_trained,
        text=TierTextWithTools,
        spoken=spoken,
        recording=TierRecording(),
    )


SINGLE_STOCK, SINGLE_STOCK_COSTS, MULTI_STOCK_3, PORTFOLIO, FULL_AUTONOMOUS = (
    tier(name, TierTrading, partial(tier_config, name)) for name in TIERS
)
CURRICULUM = tier("curriculum", Curriculum, CurriculumConfig)
