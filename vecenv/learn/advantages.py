"""Generalised advantages and discounted returns of time-major rollouts (T, N) with auto-reset; one-step targets."""

from __future__ import annotations

import torch
from torch import Tensor


def generalised_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Estimate advantages (Schulman et al., "High-dimensional continuous control using GAE", 2016, eq. 16).

    A terminated episode has no further value; a truncated one bootstraps from ``next_value``, that of the observation
    after the step, before auto-reset. Plus ``value`` they are the targets of the critic. Shape of all: (T, N).
    """
    delta = reward + gamma * torch.where(terminated, 0.0, next_value) - value
    weight = gamma * gae_lambda * (~(terminated | truncated)).to(delta.dtype)
    advantages = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for step in reversed(range(len(delta))):
        following = torch.addcmul(delta[step], weight[step], following, out=advantages[step])
    return advantages


def discounted_sums(reward: Tensor, done: Tensor, carried: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Sum the past rewards of each episode, discounted: R(t) = r(t) + gamma R(t - 1). Shape: (T, N).

    ``carried`` are the sums at the end of the previous rollout, 0 at the start of an episode; those for the next one
    are returned too. Shape: (N,).
    """
    sums = torch.empty_like(reward)
    for step in range(len(reward)):
        torch.add(reward[step], carried, alpha=gamma, out=sums[step])
        carried = torch.where(done[step], 0.0, sums[step])
    return sums, carried


def bootstrapped(reward: Tensor, terminated: Tensor, following: Tensor, gamma: float) -> Tensor:
    """Return reward plus the discounted value of what follows, which what terminated has not. Shape of all: (B,)."""
    return reward + gamma * torch.where(terminated, 0.0, following)
