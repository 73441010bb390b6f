"""Settings and losses of A2C: policy gradient, value loss and entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from vecenv.learn.learner_config import OnPolicyConfig
from vecenv.system.settings import Count, Positive, Share

LOSS_METRICS = ("policy_loss", "value_loss", "entropy")
"""Metric names of the fields of `Losses`, in order."""


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Settings of A2C."""

    epochs: Count = 1
    """Passes over each batch: one, since the gradient is that of the policy that collected."""
    minibatches: Count = 1
    """Number of equal parts of a batch; one optimiser step each, of which the first alone has the policy that
    collected."""
    learning_rate: Positive = 3e-3
    """Learning rate of Adam."""
    num_steps: Count = 5
    """Steps per rollout and sub-environment."""
    gae_lambda: Share = 1.0
    """Lambda of generalised advantage estimation; 1 are the returns of the paper."""

    def inapplicable(self) -> dict[str, str]:
        return {"epochs": "a learner that reuses its batch"}


class Losses(NamedTuple):
    """Terms of the objective; all of shape ()."""

    policy: Tensor
    value: Tensor
    entropy: Tensor


def a2c_losses(log_prob: Tensor, entropy: Tensor, value: Tensor, advantage: Tensor, target: Tensor) -> Losses:
    """Return the losses of section 4 of Mnih et al. (2016), with constant advantages. Shape of all arguments: (B,)."""
    return Losses(policy=-(log_prob * advantage).mean(), value=(value - target).square().mean(), entropy=entropy.mean())
