"""Targets of values from one step of replay."""

from __future__ import annotations

import torch
from torch import Tensor


def bootstrapped(reward: Tensor, terminated: Tensor, following: Tensor, gamma: float) -> Tensor:
    """Return the reward and the discounted value of what follows.

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
