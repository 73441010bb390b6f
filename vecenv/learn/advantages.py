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

    A terminated episode has no further value; a truncated one bootstraps from ``next_value``. Neither carries anything
    over from the following episode.

    Args:
        reward: of each step. Shape: (T, N).
        value: of the observation acted on. Shape: (T, N).
        next_value: of the observation after the step, before auto-reset. Shape: (T, N).
        terminated: whether the step terminated the episode. Shape: (T, N), bool.
        truncated: whether the step truncated the episode. Shape: (T, N), bool.
        gamma: discount per step.
        gae_lambda: decay of the n-step estimates; 0 is one-step TD, 1 Monte Carlo.

    Returns:
        Shape: (T, N). Plus ``value`` they are the targets of the critic.
    """
    delta = reward + gamma * torch.where(terminated, 0.0, next_value) - value
    weight = gamma * gae_lambda * (~(terminated | truncated)).to(delta.dtype)
    advantages = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for step in reversed(range(len(delta))):
        following = torch.addcmul(delta[step], weight[step], following, out=advantages[step])
    return advantages


def discounted_sums(reward: Tensor, done: Tensor, carried: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Sum the past rewards of each episode, discounted: R(t) = r(t) + gamma R(t - 1).

    Args:
        reward: of each step. Shape: (T, N).
        done: whether the step ended the episode. Shape: (T, N), bool.
        carried: sums at the end of the previous rollout, 0 at the start of an episode. Shape: (N,).
        gamma: discount per step.

    Returns:
        The sums, shape (T, N), and ``carried`` of the next rollout, shape (N,).
    """
    sums = torch.empty_like(reward)
    for step in range(len(reward)):
        torch.add(reward[step], carried, alpha=gamma, out=sums[step])
        carried = torch.where(done[step], 0.0, sums[step])
    return sums, carried


def bootstrapped(reward: Tensor, terminated: Tensor, following: Tensor, gamma: float) -> Tensor:
    """Return the targets of values from one step of replay: the reward and the discounted value of what follows.

    What terminated has no further value; what was truncated has that of its final observation.

    Args:
        reward: Shape: (B,).
        terminated: whether the step terminated the episode. Shape: (B,), bool.
        following: value after the step. Shape: (B,).
        gamma: discount per step.

    Returns:
        Shape: (B,).
    """
    return reward + gamma * torch.where(terminated, 0.0, following)
