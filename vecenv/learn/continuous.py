"""Base class of learners of continuous actions from replay: an actor, and critics of what is seen and done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.bounds import Bounds, clamp_inward
from vecenv.learn.learner_config import OffPolicyConfig
from vecenv.learn.networks import FlatNetwork
from vecenv.learn.off_policy import OffPolicyLearner
from vecenv.system.settings import Count, Positive, PositiveShare


@dataclass(frozen=True)
class ContinuousConfig(OffPolicyConfig):
    """Settings of a learner of continuous actions from replay."""

    learning_rate: Positive = 3e-3
    """Learning rate of Adam."""
    num_steps: Count = 4
    """Steps per rollout and sub-environment."""
    target_rate: PositiveShare = 0.005
    """Share of the way to the learned networks that the target networks go."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy != "flat":
            raise ValueError(
                f"the critics of actions see the whole observation: policy must be flat for this learner, got "
                f"{self.policy}"
            )

    def inapplicable(self) -> dict[str, str]:
        return super().inapplicable() | {"head": "a learner with a choice of heads"}


Config = TypeVar("Config", bound=ContinuousConfig)


class CriticLosses(NamedTuple):
    """The critics' summed mean squared error; mean absolute error, value and target of all. Shape of each: ()."""

    loss: Tensor
    error: Tensor
    value: Tensor
    target: Tensor


def critic_losses(values: Sequence[Tensor], target: Tensor) -> CriticLosses:
    """Return the losses of each critic's values against a constant target. Shape of values and target: (B,)."""
    errors = torch.stack(list(values)) - target
    return CriticLosses(
        loss=errors.square().mean(-1).sum(),
        error=errors.abs().mean(),
        value=torch.stack(list(values)).mean(),
        target=target.mean(),
    )


class ContinuousLearner(OffPolicyLearner[Config], Generic[Config]):
    """A learner of an actor and of critics of its actions, from replay; `run` runs it.

    Critics see actions in half widths of their bounds, from the centre, as the environment takes them: clamped. Of two
    critics the smaller value counts.

    Raises:
        ValueError: actions are no numbers within finite bounds, the buffer does not hold a rollout or does not fit into
            memory, or the network does not fit the task.
    """

    num_critics = 1

    def __init__(self, env: VecEnv, config: Config) -> None:
        self.bounds = Bounds(env.scenario.action_spec.to(env.device))
        super().__init__(env, config, with_critic=True)

    def initial_parameters(self, generator: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
        network, config = self.network, self.config
        actor, _ = network.initial_parameters(generator, self.env.device)
        size = network.moments_size + self.bounds.size
        self.critics = FlatNetwork(size, network.head, config.hidden, config.bf16, network.mask)
        made = (self.critics.initial_parameters(generator, self.env.device)[1] for _ in range(self.num_critics))
        return actor, [parameter for critic in made for parameter in critic]

    def taken(self) -> Tensor:
        """Return the actions of the rollout in half widths. Shape: (T, N, A)."""
        return self.bounds.units(self.collector.actions)

    def clipped_together(self) -> list[int]:
        return [len(self.actor), len(self.critic)]

    def parted(self, parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return parameters[: len(self.actor)], parameters[len(self.actor) :]

    def values(self, critics: Sequence[Tensor], inputs: Tensor, units: Tensor) -> list[Tensor]:
        """Return each critic's values of actions in half widths. Shapes: (B, D), (B, A) -> (B,) each."""
        seen, count = torch.cat([inputs, units], dim=-1), len(critics) // self.num_critics
        each = (critics[first : first + count] for first in range(0, count * self.num_critics, count))
        return [self.critics.value(critic, seen) for critic in each]


class DeterministicLearner(ContinuousLearner[Config], Generic[Config]):
    """A learner whose actor is the means of normal distributions, which explore with a deviation that no loss changes.

    Means outside of the bounds act as the bounds, and gradients lead them back. With tanh instead, actors stayed at
    bounds to which an untrained critic had led them (see the test of the largest reward).
    """

    def acted(self, actor: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return the actor's actions in half widths. Shapes: (B, D) -> (B, A)."""
        means, bounds = self.network.actor_outputs(actor, inputs), self.bounds
        ones = torch.ones_like(bounds.half)
        return clamp_inward((means - bounds.centre) / bounds.half, -ones, ones)
