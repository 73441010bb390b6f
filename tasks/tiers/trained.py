"""Trained tier policies as order-list agents, for comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.ensemble import NoEnsembleError, load_ensemble
from vecenv.registry import make
from vecenv.tasks.tiers.scenario import TierTrading


class TrainedOnTiers:
    """A policy of the trading tiers, or the ensemble of several, as an agent with order-list actions.

    Args:
        paths: of the checkpoints.
        env: an environment with the policy's action space, on the same market as the comparison.

    Raises:
        ValueError: the checkpoint does not fit the environment.
    """

    def __init__(self, paths: Sequence[Path], env: VecEnv) -> None:
        assert isinstance(env.scenario, TierTrading)
        self.scenario, self.agent = env.scenario, PolicyAgent(load_ensemble(paths, env))

    def act(self, env: VecEnv) -> Tensor:
        """Return the policy's orders, padded with HOLD. Shape: (N, M, 3), float32."""
        own = self.scenario

        def decoded(state: Any, action: Tensor) -> Tensor:  # noqa: ANN401
            return own.orders(state, action, own.params, own.shared)

        orders = torch.vmap(decoded)(env.state, self.agent.act(env))
        return torch.nn.functional.pad(orders, (0, 0, 0, env.action_spec.shape[-2] - orders.shape[-2]))


def trained_on_tiers(checkpoints: Sequence[Path], config: Any, env: VecEnv) -> TrainedOnTiers:  # noqa: ANN401
    """Return the agent of a checkpoint, or of the mean of several, for an environment with order-list actions.

    Args:
        checkpoints: of policies.
        config: that the policies were trained under, whose action space they keep.
        env: environment of the comparison.

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
    """Reject a config that allows fewer orders a day than a policy was trained with.

    Raises:
        ValueError: it allows fewer.
    """
    if trained["max_orders"] > config.max_orders:
        raise ValueError(
            f"the checkpoint was trained with {trained['max_orders']} orders a day, more than {config.max_orders}"
        )
