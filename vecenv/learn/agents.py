"""Agents: stateless, so that one may play any number of environments, in any order; policies, and random actions."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from vecenv.core.collector import Policy
from vecenv.core.env import VecEnv
from vecenv.core.random import random_action


class Agent(Protocol):
    """Protocol of an agent."""

    def act(self, env: VecEnv) -> Tensor:
        """Return an action for every row of ``env``. Shape: (N, *action)."""
        ...


class PolicyAgent:
    """A policy of the fused collector, deterministic or random by the episodes' keys, as an agent."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @torch.no_grad()
    def act(self, env: VecEnv) -> Tensor:
        return self.policy.act(self.policy.parameters, env.observations(), env.episode_keys, env.rows.elapsed)[0]


class Random:
    """Draws uniform actions, reproducible by the episodes' keys."""

    def act(self, env: VecEnv) -> Tensor:
        return random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)
