"""How much policies differ on the same observations of the test: by their distributions, and by their actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Bounded

from vecenv.core.collector import Policy
from vecenv.core.env import VecEnv
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.checkpoints import load_checkpoint


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
    env.reset_groups(env.num_envs, 1, seed)
    seen = []
    for _ in range(num_steps):
        observation = env.observations()
        seen.append(observation[~env.rows.done])
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
        parts.append(f"KL divergence {figures.mean_divergence:.3g} nats")
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
