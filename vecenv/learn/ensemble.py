"""Ensembles of policies: mean of actions that are numbers, votes on choices and on signs, or the best policy alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from vecenv.core.collector import Policy
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.learn.combination import Combination, best_of, sharpe_weights, validation_sharpes
from vecenv.learn.policies import load_policy

SAME_VOTES = 1e-6
"""Difference of sums of weights that counts as none."""


class NoEnsembleError(ValueError):
    """The actions have neither a mean nor a vote."""


class MeanPolicy:
    """The weighted mean of the actions of policies, each taken within the bounds, as the environment takes it.

    Raises:
        ValueError: there is no policy.
        NoEnsembleError: the actions are no numbers.
    """

    def __init__(self, policies: Sequence[Policy], spec: TensorSpec, weights: Sequence[float] | None = None) -> None:
        self.spec, self._members = _numbers(spec, "mean"), _Members(policies)
        self.weights = weights
        self.parameters = self._members.parameters
        self.extras: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}

    def act(
        self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        actions = self._members.actions(parameters, observation, key, elapsed)
        total = torch.zeros((), device=observation.device)
        for action, weight in zip(actions, self.weights or [1.0] * len(actions), strict=True):
            total = total + weight * torch.clamp(action, self.spec.space.low, self.spec.space.high)
        return (total if self.weights else total / len(actions),)


class VotePolicy:
    """The choice of most policies, of each component of an action; among equally many, that of the first of them.

    Raises:
        ValueError: there is no policy.
        NoEnsembleError: the actions are no choices.
    """

    def __init__(self, policies: Sequence[Policy], spec: TensorSpec, weights: Sequence[float] | None = None) -> None:
        if not isinstance(spec, Categorical | MultiCategorical):
            raise NoEnsembleError(f"actions of {type(spec).__name__} with dtype {spec.dtype} have no vote")
        self._members, self.weights = _Members(policies), weights
        self.parameters = self._members.parameters
        self.extras: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"agreement": ((), torch.float32)}

    def act(
        self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the voted actions, and the share of policies whose whole action that is. Shapes: (N, ...), (N,)."""
        actions = torch.stack(self._members.actions(parameters, observation, key, elapsed))
        chosen = actions.gather(0, first_of_most(actions, self.weights).unsqueeze(0)).squeeze(0)
        agreement = (actions == chosen).flatten(2).all(-1).float().mean(0)
        return chosen, agreement


class SignVotePolicy:
    """The sign of most policies, of each component of an action, with the mean size of those that agree.

    Of signs with equally many votes that of the first policy counts. 0 is a sign too: where it wins, the action is 0.

    Raises:
        ValueError: there is no policy.
        NoEnsembleError: the actions are no numbers.
    """

    def __init__(self, policies: Sequence[Policy], spec: TensorSpec) -> None:
        self.spec, self._members = _numbers(spec, "vote on signs"), _Members(policies)
        self.parameters = self._members.parameters
        self.extras: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"agreement": ((), torch.float32)}

    def act(
        self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the voted actions, and the share of policies that agree on all signs. Shapes: (N, ...), (N,)."""
        actions = torch.stack(self._members.actions(parameters, observation, key, elapsed))
        actions = torch.clamp(actions, self.spec.space.low, self.spec.space.high)
        signs = actions.sign()
        agrees = signs == signs.gather(0, first_of_most(signs).unsqueeze(0))
        mean = torch.where(agrees, actions, 0.0).sum(0) / agrees.sum(0)
        return mean, agrees.flatten(2).all(-1).float().mean(0)


def first_of_most(actions: Tensor, weights: Sequence[float] | None = None) -> Tensor:
    """Return the first policy whose value has most votes, of each component. Shapes: (P, N, ...) -> (N, ...), int64."""
    votes = torch.zeros(actions.shape, device=actions.device)
    for action, weight in zip(actions, weights or [1.0] * len(actions), strict=True):
        votes = votes + weight * (actions == action)
    # Sums of equal weights may differ by rounding; of equal maxima argmax might return any.
    most = votes >= votes.amax(0) - SAME_VOTES
    place = torch.arange(len(actions), device=actions.device).view(-1, *[1] * (actions.ndim - 1))
    return torch.where(most, place, len(actions)).amin(0)


def _numbers(spec: TensorSpec, what: str) -> Bounded:
    """Return the spec of actions that are numbers; of others raise `NoEnsembleError`."""
    if not isinstance(spec, Bounded) or not spec.dtype.is_floating_point:
        raise NoEnsembleError(f"actions of {type(spec).__name__} with dtype {spec.dtype} have no {what}")
    return spec


class _Members:
    """Policies, at least one, whose parameters are one list."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        if not policies:
            raise ValueError("an ensemble needs a policy")
        self.policies = list(policies)
        self.parameters = [parameter for policy in self.policies for parameter in policy.parameters]

    def actions(self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor) -> list[Tensor]:
        remaining, actions = list(parameters), []
        for policy in self.policies:
            own, remaining = remaining[: len(policy.parameters)], remaining[len(policy.parameters) :]
            actions.append(policy.act(own, observation, key, elapsed)[0])
        return actions


def load_ensemble(paths: Sequence[Path], env: VecEnv, combination: Combination | None = None) -> Policy:
    """Load the policy of one checkpoint, or the combination of several: by default the mean, of choices the vote.

    Raises:
        ValueError: a checkpoint does not fit the environment, or lacks the Sharpe ratio that the combination needs.
        NoEnsembleError: there are several, and their actions have neither a mean nor a vote.
    """
    combination = combination or Combination()
    policies, spec = [load_policy(path, env) for path in paths], env.scenario.action_spec
    if len(policies) == 1:
        return policies[0]
    if combination.kind == "select":
        return policies[best_of(validation_sharpes(paths))]
    weights = None
    if combination.kind == "weighted":
        weights = sharpe_weights(validation_sharpes(paths), combination.temperature)
    if isinstance(spec, Categorical | MultiCategorical):
        return VotePolicy(policies, spec, weights)
    return SignVotePolicy(policies, spec) if combination.kind == "vote" else MeanPolicy(policies, spec, weights)


@torch.no_grad()
def disagreement(policy: VotePolicy, env: VecEnv, seed: int, num_steps: int = 256) -> float:
    """Return the share of steps of the vote's own episodes at which its policies do not all choose the same."""
    env.reset_groups(env.num_envs, 1, seed)
    differ, counted = torch.zeros((), device=env.device), 0
    for _ in range(num_steps):
        action, agreement = policy.act(policy.parameters, env.observations(), env.episode_keys, env.rows.elapsed)
        differ = differ + (agreement < 1).float().sum()
        counted += len(agreement)
        env.advance(action)
    return float(differ) / counted
