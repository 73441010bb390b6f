"""Ensembles: a policy whose action is the mean of the actions of several policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torchrl.data import Bounded, TensorSpec

from vecenv.core.collector import Policy
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.learn.policies import load_policy


class NoMeanError(ValueError):
    """The actions are choices, which have no mean."""


class MeanPolicy:
    """The mean of the actions of policies, each taken within the bounds of the spec, as the environment takes it.

    Args:
        policies: of the same environment, at least one.
        spec: of one agent's action.

    Raises:
        ValueError: there is no policy.
        NoMeanError: the actions are choices.
    """

    def __init__(self, policies: Sequence[Policy], spec: TensorSpec) -> None:
        if not policies:
            raise ValueError("an ensemble needs a policy")
        if not isinstance(spec, Bounded) or not spec.dtype.is_floating_point:
            raise NoMeanError(f"actions of {type(spec).__name__} with dtype {spec.dtype} have no mean")
        self.policies, self.spec = list(policies), spec
        self.parameters = [parameter for policy in self.policies for parameter in policy.parameters]
        self.extras: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}

    def act(
        self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the mean actions. Shape: (N, *spec.shape)."""
        total, first = torch.zeros((), device=observation.device), 0
        for policy in self.policies:
            last = first + len(policy.parameters)
            action = policy.act(parameters[first:last], observation, key, elapsed)[0]
            total = total + torch.clamp(action, self.spec.space.low, self.spec.space.high)
            first = last
        return (total / len(self.policies),)


def load_mean_policy(paths: Sequence[Path], env: VecEnv) -> Policy:
    """Load the policy of one checkpoint, or of several the mean of their most probable actions.

    Args:
        paths: of the checkpoints, at least one.
        env: an environment with the policies' action space; see `load_policy`.

    Raises:
        ValueError: a checkpoint does not fit the environment.
        NoMeanError: there are several, and their actions are choices.
    """
    policies = [load_policy(path, env) for path in paths]
    return policies[0] if len(policies) == 1 else MeanPolicy(policies, env.scenario.action_spec)
