"""Registration records of the trading tiers and the curriculum, and their trained policies beside other agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.finance.trading import Trading
from vecenv.learn.ensemble import NoEnsembleError, load_ensemble
from vecenv.learn.evaluation import PolicyAgent
from vecenv.registry import Task, make
from vecenv.tasks.tiers.agents import AGENTS
from vecenv.tasks.tiers.config import TIERS, CurriculumConfig, tier_config
from vecenv.tasks.tiers.curriculum import Curriculum
from vecenv.tasks.tiers.law import MAX_ORDERS
from vecenv.tasks.tiers.records import TierRecording
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.tools import TierTextWithTools


def compared(config: Any) -> Any:  # noqa: ANN401
    """Return a config with order lists of the most orders: one agent's action space must not restrict the others."""
    return replace(config, action="orders", max_orders=max(MAX_ORDERS, config.max_orders))


def spoken(config: Any) -> Any:  # noqa: ANN401
    """Return the config with order-list actions, into which texts are parsed."""
    return replace(config, action="orders")


class TrainedOnTiers:
    """A policy of the trading tiers, or the ensemble of several, as an agent with order-list actions.

    ``env`` has the policy's action space, on the same market as the comparison.
    """

    def __init__(self, paths: Sequence[Path], env: VecEnv) -> None:
        assert isinstance(env.scenario, TierTrading)
        self.scenario, self.agent = env.scenario, PolicyAgent(load_ensemble(paths, env))

    def act(self, env: VecEnv) -> Tensor:
        own = self.scenario

        def decoded(state: Any, action: Tensor) -> Tensor:  # noqa: ANN401
            return own.orders(state, action, own.params, own.shared)

        orders = torch.vmap(decoded)(env.state, self.agent.act(env))
        return torch.nn.functional.pad(orders, (0, 0, 0, env.action_spec.shape[-2] - orders.shape[-2]))


def trained_on_tiers(checkpoints: Sequence[Path], config: Any, env: VecEnv) -> TrainedOnTiers:  # noqa: ANN401
    """Return the agent of a checkpoint, or of the mean of several, for an environment with order-list actions.

    Raises:
        ValueError: a checkpoint does not fit the environment.
        NoEnsembleError: there are several checkpoints, of policies that write lists of orders.
    """
    if len(checkpoints) > 1 and config.action == "orders":
        raise NoEnsembleError("lists of orders have neither a mean nor a vote")
    scenario = env.scenario
    assert isinstance(scenario, TierTrading)
    own = replace(scenario.task_config, action=config.action, max_orders=config.max_orders, tilt_gain=config.tilt_gain)
    return TrainedOnTiers(
        checkpoints, make(scenario.task, market=scenario.tape, device=env.device, compile=False, config=own)
    )


def check_trained(trained: Mapping[str, Any], config: Any) -> None:  # noqa: ANN401
    """Raise a ValueError if a config allows fewer orders a day than a policy was trained with."""
    if trained["max_orders"] > config.max_orders:
        raise ValueError(
            f"the checkpoint was trained with {trained['max_orders']} orders a day, more than {config.max_orders}"
        )


def tier(name: str, scenario: Callable[..., Scenario], config: Callable[[], Any]) -> Task:
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
        text=TierTextWithTools,
        spoken=spoken,
        recording=TierRecording(),
    )


SINGLE_STOCK, SINGLE_STOCK_COSTS, MULTI_STOCK_3, PORTFOLIO, FULL_AUTONOMOUS = (
    tier(name, TierTrading, partial(tier_config, name)) for name in TIERS
)
CURRICULUM = tier("curriculum", Curriculum, CurriculumConfig)
