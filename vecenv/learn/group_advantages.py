"""Group-relative advantages of episodes and steps, without a critic.

An episode is compared with the group of episodes that share its market path and start (Shao et al., "DeepSeekMath",
arXiv 2402.03300, 2024), and a step with the steps of its group in a similar position (Feng et al., "Group-
in-Group Policy Optimization", arXiv 2505.10978, 2025).
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6
"""Added to standard deviations in denominators."""


def has_spread(returns: Tensor) -> Tensor:
    """Return whether the returns within each group differ; groups of equal returns have no gradient.

    Shape: (num_groups, group_size) -> (num_groups,), bool.
    """
    return returns.amax(-1) > returns.amin(-1)


def group_advantages(returns: Tensor, scaled: bool) -> Tensor:
    """Return the group-relative advantage of each episode: R - mean, over std + `EPSILON` if scaled.

    The variance estimate is unbiased. Groups of equal returns get exactly 0.

    Args:
        returns: of the episodes. Shape: (num_groups, group_size).
        scaled: divide by the group's standard deviation, as GRPO does and Dr. GRPO does not.

    Returns:
        Shape: (num_groups, group_size).

    Raises:
        ValueError: a group has fewer than two members.
    """
    if returns.shape[-1] < 2:
        raise ValueError(f"a group needs at least 2 members to compare, got {returns.shape[-1]}")
    centred = returns - returns.mean(-1, keepdim=True)
    if scaled:
        centred = centred / (returns.std(-1, keepdim=True) + EPSILON)
    return centred.where(has_spread(returns).unsqueeze(-1), 0.0)


def step_advantages(returns: Tensor, anchor: Tensor, mask: Tensor, scaled: bool) -> Tensor:
    """Return the advantage of each step's return-to-go over the mean of the steps with the same anchor.

    Steps with an anchor of their own get 0.

    Args:
        returns: discounted returns-to-go. Shape: (...).
        anchor: id of the step's group, day and position; steps of equal ids are compared. Shape: (...), int64.
        mask: valid steps; the others get 0. Shape: (...), bool.
        scaled: divide by the standard deviation, as in `group_advantages`.

    Returns:
        Shape: (...).
    """
    here = returns[mask].double()
    _, place, count = anchor[mask].unique(return_inverse=True, return_counts=True)
    mean = torch.zeros(len(count), dtype=here.dtype, device=here.device).index_add_(0, place, here) / count
    centred = here - mean[place]
    if scaled:
        squares = torch.zeros_like(mean).index_add_(0, place, centred.square())
        centred = centred / ((squares / (count - 1).clamp(min=1)).sqrt()[place] + EPSILON)
    ends = [torch.zeros_like(mean).scatter_reduce_(0, place, here, how, include_self=False) for how in ("amax", "amin")]
    differs = (ends[0] > ends[1])[place]
    advantages = torch.zeros_like(returns)
    advantages[mask] = centred.where(differs, 0.0).to(returns.dtype)
    return advantages
