"""Policies that were trained on a tier, compared with others by the orders that they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.ppo import load_policy
from vecenv.registry import make
from vecenv.tasks.tiers.scenario import TierTrading


class TrainedOnTiers:
    """A policy of the trading tiers as an agent that gives lists of orders.

    Args:
        path: of the checkpoint.
        env: an environment with the policy's own space of actions, on the market of those that it will act in.

    Raises:
        ValueError: the checkpoint does not fit the environment.
    """

    def __init__(self, path: Path, env: VecEnv) -> None:
        assert isinstance(env.scenario, TierTrading)
        self.scenario, self.agent = env.scenario, PolicyAgent(load_policy(path, env))

    def act(self, env: VecEnv) -> Tensor:
        """Return the policy's orders, and HOLD for the others of the day. Shape: (N, M, 3), float32."""
        own = self.scenario

        def decoded(state: Any, action: Tensor) -> Tensor:  # noqa: ANN401
            return own.orders(state, action, own.params, own.market)

        orders = torch.vmap(decoded)(env.state, self.agent.act(env))
        return torch.nn.functional.pad(orders, (0, 0, 0, env.action_spec.shape[-2] - orders.shape[-2]))


def trained_on_tiers(checkpoint: Path, rules: Any, env: VecEnv) -> TrainedOnTiers:  # noqa: ANN401
    """Return the agent of a checkpoint for an environment in which agents give lists of orders.

    Args:
        checkpoint: of a policy.
        rules: that it was trained under, whose space of actions it keeps.
        env: its environment.

    Raises:
        ValueError: the checkpoint does not fit the environment.
    """
    scenario = env.scenario
    assert isinstance(scenario, TierTrading)
    settings = getattr(scenario, "settings", scenario.config)
    own = replace(settings, action=rules.action, max_orders=rules.max_orders)
    return TrainedOnTiers(
        checkpoint, make(scenario.task, market=scenario.tape, device=env.device, compile=False, config=own)
    )


def check_trained(trained: Mapping[str, Any], rules: Any) -> None:  # noqa: ANN401
    """Refuse rules that allow fewer orders a day than a policy was trained with.

    Raises:
        ValueError: they do.
    """
    if trained["max_orders"] > rules.max_orders:
        raise ValueError(
            f"the checkpoint was trained with {trained['max_orders']} orders a day, more than {rules.max_orders}"
        )
