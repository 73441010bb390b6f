"""Registration records of the trading tiers and the curriculum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from vecenv.core.scenario import Scenario
from vecenv.finance.trading import Trading
from vecenv.registry import Task
from vecenv.tasks.tiers.agents import AGENTS, trained_on_tiers
from vecenv.tasks.tiers.config import TIERS, CurriculumConfig, tier_config
from vecenv.tasks.tiers.curriculum import Curriculum
from vecenv.tasks.tiers.law import MAX_ORDERS
from vecenv.tasks.tiers.programs import PROGRAMS, TierStrategies
from vecenv.tasks.tiers.records import TierRecording
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.text import TierText


def compared(config: Any) -> Any:  # noqa: ANN401
    """Return a config with order lists of the most orders: one agent's action space must not restrict the others."""
    return replace(config, action="orders", max_orders=max(MAX_ORDERS, config.max_orders))


def spoken(config: Any) -> Any:  # noqa: ANN401
    """Return the config with order-list actions, into which texts are parsed."""
    return replace(config, action="orders")


def check_trained(trained: Mapping[str, Any], config: Any) -> None:  # noqa: ANN401
    """Raise a ValueError if a config allows fewer orders a day than a policy was trained with."""
    if trained["max_orders"] > config.max_orders:
        raise ValueError(
            f"the checkpoint was trained with {trained['max_orders']} orders a day, more than {config.max_orders}"
        )


def tier(
    name: str,
    scenario: Callable[..., Scenario],
    config: Callable[[], Any],
    programs: TierStrategies | None = PROGRAMS,
) -> Task:
    """Return the record of a tier, or of the curriculum."""
    return Task(
        name=name,
        version="1",
        scenario=scenario,
        config=config,
        agents=AGENTS,
        outcomes={"portfolio_value": "currency", "total_return": "share", "cash": "currency"},
        actions=lambda config: "numbers" if config.action in ("weights", "limit_weights") else "other",
        domain=Trading(
            scale="calibrated is participation × position × discipline; a position is 1 at hindsight's net return, 0.5 "
            "at buy and hold's, and 0 at half of hindsight's lead (at least a point) below that, which may be a gain",
            compared=compared,
            trained=trained_on_tiers,
            check_trained=check_trained,
        ),
        text=TierText,
        spoken=spoken,
        recording=TierRecording(),
        programs=programs,
    )


SINGLE_STOCK, SINGLE_STOCK_COSTS, MULTI_STOCK_3, PORTFOLIO, FULL_AUTONOMOUS = (
    tier(name, TierTrading, partial(tier_config, name)) for name in TIERS
)
CURRICULUM = tier("curriculum", Curriculum, CurriculumConfig, programs=None)
