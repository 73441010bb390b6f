"""Agents: the protocol, a policy as an agent, and uniform random actions.

An agent takes an environment and returns an action for every row. It is stateless: all that it needs is in the
environment's state, so one agent may play any number of environments, in any order.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from vecenv.core.collector import Policy
from vecenv.core.env import VecEnv
from vecenv.core.random_actions import random_action


class Agent(Protocol):
    """Protocol of an agent."""

    def act(self, env: VecEnv) -> Tensor:
        """Return an action for every row of ``env``. Shape: (N, *action)."""
        ...


class PolicyAgent:
    """A policy of the fused collector as an agent.

    Args:
        policy: deterministic, or random by the episodes' keys.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @torch.no_grad()
    def act(self, env: VecEnv) -> Tensor:
        """Return the policy's actions for the current observations. Shape: (N, *action)."""
        return self.policy.act(self.policy.parameters, env.observations(), env.episode_keys, env.rows.elapsed)[0]


class Random:
    """Draws uniform actions, reproducible by the episodes' keys."""

    def act(self, env: VecEnv) -> Tensor:
        """Return random actions. Shape: (N, K)."""
        return random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)
