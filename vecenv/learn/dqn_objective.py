"""Settings and losses of deep Q-learning: values of choices, their targets, and the Huber loss between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from vecenv.learn.advantages import bootstrapped
from vecenv.learn.heads import FORBIDDEN
from vecenv.learn.learner_config import OffPolicyConfig
from vecenv.system.settings import Share

LOSS_METRICS = ("td_loss", "td_error", "mean_value", "mean_target")
"""Metric names of the fields of `Losses`, in order."""


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """Settings of deep Q-learning."""

    double: bool = False
    """Double: of what follows, the learned network chooses the action, and the target network values it."""
    duelling: bool = False
    """Duelling: one network for the value of what is seen, one for the advantages of the choices."""
    epsilon_start: Share = 1.0
    """Share of random actions at the start."""
    epsilon_end: Share = 0.05
    """Share of random actions after the exploration."""
    exploration_fraction: Share = 0.3
    """Share of the frames over which the share of random actions falls along a line."""

    def inapplicable(self) -> dict[str, str]:
        return super().inapplicable() | dict.fromkeys(("head", "initial_std"), "a learner of continuous actions")

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
    Shapes: (B,), (B, K) -> (B, K).
    """
    return value.unsqueeze(-1) + advantages - advantages.mean(-1, keepdim=True)


def one_step_targets(
    reward: Tensor, terminated: Tensor, following: Tensor, judged: Tensor, allowed: Tensor | None, gamma: float
) -> Tensor:
    """Return the targets of the values of the actions taken. Shape: (B,).

    ``following`` are the target network's values after the step, ``judged`` those by which the best choice is chosen.
    Shape: (B, K). Plain targets (Mnih et al. 2015) have both the same; double ones (van Hasselt et al. 2016, eq. 4) are
    judged by the learned network. ``allowed`` is None where all choices are.
    """
    if allowed is not None:
        judged = torch.where(allowed, judged, FORBIDDEN)
    best = following.gather(-1, judged.argmax(-1, keepdim=True)).squeeze(-1)
    return bootstrapped(reward, terminated, best, gamma)


def dqn_losses(values: Tensor, action: Tensor, target: Tensor) -> Losses:
    """Return the Huber loss of the actions' values, whose gradient is that of clipped errors (Mnih et al. 2015)."""
    value = values.gather(-1, action.long()).squeeze(-1)
    return Losses(
        loss=smooth_l1_loss(value, target),
        error=(value - target).abs().mean(),
        value=value.mean(),
        target=target.mean(),
    )
