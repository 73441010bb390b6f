"""Ensembles of policies: how several become one, by means, votes or the best alone, and how much they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from vecenv.core.collector import Policy
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.core.scenario import Observation, flat_view
from vecenv.learn.checkpoints import load_checkpoint
from vecenv.learn.policies import ActorPolicy, load_policy
from vecenv.learn.settings.ensemble import Combination


def sharpe_weights(ratios: Sequence[float], temperature: float) -> list[float]:
    """Return weights softmax(ratio / temperature), which add up to 1, of some Sharpe ratios."""
    return torch.softmax(torch.tensor(ratios, dtype=torch.float64) / temperature, 0).tolist()


def best_of(ratios: Sequence[float]) -> int:
    """Return the place of the highest Sharpe ratio, of equal ones the first; NaN is the lowest."""
    return max(range(len(ratios)), key=lambda place: -math.inf if math.isnan(ratios[place]) else ratios[place])


def validation_sharpes(paths: Sequence[Path]) -> list[float]:
    """Return the Sharpe ratio of each checkpoint's validation; ValueError without validation or accounts."""
    return [_validation_sharpe(load_checkpoint(path, torch.device("cpu")), path) for path in paths]


def _validation_sharpe(state: Mapping[str, Any], path: Path) -> float:
    best = state["best"] if isinstance(state.get("best"), Mapping) else {}
    ratio = float(best.get("sharpe", math.nan))
    if math.isnan(ratio):
        raise ValueError(f"{path}: holds no Sharpe ratio of a validation; train with --validation-fraction above 0")
    return ratio


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
        self, parameters: list[Tensor], observation: Observation, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        actions = self._members.actions(parameters, observation, key, elapsed)
        total = torch.zeros((), device=actions[0].device)
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
        self, parameters: list[Tensor], observation: Observation, key: EpisodeKey, elapsed: Tensor
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
        self, parameters: list[Tensor], observation: Observation, key: EpisodeKey, elapsed: Tensor
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

    def actions(
        self, parameters: list[Tensor], observation: Observation, key: EpisodeKey, elapsed: Tensor
    ) -> list[Tensor]:
        remaining, actions = list(parameters), []
        for policy in self.policies:
            own, remaining = remaining[: len(policy.parameters)], remaining[len(policy.parameters) :]
            actions.append(policy.act(own, observation, key, elapsed)[0])
        return actions


def members_of(policy: Policy) -> list[Policy]:
    """Return the policies of an ensemble, or the one that is none."""
    return policy._members.policies if isinstance(policy, MeanPolicy | VotePolicy | SignVotePolicy) else [policy]


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
    env.reset_first(seed)
    differ, counted = torch.zeros((), device=env.device), 0
    for _ in range(num_steps):
        action, agreement = policy.act(policy.parameters, env.observations(), env.episode_keys, env.rows.elapsed)
        differ = differ + (agreement < 1).float().sum()
        counted += len(agreement)
        env.advance(action)
    return float(differ) / counted


@dataclass(frozen=True)
class Diversity:
    """Differences of policies, means over observations of the test.

    Attributes:
        disagreement: of choices the share that differs between two policies, of numbers the share of opposite signs;
            the mean over all pairs and components.
        distance: root mean square difference of actions that are numbers, within their bounds; None for choices.
        divergence: KL divergence of the distribution of each policy, by row, from that of each other, by column, in
            nats and summed over the components; None where policies are no distributions.
    """

    disagreement: float
    distance: float | None
    divergence: list[list[float]] | None

    @property
    def mean_divergence(self) -> float | None:
        """Mean KL divergence over all ordered pairs of policies."""
        if self.divergence is None:
            return None
        count = len(self.divergence)
        return sum(map(sum, self.divergence)) / (count * (count - 1))

    def to_json(self) -> dict[str, Any]:
        told = {"disagreement": self.disagreement, "distance": self.distance}
        return told | {"kl": self.divergence, "mean_kl": self.mean_divergence}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Diversity:
        return cls(told["disagreement"], told["distance"], told["kl"])


def played_observations(policy: Policy, env: VecEnv, seed: int, num_steps: int) -> Tensor:
    """Return what a policy sees in its own episodes of a seed, from their start, T steps. Shape: (at most T N, D)."""
    env.reset_first(seed)
    seen = []
    for _ in range(num_steps):
        observation = env.observations()
        seen.append(flat_view(observation)[~env.rows.done])
        env.advance(policy.act(policy.parameters, observation, env.episode_keys, env.rows.elapsed)[0])
    return torch.cat(seen)


@torch.no_grad()
def diversity(
    policies: Sequence[ActorPolicy], played: Policy, env: VecEnv, seed: int, num_steps: int = 64, random: bool = True
) -> Diversity:
    """Return how much at least two policies differ on the observations of the episodes that ``played`` plays.

    Unless they draw their actions (``random``), their distributions are not compared. ``env`` is overwritten.
    """
    if len(policies) < 2:
        raise ValueError(f"diversity needs at least two policies, got {len(policies)}")
    observation = played_observations(played, env, seed, num_steps)
    spec = env.scenario.action_spec
    outputs = [_outputs(policy, observation) for policy in policies]
    actions = [policy.network.head.mode(output) for policy, (output, _) in zip(policies, outputs, strict=True)]
    distance, heads = None, {type(policy.network.head) for policy in policies}
    if isinstance(spec, Bounded):
        actions = [torch.clamp(action, spec.space.low, spec.space.high) for action in actions]
        pairs = [(one - other).square().mean() for one, other in combinations(actions, 2)]
        distance = math.sqrt(float(torch.stack(pairs).mean()))
        differ = [one * other < 0 for one, other in combinations(actions, 2)]
    else:
        differ = [one != other for one, other in combinations(actions, 2)]
    share = float(torch.stack([pair.float().mean() for pair in differ]).mean())
    return Diversity(share, distance, _divergences(policies, outputs) if random and len(heads) == 1 else None)


def draws_actions(path: Path) -> bool:
    """Whether the learner of a checkpoint drew its actions from the actor's distribution, and so trained its spread."""
    config = load_checkpoint(path, torch.device("cpu")).get("config")
    # Their losses weigh the entropy, by a constant or by what SAC learns.
    return isinstance(config, Mapping) and not config.keys().isdisjoint(("entropy_coef", "target_entropy"))


def diversity_line(figures: Diversity) -> str:
    """Return one sentence on the figures."""
    parts = [f"{'choices differ' if figures.distance is None else 'signs are opposite'} at {figures.disagreement:.1%}"]
    if figures.distance is not None:
        parts.append(f"RMS distance of actions {figures.distance:.3g}")
    if figures.mean_divergence is not None:
        parts.append(f"KL divergence of the distributions of actions {figures.mean_divergence:.3g} nats (0: the same)")
    return f"Diversity of the policies, means over pairs: {', '.join(parts)}"


def _outputs(policy: ActorPolicy, observation: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the inputs, shape (B, size), and the parameters of a policy's head."""
    mean, deviation, *actor = policy.parameters
    network = policy.network
    return network.outputs(actor, network.normalised(observation, mean, deviation), network.mask(observation))


def _divergences(
    policies: Sequence[ActorPolicy], outputs: Sequence[tuple[Tensor, Sequence[Tensor]]]
) -> list[list[float]]:
    head = policies[0].network.head
    return [[float(head.divergence(*one, *other).mean()) for other in outputs] for one in outputs]
