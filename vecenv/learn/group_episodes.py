"""Whole episodes of group rollouts: step masks, rewards and their parts, exposure, trades and audit metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows, hollow
from vecenv.learn.evaluation import domain_of
from vecenv.learn.grpo_config import EpisodeReward


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
    """

    mask: Tensor
    reward: Tensor
    parts: dict[str, Tensor]
    exposure: Tensor | None
    flow: Tensor | None
    invalid: Tensor

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
    """Episodes with observations, actions and log-probabilities under the policy that played.

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
    donated = env.scenario.donated
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
    seen, done, log_prob = collector.observation, collector.actions, collector.extras["log_prob"]
    return GroupEpisodes(**vars(accounts), observation=seen, action=done, log_prob=log_prob)


def audit(episodes: EpisodeAccounts, with_spread: Tensor) -> dict[str, float]:
    """Return metrics that reveal reward hacking.

    They are the mean ``episode_reward``; the ``share/…`` of each reward part in the sum of the absolute parts; with an
    account, the shares of steps without trades (``hold``), with net purchases (``buy``) and with net sales (``sell``);
    ``invalid`` actions per step; ``no_spread``, the share of zero-variance groups; mean ``length`` in steps.
    """
    days = episodes.mask.sum()
    amounts = {name: float(part.abs().sum()) for name, part in episodes.parts.items()}
    total = max(sum(amounts.values()), 1e-12)
    traded = {}
    if episodes.flow is not None:
        flow = episodes.flow[episodes.mask]
        signs = {"hold": flow == 0, "buy": flow > 0, "sell": flow < 0}
        traded = {name: float(those.double().mean()) for name, those in signs.items()}
    return {
        "episode_reward": float(episodes.reward.sum(0).mean()),
        **{f"share/{name}": amount / total for name, amount in amounts.items()},
        **traded,
        "invalid": float(episodes.invalid.sum() / days),
        "no_spread": float((~with_spread).double().mean()),
        "length": float(days / episodes.mask.shape[1]),
    }
