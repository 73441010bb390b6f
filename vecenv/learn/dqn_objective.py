"""Settings and losses of deep Q-learning: values of choices, their targets, and the Huber loss between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from vecenv.learn.heads import FORBIDDEN
from vecenv.learn.learner_config import NetworkConfig

LOSS_METRICS = ("td_loss", "td_error", "mean_value", "mean_target")
"""Metric names of the fields of `Losses`, in order."""


@dataclass(frozen=True)
class DQNConfig(NetworkConfig):
    """Settings of deep Q-learning."""

    epochs: int = 1
    """Passes over the steps drawn after a rollout; further steps cost as little to draw anew."""
    minibatches: int = 16
    """Optimiser steps after each rollout, each on a minibatch of its own."""
    minibatch_size: int = 1024
    """Steps of the replay buffer in a minibatch, drawn uniformly."""
    num_steps: int = 16
    """Steps per rollout and sub-environment."""
    gamma: float = 0.99
    """Discount per step."""
    double: bool = False
    """Double: of what follows, the learned network chooses the action, and the target network values it."""
    duelling: bool = False
    """Duelling: one network for the value of what is seen, one for the advantages of the choices."""
    buffer_size: int = 131_072
    """Steps that the replay buffer holds, the last ones of all sub-environments; checkpoints hold them too."""
    target_rate: float = 0.01
    """Share of the way to the learned network that the target network goes: 1 copies it."""
    target_every: int = 1
    """Optimiser steps from one move of the target network to the next."""
    epsilon_start: float = 1.0
    """Share of random actions at the start."""
    epsilon_end: float = 0.05
    """Share of random actions after the exploration."""
    exploration_fraction: float = 0.3
    """Share of the frames over which the share of random actions falls along a line."""
    normalise_rewards: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_least(1, "minibatch_size", "num_steps", "buffer_size", "target_every")
        self._check_share("gamma", "target_rate", "epsilon_start", "epsilon_end", "exploration_fraction")
        self._check_positive("target_rate")

    def inapplicable(self) -> dict[str, str]:
        """Return the settings without effect, with what each requires."""
        return {"epochs": "a learner that reuses its batch"} | dict.fromkeys(
            ("head", "initial_std"), "a learner of continuous actions"
        )

    def check_rollout(self, num_envs: int) -> None:
        """Check that the buffer holds a rollout.

        Raises:
            ValueError: it does not.
        """
        if self.buffer_size < self.num_steps * num_envs:
            raise ValueError(
                f"buffer_size must be at least a rollout, num_steps {self.num_steps} x num_envs {num_envs}, "
                f"got {self.buffer_size}"
            )

    def epsilon(self, progress: float) -> float:
        """Return the share of random actions after a share ``progress`` of the frames."""
        fallen = min(1.0, progress / self.exploration_fraction) if self.exploration_fraction else 1.0
        return self.epsilon_start + fallen * (self.epsilon_end - self.epsilon_start)


class Losses(NamedTuple):
    """Huber loss, mean absolute temporal difference, and means of values and targets; all of shape ()."""

    loss: Tensor
    error: Tensor
    value: Tensor
    target: Tensor


def duelling_values(value: Tensor, advantages: Tensor) -> Tensor:
    """Return the values of all choices from those of the state and the advantages, eq. 9 of Wang et al. (2016).

    The mean over all choices is subtracted, allowed or not: it tells value and advantages apart, and nothing else.

    Args:
        value: Shape: (B,).
        advantages: Shape: (B, K).

    Returns:
        Shape: (B, K).
    """
    return value.unsqueeze(-1) + advantages - advantages.mean(-1, keepdim=True)


def one_step_targets(
    reward: Tensor, terminated: Tensor, following: Tensor, judged: Tensor, allowed: Tensor | None, gamma: float
) -> Tensor:
    """Return the targets of the values of the actions taken.

    Plain (Mnih et al. 2015) where ``judged`` is ``following``; double (van Hasselt et al. 2016, eq. 4) where ``judged``
    are the learned network's. What terminated has no further value; what was truncated has that of its final
    observation.

    Args:
        reward: Shape: (B,).
        terminated: whether the step terminated the episode. Shape: (B,), bool.
        following: values of the choices after the step by the target network. Shape: (B, K).
        judged: values by which the best of them is chosen. Shape: (B, K).
        allowed: which choices are allowed after the step; None allows all. Shape: (B, K), bool.
        gamma: discount per step.

    Returns:
        Shape: (B,).
    """
    if allowed is not None:
        judged = torch.where(allowed, judged, FORBIDDEN)
    best = following.gather(-1, judged.argmax(-1, keepdim=True)).squeeze(-1)
    return reward + gamma * torch.where(terminated, 0.0, best)


def dqn_losses(values: Tensor, action: Tensor, target: Tensor) -> Losses:
    """Return the Huber loss of the actions' values, whose gradient is that of clipped errors (Mnih et al. 2015).

    Args:
        values: of all choices by the learned network. Shape: (B, K).
        action: choices taken. Shape: (B, 1), integers.
        target: constants. Shape: (B,).
    """
    value = values.gather(-1, action.long()).squeeze(-1)
    return Losses(
        loss=smooth_l1_loss(value, target),
        error=(value - target).abs().mean(),
        value=value.mean(),
        target=target.mean(),
    )
