"""Trained tier policies as order-list agents, for comparisons."""

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
    """A policy of the trading tiers as an agent with order-list actions.

    Args:
        path: of the checkpoint.
        env: an environment with the policy's action space, on the same market as the comparison.

    Raises:
        ValueError: the checkpoint does not fit the environment.
    """

    def __init__(self, path: Path, env: VecEnv) -> None:
        assert isinstance(env.scenario, TierTrading)
        self.scenario, self.agent = env.scenario, PolicyAgent(load_policy(path, env))

    def act(self, env: VecEnv) -> Tensor:
        """Return the policy's orders, padded with HOLD. Shape: (N, M, 3), float32."""
        own = self.scenario

        def decoded(state: Any, action: Tensor) -> Tensor:  # noqa: ANN401
            return own.orders(state, action, own.params, own.shared)

        orders = torch.vmap(decoded)(env.state, self.agent.act(env))
        return torch.nn.functional.pad(orders, (0, 0, 0, env.action_spec.shape[-2] - orders.shape[-2]))


def trained_on_tiers(checkpoint: Path, config: Any, env: VecEnv) -> TrainedOnTiers:  # noqa: ANN401
    """Return the agent of a checkpoint for an environment with order-list actions.

    Args:
        checkpoint: of a policy.
        config: that the policy was trained under, whose action space the policy keeps.
        env: environment of the comparison.

    Raises:
        ValueError: the checkpoint does not fit the environment.
    """
    scenario = env.scenario
    assert isinstance(scenario, TierTrading)
    own = replace(scenario.task_config, action=config.action, max_orders=config.max_orders, tilt_gain=config.tilt_gain)
    return TrainedOnTiers(
        checkpoint, make(scenario.task, market=scenario.tape, device=env.device, compile=False, config=own)
    )


def check_trained(trained: Mapping[str, Any], config: Any) -> None:  # noqa: ANN401
    """Reject a config that allows fewer orders a day than a policy was trained with.

    Raises:
        ValueError: it allows fewer.
    """
    if trained["max_orders"] > config.max_orders:
        raise ValueError(
            f"the checkpoint was trained with {trained['max_orders']} orders a day, more than {config.max_orders}"
        )
