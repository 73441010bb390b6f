"""Base class of learners of continuous actions from replay: an actor, and critics of what is seen and done.

Critics see actions in half widths of their bounds, from the centre, as the environment takes them: clamped. The losses
of DDPG, TD3 and SAC are made of the pieces in this file and of `vecenv.learn.advantages`.
"""

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


@dataclass(frozen=True)
class ContinuousConfig(OffPolicyConfig):
    """Settings of a learner of continuous actions from replay."""

    learning_rate: float = 3e-3
    """Learning rate of Adam."""
    num_steps: int = 4
    """Steps per rollout and sub-environment."""
    target_rate: float = 0.005
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
    """Loss of the critics and diagnostics; all of shape ().

    Attributes:
        loss: sum over the critics of the mean squared error.
        error: mean absolute error of all critics.
        value: mean value of all critics.
        target: mean target.
    """

    loss: Tensor
    error: Tensor
    value: Tensor
    target: Tensor


def critic_losses(values: Sequence[Tensor], target: Tensor) -> CriticLosses:
    """Return the critics' squared errors.

    Args:
        values: of the actions taken, by each critic. Shape of each: (B,).
        target: constants. Shape: (B,).
    """
    errors = torch.stack(list(values)) - target
    return CriticLosses(
        loss=errors.square().mean(-1).sum(),
        error=errors.abs().mean(),
        value=torch.stack(list(values)).mean(),
        target=target.mean(),
    )


class ContinuousLearner(OffPolicyLearner[Config], Generic[Config]):
    """A learner of an actor and of critics of its actions, from replay; `run` runs it.

    Args:
        env: the training environment; its rows advance.
        config: settings.

    Attributes:
        num_critics: one, or two whose smaller value counts.

    Raises:
        ValueError: actions are no numbers within finite bounds, the buffer does not hold a rollout or does not fit into
            memory, or the network does not fit the task.
    """

    num_critics = 1

    def __init__(self, env: VecEnv, config: Config) -> None:
        self.bounds = Bounds(env.scenario.action_spec.to(env.device))
        super().__init__(env, config, with_critic=True)

    def initial_parameters(self, generator: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameters of the actor, and of all critics, one after the other."""
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
        """Return the parameters of the actor, and of the critics."""
        return parameters[: len(self.actor)], parameters[len(self.actor) :]

    def values(self, critics: Sequence[Tensor], inputs: Tensor, units: Tensor) -> list[Tensor]:
        """Return the values of actions by each critic.

        Args:
            critics: parameters of all critics.
            inputs: normalised observations. Shape: (B, D).
            units: actions in half widths. Shape: (B, A).

        Returns:
            Shape of each: (B,).
        """
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
