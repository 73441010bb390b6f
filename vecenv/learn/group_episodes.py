"""Whole episodes of group rollouts: their rewards and parts, and the advantages within a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows, hollow
from vecenv.core.scenario import flat_view
from vecenv.learn.domain import domain_of
from vecenv.learn.group_objective import EpisodeReward, GroupConfig
from vecenv.learn.returns import generalised_advantages


@dataclass(frozen=True, eq=False)
class EpisodeAccounts:
    """Mask, rewards and trades of the first episode of every row, in T steps of N rows.

    Attributes:
        mask: which steps belong to the episode. Shape: (T, N), bool.
        reward: of each step, the last including the terminal parts; their sum is the episode's return. Shape: (T, N).
        parts: weighted parts of the return, by name. Shape of each: (N,), float64.
        exposure: invested share of the account before each step, None without an account. Shape: (T, N).
        flow: 1 where a step bought on balance, -1 sold, 0 no trade; None without an account. Shape: (T, N), int8.
        invalid: number of invalid actions. Shape: (N,).
        failed: episodes whose world failed, which are outside of the mask and compared with none; None where no world
            can fail. Shape: (N,), bool.
    """

    mask: Tensor
    reward: Tensor
    parts: dict[str, Tensor]
    exposure: Tensor | None
    flow: Tensor | None
    invalid: Tensor
    failed: Tensor | None = field(default=None, kw_only=True)

    def put(self, rows: Tensor, other: Self, others: Tensor) -> None:
        """Replace the episodes of ``rows`` by those of rows ``others`` of ``other``. Shape of both: (M,)."""
        for name, own in vars(self).items():
            new = getattr(other, name)
            if own is None:
                continue
            if isinstance(own, dict):
                for part, tensor in own.items():
                    tensor[rows] = new[part][others]
            elif isinstance(own, list):
                for row, place in zip(rows.tolist(), others.tolist(), strict=True):
                    own[row] = new[place]
            elif own.ndim == 1:
                own[rows] = new[others]
            else:
                own[:, rows] = new[:, others]


@dataclass(frozen=True, eq=False)
class GroupEpisodes(EpisodeAccounts):
    """Episodes with flat observations, actions and log-probabilities under the policy that played.

    They are views of buffers that the next rollout overwrites. Shape of each: (T, N, ...).
    """

    observation: Tensor
    action: Tensor
    log_prob: Tensor

    def owned(self) -> GroupEpisodes:
        """Return the episodes with copies instead of views of the collector's buffers."""
        seen, done, log_prob = self.observation.clone(), self.action.clone(), self.log_prob.clone()
        return replace(self, observation=seen, action=done, log_prob=log_prob)


SEED_STRIDE = 1 << 32
"""Difference of the environment seeds of consecutive rollouts."""


def rollout_seed(first_seed: int, rollouts: int) -> int:
    """Return the environment seed of a rollout by the number of earlier rollouts."""
    return (first_seed + rollouts * SEED_STRIDE) % (1 << 63)


@torch.no_grad()
def played_accounts(
    env: VecEnv, act: Callable[[], Tensor], worth: EpisodeReward, ids: Sequence[int]
) -> EpisodeAccounts:
    """Play freshly reset episodes to their ends and return the `EpisodeAccounts` of some rows."""
    donated = env.traits.donated
    rows, rewards = [hollow(env.rows_of(ids)[0], donated)], []
    while not bool(rows[-1].done.all()):
        rewards.append(env.advance(act())[list(ids)])
        rows.append(hollow(env.rows_of(ids)[0], donated))
    # torch.stack accepts tensorclasses.
    whole: Any = torch.stack(rows)  # type: ignore[arg-type]
    number = torch.tensor(list(ids), device=env.device)
    return episode_accounts(env, whole[:-1], whole[1:], torch.stack(rewards), worth, number)


def episode_outcome(bound: BoundEngine, ended: Rows, worth: EpisodeReward) -> tuple[dict[str, Tensor], Tensor]:
    """Return the terminal parts ``grade``, ``return`` and ``invalid``, weighted, and the number of invalid actions.

    Raises:
        ValueError: the task's info lacks an entry of non-zero weight.
    """
    info = bound.info(ended)
    weights = {"total_return": worth.total_return, "invalid_actions": worth.invalid}
    lacking = [name for name, weight in weights.items() if weight and name not in info]
    if lacking:
        raise ValueError(f"{bound.scenario.name} does not tell {', '.join(lacking)} of an episode")
    none = torch.zeros_like(ended.elapsed, dtype=torch.float64)
    invalid = info["invalid_actions"].double() if "invalid_actions" in info else none
    returns = info["total_return"].double() if "total_return" in info else none
    parts = {
        "grade": worth.grade * bound.grade(ended).double() if worth.grade else torch.zeros_like(invalid),
        "return": worth.total_return * returns,
        "invalid": -worth.invalid * (invalid > 0).double(),
    }
    return parts, invalid


@torch.no_grad()
def episode_accounts(
    env: VecEnv, before: Rows, after: Rows, reward: Tensor, worth: EpisodeReward, ids: Tensor | None = None
) -> EpisodeAccounts:
    """Return the `EpisodeAccounts` of the episodes that start at the first of T steps.

    Rows are those before each step, and after it before auto-reset, of shape (T, N); ``ids`` their indices.

    Raises:
        ValueError: an episode does not end within the steps, or as `episode_outcome`.
    """
    steps, count = reward.shape
    done = after.done
    mask = (done.cumsum(0) - done.long()) == 0
    row, last = torch.arange(count, device=env.device), mask.sum(0) - 1
    if not bool(done[last, row].all()):
        raise ValueError(f"{env.scenario.name}: an episode has more than the {steps} steps of a rollout")
    ended = after[last, row]
    outcome, invalid = episode_outcome(env.engine.bound().of_rows(row if ids is None else ids), ended, worth)
    rewards = worth.steps * reward.double().where(mask, 0.0)
    parts = {"steps": rewards.sum(0), **outcome}
    rewards[last, row] += outcome["grade"] + outcome["return"] + outcome["invalid"]
    exposure, flow = domain_of(env).trades(before.state, after.state) or (None, None)
    return EpisodeAccounts(
        mask=mask,
        reward=rewards,
        parts=parts,
        exposure=exposure,
        flow=None if flow is None else flow.where(mask, 0),
        invalid=invalid,
    )


def group_episodes(collector: FusedCollector, worth: EpisodeReward) -> GroupEpisodes:
    """Return the episodes of a rollout at whose start every row was reset; errors as `episode_accounts`."""
    before, after = collector.rows(after=False), collector.rows()
    accounts = episode_accounts(collector.env, before, after, collector.reward, worth)
    assert collector.observation is not None
    seen = flat_view(collector.observation, batch_dims=2)
    done, log_prob = collector.actions, collector.extras["log_prob"]
    return GroupEpisodes(**vars(accounts), observation=seen, action=done, log_prob=log_prob)


def audit(episodes: EpisodeAccounts, with_spread: Tensor) -> dict[str, float]:
    """Return metrics that reveal reward hacking.

    They are the mean ``episode_reward``; the ``share/…`` of each reward part in the sum of the absolute parts; with an
    account, the shares of steps without trades (``hold``), with net purchases (``buy``) and with net sales (``sell``);
    ``invalid`` actions per step; ``no_spread``, the share of zero-variance groups; mean ``length`` in steps; where
    worlds can fail, the share of those that ``failed``, whose episodes count for nothing else.
    """
    days, rewards, failures = episodes.mask.sum(), episodes.reward.sum(0), {}
    if episodes.failed is not None:
        failures["failed"] = float(episodes.failed.double().mean())
        rewards = rewards[~episodes.failed]
    amounts = {name: float(part.abs().sum()) for name, part in episodes.parts.items()}
    total = max(sum(amounts.values()), 1e-12)
    traded = {}
    if episodes.flow is not None:
        flow = episodes.flow[episodes.mask]
        signs = {"hold": flow == 0, "buy": flow > 0, "sell": flow < 0}
        traded = {name: float(those.double().mean()) for name, those in signs.items()}
    return {
        "episode_reward": float(rewards.mean()),
        **{f"share/{name}": amount / total for name, amount in amounts.items()},
        **traded,
        "invalid": float(episodes.invalid.sum() / days.clamp(min=1)),
        "no_spread": float((~with_spread).double().mean()),
        "length": float(days / len(rewards)) if len(rewards) else 0.0,
        **failures,
    }


Episodes = TypeVar("Episodes", bound=EpisodeAccounts)

EPSILON = 1e-6
"""Added to standard deviations in denominators."""


def has_spread(returns: Tensor) -> Tensor:
    """Return whether the returns within each group differ; equal ones have no gradient. Shape: (num_groups,)."""
    return returns.amax(-1) > returns.amin(-1)


def group_advantages(returns: Tensor, scaled: bool, counted: Tensor | None = None) -> Tensor:
    """Return the group-relative advantage of each episode: R - mean, over std + `EPSILON` if scaled.

    An episode is compared with the group of those that share its market path and start (Shao et al., "DeepSeekMath",
    arXiv 2402.03300, 2024).
    GRPO scales, Dr. GRPO does not. The variance estimate is unbiased. Groups of equal returns get exactly 0. Returns
    that are not ``counted`` are the mean of the others of their group, see `group_returns`; by default all are.
    Shapes: (num_groups, group_size), of at least two members.
    """
    if returns.shape[-1] < 2:
        raise ValueError(f"a group needs at least 2 members to compare, got {returns.shape[-1]}")
    centred = returns - returns.mean(-1, keepdim=True)
    if scaled:
        deviation = returns.std(-1, keepdim=True)
        if counted is not None:
            others = (counted.sum(-1, keepdim=True) - 1).clamp(min=1)
            deviation = deviation * ((returns.shape[-1] - 1) / others).sqrt()
        centred = centred / (deviation + EPSILON)
    return centred.where(has_spread(returns).unsqueeze(-1), 0.0)


def step_advantages(returns: Tensor, anchor: Tensor, mask: Tensor, scaled: bool) -> Tensor:
    """Return the advantage of each step's return-to-go over the mean of the steps with the same anchor. Shape: any.

    Feng et al., "Group-in-Group Policy Optimization", arXiv 2505.10978, 2025: anchors are similar positions of a group.
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
    """Return the return of each episode, of one that failed the mean of its group. Shape: (num_groups, group_size)."""
    returns = episodes.reward.sum(0).view(-1, group_size)
    counted = _counted(episodes, group_size)
    if counted is None:
        return returns
    mean = returns.where(counted, 0.0).sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp(min=1)
    return returns.where(counted, mean)


def _counted(episodes: EpisodeAccounts, group_size: int) -> Tensor | None:
    return None if episodes.failed is None else ~episodes.failed.view(-1, group_size)


def step_credit(episodes: EpisodeAccounts, config: GroupConfig, group_size: int, progress: float) -> Tensor:
    """Return the advantage of every step of whole groups, whose members are consecutive rows. Shape: (T, N)."""
    rules, mask = config.rules, episodes.mask
    returns, counted = group_returns(episodes, group_size), _counted(episodes, group_size)
    advantages = group_advantages(returns, rules.scaled, counted).view(-1).expand(mask.shape)
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
