"""Registration records of the trading tiers and the curriculum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from vecenv.finance.trading import Trading
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.tiers.config import TIERS, CurriculumConfig, tier_config
from vecenv.tasks.tiers.limits import MAX_ORDERS

PROGRAMS = later("vecenv.tasks.tiers.programs:PROGRAMS")


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
    scenario: Any,  # noqa: ANN401
    config: Callable[[], Any],
    programs: Any = PROGRAMS,  # noqa: ANN401
) -> Task:
    """Return the record of a tier, or of the curriculum."""
    return Task(
        name=name,
        version="1",
        scenario=scenario,
        config=config,
        agents=later("vecenv.tasks.tiers.agents:AGENTS"),
        outcomes={"portfolio_value": "currency", "total_return": "share", "cash": "currency"},
        actions=lambda config: "numbers" if config.action in ("weights", "limit_weights") else "other",
        domain=Trading(
            scale="calibrated is participation × position × discipline; a position is 1 at hindsight's net return, 0.5 "
            "at buy and hold's, and 0 at half of hindsight's lead (at least a point) below that, which may be a gain",
            teachers=("rule_based", "oracle"),
            compared=compared,
            trained=later("vecenv.tasks.tiers.agents:trained_on_tiers"),
            check_trained=check_trained,
        ),
        text=later("vecenv.tasks.tiers.text:TierText"),
        spoken=spoken,
        recording=later("vecenv.tasks.tiers.records:RECORDING"),
        programs=programs,
    )


SINGLE_STOCK, SINGLE_STOCK_COSTS, MULTI_STOCK_3, PORTFOLIO, FULL_AUTONOMOUS = (
    tier(name, later("vecenv.tasks.tiers.scenario:TierTrading"), partial(tier_config, name)) for name in TIERS
)
CURRICULUM = tier("curriculum", later("vecenv.tasks.tiers.curriculum:Curriculum"), CurriculumConfig, programs=None)
