"""Step advantages of groups of episodes, and replacement of zero-variance groups (dynamic sampling)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from vecenv.learn.advantages import generalised_advantages
from vecenv.learn.group_advantages import group_advantages, has_spread, step_advantages
from vecenv.learn.group_episodes import EpisodeAccounts
from vecenv.learn.grpo_config import GroupConfig

Episodes = TypeVar("Episodes", bound=EpisodeAccounts)


def group_returns(episodes: EpisodeAccounts, group_size: int) -> Tensor:
    """Return the return of each episode. Shape: (num_groups, group_size)."""
    return episodes.reward.sum(0).view(-1, group_size)


def step_credit(episodes: EpisodeAccounts, config: GroupConfig, group_size: int, progress: float) -> Tensor:
    """Return the advantage of every step.

    Args:
        episodes: of whole groups, whose members are consecutive rows.
        config: the variant.
        group_size: members of a group.
        progress: fraction of the run's updates done.

    Returns:
        Shape: (T, N), float32.
    """
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
    """Replace zero-variance groups by groups of further rollouts, if the variant refills.

    Steps of zero-variance groups that remain are masked out.

    Args:
        episodes: of the first rollout, changed in place.
        again: makes another rollout and returns its episodes.
        config: the variant, and the largest number of further rollouts.
        group_size: members of a group.

    Returns:
        Which groups of the first rollout have non-zero variance, shape (num_groups,), and the number of further
        rollouts.
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
