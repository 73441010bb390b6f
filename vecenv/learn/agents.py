"""Whatever acts in an environment: the protocol, a policy, and uniform draws.

An agent looks at an environment and returns an action for every row. It keeps nothing between calls: whatever it needs
is in the environment's state, so one agent may play any number of environments, in any order.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from vecenv.core.collector import Policy
from vecenv.core.env import VecEnv
from vecenv.core.random_actions import random_action


class Agent(Protocol):
    """Whatever can act in an environment."""

    def act(self, env: VecEnv) -> Tensor:
        """Return an action for every row of ``env``. Shape: (N, *action)."""
        ...


class PolicyAgent:
    """A policy of the fused collector as an agent.

    Args:
        policy: deterministic or not; it draws from each episode's own key.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @torch.no_grad()
    def act(self, env: VecEnv) -> Tensor:
        """Return the policy's action for what each row sees. Shape: (N, *action)."""
        observation = env.observe_rows(env.rows, torch.arange(env.num_envs, device=env.device))
        return self.policy.act(self.policy.parameters, observation, env.episode_keys, env.rows.elapsed)[0]


class Random:
    """Draws uniform actions from each episode's own key, the same in every run."""

    def act(self, env: VecEnv) -> Tensor:
        """Return random actions. Shape: (N, K)."""
        return random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)
