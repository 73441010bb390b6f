"""Group-relative advantages of episodes and steps, without a critic, and replacement of zero-variance groups.

An episode is compared with the group of episodes that share its market path and start (Shao et al., "DeepSeekMath",
arXiv 2402.03300, 2024), and a step with the steps of its group in a similar position (Feng et al., "Group-
in-Group Policy Optimization", arXiv 2505.10978, 2025).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from vecenv.learn.advantages import generalised_advantages
from vecenv.learn.group_episodes import EpisodeAccounts
from vecenv.learn.grpo_config import GroupConfig

Episodes = TypeVar("Episodes", bound=EpisodeAccounts)

EPSILON = 1e-6
"""Added to standard deviations in denominators."""


def has_spread(returns: Tensor) -> Tensor:
    """Return whether the returns within each group differ; equal ones have no gradient. Shape: (num_groups,)."""
    return returns.amax(-1) > returns.amin(-1)


def group_advantages(returns: Tensor, scaled: bool) -> Tensor:
    """Return the group-relative advantage of each episode: R - mean, over std + `EPSILON` if scaled.

    GRPO scales, Dr. GRPO does not. The variance estimate is unbiased. Groups of equal returns get exactly 0.
    Shapes: (num_groups, group_size), of at least two members.
    """
    if returns.shape[-1] < 2:
        raise ValueError(f"a group needs at least 2 members to compare, got {returns.shape[-1]}")
    centred = returns - returns.mean(-1, keepdim=True)
    if scaled:
        centred = centred / (returns.std(-1, keepdim=True) + EPSILON)
    return centred.where(has_spread(returns).unsqueeze(-1), 0.0)


def step_advantages(returns: Tensor, anchor: Tensor, mask: Tensor, scaled: bool) -> Tensor:
    """Return the advantage of each step's return-to-go over the mean of the steps with the same anchor. Shape: any.

    Steps with an anchor of their own, or outside of the mask, get 0. Scaled as in `group_advantages`.
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


def group_returns(episodes: EpisodeAccounts, group_size: int) -> Tensor:
    """Return the return of each episode. Shape: (num_groups, group_size)."""
    return episodes.reward.sum(0).view(-1, group_size)


def step_credit(episodes: EpisodeAccounts, config: GroupConfig, group_size: int, progress: float) -> Tensor:
    """Return the advantage of every step of whole groups, whose members are consecutive rows. Shape: (T, N)."""
    rules, mask = config.rules, episodes.mask
    advantages = group_advantages(group_returns(episodes, group_size), rules.scaled).view(-1).expand(mask.shape)
    if rules.compare_steps:
        nothing = torch.zeros_like(episodes.reward)
        end = torch.zeros_like(mask)
        returns = generalised_advantages(episodes.reward, nothing, nothing, end, end, config.step_gamma, 1.0)
        anchors = step_anchors(episodes, config.position_buckets, group_size)
        advantages = advantages + config.step_weight * step_advantages(returns, anchors, mask, rules.scaled)
    if rules.positive_first and progress < config.positive_share:
        advantages = advantages.clamp(min=0.0)
    return advantages.float().contiguous()


def step_anchors(episodes: EpisodeAccounts, buckets: int, group_size: int) -> Tensor:
    """Return an id of group, day and, if there is an account, position of every step. Shape: (T, N), int64."""
    days, rows = episodes.mask.shape
    exposure = torch.zeros_like(episodes.reward) if episodes.exposure is None else episodes.exposure
    position = (exposure * buckets).floor().clamp(0, buckets - 1).long()
    group = torch.arange(rows, device=position.device) // group_size
    day = torch.arange(days, device=position.device).unsqueeze(-1)
    return (group * days + day) * buckets + position


def refilled(
    episodes: Episodes, again: Callable[[], Episodes], config: GroupConfig, group_size: int
) -> tuple[Tensor, int]:
    """Replace zero-variance groups by groups of further rollouts in place, if the variant refills.

    Steps of zero-variance groups that remain are masked out. Return which groups of the first rollout have non-zero
    variance, shape (num_groups,), and the number of further rollouts.
    """
    with_spread = has_spread(group_returns(episodes, group_size))
    if not config.rules.refill:
        return with_spread, 0
    empty, refills = (~with_spread).nonzero().squeeze(-1), 0
    while len(empty) and refills < config.refills:
        others = again()
        refills += 1
        found = has_spread(group_returns(others, group_size)).nonzero().squeeze(-1)[: len(empty)]
        episodes.put(_rows(empty[: len(found)], group_size), others, _rows(found, group_size))
        empty = empty[len(found) :]
    episodes.mask[:, _rows(empty, group_size)] = False
    return with_spread, refills


def _rows(groups: Tensor, group_size: int) -> Tensor:
    """Return the row indices of groups. Shape: (M,) -> (M group_size,)."""
    member = torch.arange(group_size, device=groups.device)
    return (groups.unsqueeze(-1) * group_size + member).flatten()
