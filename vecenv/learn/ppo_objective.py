"""Settings and losses of PPO: clipped surrogate, value loss, entropy and approximate KL divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.learn.learner_config import OnPolicyConfig
from vecenv.system.settings import NotNegative, Positive

LOSS_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "benchmark_kl")
"""Metric names of the fields of `Losses`, in order, then of the divergence from the benchmark policy."""


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    clip: Positive = 0.2
    """Probability ratios outside 1 ± clip get no gradient."""
    benchmark_kl: NotNegative = 0.0
    """Weight of the KL divergence from the policy around the centre of the actions, with tilts the benchmark."""
    target_kl: NotNegative | None = None
    """Early stopping: no further epochs in an update once the approximate KL divergence exceeds this."""


class Losses(NamedTuple):
    """Terms of the objective and diagnostics; all of shape ()."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_losses(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    clip: float,
) -> Losses:
    """Return the clipped surrogate loss (eq. 7 of the paper), the critic's squared error and the mean entropy.

    ``approx_kl`` is the mean of (r - 1) - log r over the ratios r, an unbiased, non-negative estimator.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return Losses(
        policy=-gain.mean(),
        value=(value - target).square().mean(),
        entropy=entropy.mean(),
        approx_kl=(ratio - 1 - log_ratio).mean(),
        clip_fraction=((ratio - 1).abs() > clip).float().mean(),
    )
