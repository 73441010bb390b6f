"""Settings of proximal policy optimisation and its losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

LOSS_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
"""Names of `Losses` in a log, in their order."""


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO."""

    num_steps: int = 64
    """Steps per rollout and sub-environment."""
    total_frames: int = 1_250_000
    """Steps of all sub-environments together; rounded up to whole rollouts."""
    epochs: int = 4
    """Passes over each batch."""
    minibatches: int = 8
    """Parts of a batch, of equal size; one optimiser step each."""
    learning_rate: float = 1e-3
    """Step size of Adam."""
    anneal: bool = True
    """Lower the learning rate linearly to zero over the run."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """Weight of longer advantage estimates."""
    clip: float = 0.2
    """Probability ratios further than this from 1 get no gradient."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the critic's squared error."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    target_kl: float | None = None
    """No further epochs in an update once the approximate KL divergence exceeds this."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    initial_std: float = 0.5
    """Initial standard deviation of continuous actions, relative to half the width of their bounds."""
    bf16: bool = False
    """Multiply in bfloat16 in the hidden layers."""
    normalise_observations: bool = True
    """Scale observations by their running mean and standard deviation, clipped to 10 deviations."""
    normalise_rewards: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""
    normalise_advantages: bool = True
    """Scale the advantages of each batch to mean 0 and standard deviation 1."""
    seed: int = 0
    """Of the initial weights and the minibatches; the environment has its own."""
    checkpoint_every: int = 10
    """Updates between checkpoints."""
    tensorboard: bool = False
    """Also write TensorBoard's event files."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "total_frames", "epochs", "minibatches", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "clip", "max_grad_norm", "initial_std"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in [0, 2^32), got {self.seed}")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")


class Losses(NamedTuple):
    """Terms of the objective and what one watches beside them; all of shape ()."""

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

    ``approx_kl`` is the mean of (r - 1) - log r over the ratios r, unbiased and never negative.

    Args:
        log_prob: of the actions under the current policy. Shape: (B,).
        entropy: of the current policy. Shape: (B,).
        value: of the current critic. Shape: (B,).
        old_log_prob: of the actions under the policy that took them. Shape: (B,).
        advantage: Shape: (B,).
        target: of the critic. Shape: (B,).
        clip: largest distance of the ratio from 1.
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
