"""Ensembles of policies: the mean of actions that are numbers, the vote on actions that are choices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from vecenv.core.collector import Policy
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.learn.policies import load_policy


class NoEnsembleError(ValueError):
    """The actions have neither a mean nor a vote."""


class MeanPolicy:
    """The mean of the actions of policies, each taken within the bounds of the spec, as the environment takes it.

    Args:
        policies: of the same environment, at least one.
        spec: of one agent's action.

    Raises:
        ValueError: there is no policy.
        NoEnsembleError: the actions are no numbers.
    """

    def __init__(self, policies: Sequence[Policy], spec: TensorSpec) -> None:
        if not isinstance(spec, Bounded) or not spec.dtype.is_floating_point:
            raise NoEnsembleError(f"actions of {type(spec).__name__} with dtype {spec.dtype} have no mean")
        self.spec, self._members = spec, _Members(policies)
        self.parameters = self._members.parameters
        self.extras: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}

    def act(
        self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the mean actions. Shape: (N, *spec.shape)."""
        actions = self._members.actions(parameters, observation, key, elapsed)
        total = torch.zeros((), device=observation.device)
        for action in actions:
            total = total + torch.clamp(action, self.spec.space.low, self.spec.space.high)
        return (total / len(actions),)


class VotePolicy:
    """The choice of most policies, of each component of an action; among equally many, that of the first of them.

    Args:
        policies: of the same environment, at least one.
        spec: of one agent's action.

    Raises:
        ValueError: there is no policy.
        NoEnsembleError: the actions are no choices.
    """

    def __init__(self, policies: Sequence[Policy], spec: TensorSpec) -> None:
        if not isinstance(spec, Categorical | MultiCategorical):
            raise NoEnsembleError(f"actions of {type(spec).__name__} with dtype {spec.dtype} have no vote")
        self._members = _Members(policies)
        self.parameters = self._members.parameters
        self.extras: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"agreement": ((), torch.float32)}

    def act(
        self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the voted actions, and the share of policies whose whole action that is. Shapes: (N, ...), (N,)."""
        actions = torch.stack(self._members.actions(parameters, observation, key, elapsed))
        votes = (actions.unsqueeze(0) == actions.unsqueeze(1)).sum(1)
        # Of equal maxima argmax may return any; the first policies weigh a little more.
        count = len(actions)
        order = torch.arange(count, 0, -1, device=votes.device).view(-1, *[1] * (votes.ndim - 1))
        chosen = actions.gather(0, (votes * (count + 1) + order).argmax(0, keepdim=True)).squeeze(0)
        agreement = (actions == chosen).flatten(2).all(-1).float().mean(0)
        return chosen, agreement


class _Members:
    """Policies whose parameters are one list.

    Raises:
        ValueError: there is no policy.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        if not policies:
            raise ValueError("an ensemble needs a policy")
        self.policies = list(policies)
        self.parameters = [parameter for policy in self.policies for parameter in policy.parameters]

    def actions(self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor) -> list[Tensor]:
        """Return the action of each policy. Shape of each: (N, *spec.shape)."""
        remaining, actions = list(parameters), []
        for policy in self.policies:
            own, remaining = remaining[: len(policy.parameters)], remaining[len(policy.parameters) :]
            actions.append(policy.act(own, observation, key, elapsed)[0])
        return actions


def load_ensemble(paths: Sequence[Path], env: VecEnv) -> Policy:
    """Load the policy of one checkpoint, or of several the mean or the vote of their most probable actions.

    Args:
        paths: of the checkpoints, at least one.
        env: an environment with the policies' action space; see `load_policy`.

    Raises:
        ValueError: a checkpoint does not fit the environment.
        NoEnsembleError: there are several, and their actions have neither a mean nor a vote.
    """
    policies, spec = [load_policy(path, env) for path in paths], env.scenario.action_spec
    if len(policies) == 1:
        return policies[0]
    return (
        VotePolicy(policies, spec) if isinstance(spec, Categorical | MultiCategorical) else MeanPolicy(policies, spec)
    )


@torch.no_grad()
def disagreement(policy: VotePolicy, env: VecEnv, seed: int, num_steps: int = 256) -> float:
    """Return the share of steps of the vote's own episodes at which its policies do not all choose the same.

    Args:
        policy: a vote.
        env: whose episodes of a seed it plays from their start.
        seed: of the episodes.
        num_steps: most steps to play.
    """
    env.reset_groups(env.num_envs, 1, seed)
    differ, counted = torch.zeros((), device=env.device), 0
    for _ in range(num_steps):
        action, agreement = policy.act(policy.parameters, env.observations(), env.episode_keys, env.rows.elapsed)
        differ = differ + (agreement < 1).float().sum()
        counted += len(agreement)
        env.advance(action)
    return float(differ) / counted
