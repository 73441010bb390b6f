"""Running moments; discounted returns and advantages of rollouts; scale of rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.learn.shards import Shards


def batch_moments(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sum of squared distances from the mean of a batch, float64. Shapes: (B, ...) -> (...) each."""
    # Sums relative to the first sample: exactly 0 for a constant, no loss of precision for a large mean.
    origin = samples[0]
    total, squares = (torch.zeros_like(origin, dtype=torch.float64) for _ in range(2))
    for part in samples.split(CHUNK):
        shifted = part - origin
        total += shifted.sum(0)
        squares += shifted.square_().sum(0)
    squares -= total.square() / len(samples)
    return origin + total / len(samples), squares


def times_of(rows: Tensor, count: int) -> Tensor:
    """Return how often each of so many numbers is among rows (B,). Shape: (count,), float64."""
    # Exact in any order, and unlike bincount without a meeting of host and device.
    return torch.zeros(count, dtype=torch.float64, device=rows.device).index_add_(
        0, rows, torch.ones_like(rows).double()
    )


def table_moments(table: Tensor, times: Tensor, number: int, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return `batch_moments` of rows of a table (R, M), each so many ``times``, ``number`` in all, without copies.

    ``first`` is one of them. Shape: (1,).
    """
    origin = table[first].squeeze(0)
    total, squares = (torch.zeros_like(origin, dtype=torch.float64) for _ in range(2))
    for part, often in zip(table.split(CHUNK), times.split(CHUNK), strict=True):
        shifted = (part - origin).double()
        total += often @ shifted
        squares += often @ shifted.square_()
    squares -= total.square() / number
    return origin + total / number, squares


class RunningMoments:
    """Merges the moments of batches: Chan, Golub and LeVeque, "Updating formulae ... for sample variances", 1979."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.squares = torch.zeros(shape, dtype=torch.float64, device=device)

    def update(self, parts: Iterable[Tensor], shards: Shards) -> None:
        """Add a batch, given by the part of each own shard, and those of the others. Shape of each: (B, *shape)."""
        each = []
        for part in parts:
            each.append(batch_moments(part))
            number = len(part)
        self.merge(*shards.moments(number, each))

    def merge(self, number: int, mean: Tensor, squares: Tensor) -> None:
        """Add a batch given by its number, mean and sum of squared distances from the mean, float64."""
        count, difference = self.count + number, mean - self.mean
        self.squares += squares.clamp(min=0.0) + difference.square() * (self.count * number / count)
        self.mean += difference * (number / count)
        self.count.copy_(count)

    def deviation(self) -> Tensor:
        """Return the standard deviation, 1 where samples are constant or absent. Shape: ``shape``, float64."""
        deviation = (self.squares / self.count.clamp(min=1.0)).sqrt()
        varies = deviation > RELATIVE_FLOOR * self.mean.abs() + ABSOLUTE_FLOOR
        return torch.where(varies, deviation, 1.0)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in ("count", "mean", "squares")}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        for name, value in state_dict.items():
            getattr(self, name).copy_(value)


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


class RewardScale:
    """Divides rewards by the deviation of the discounted sums of those so far; 1 before the first rollout.

    Each of ``num_members`` policies, to which as many consecutive rows belong, has a scale of its own.
    """

    def __init__(self, num_envs: int, gamma: float, device: torch.device, num_members: int = 1) -> None:
        self.gamma, self.num_members = gamma, num_members
        self.return_moments = RunningMoments(() if num_members == 1 else (num_members,), device)
        self.discounted_return = torch.zeros(num_envs, device=device)

    def update(self, collector: FusedCollector, shards: Shards) -> None:
        """Add the rewards of a rollout, and those of the other shards."""
        done = collector.terminated | collector.truncated
        sums, self.discounted_return = discounted_sums(
            collector.reward.float(), done, self.discounted_return, self.gamma
        )
        samples = [part.flatten() for part in shards.parts(sums)]
        if self.num_members > 1:
            samples = [sums.unflatten(1, (self.num_members, -1)).movedim(1, -1).flatten(0, 1)]
        self.return_moments.update(samples, shards)

    def scaled(self, reward: Tensor) -> Tensor:
        """Return scaled rewards. Shape: any, float32; of several members (..., N)."""
        deviation = self.deviation()
        if self.num_members > 1:
            deviation = deviation.repeat_interleave(reward.shape[-1] // self.num_members)
        return reward.float() / deviation

    def deviation(self) -> Tensor:
        """Return the reward that counts as 1, of several members that of each. Shape: () or (S,), float32."""
        return self.return_moments.deviation().float()

    def state_dict(self) -> dict[str, Any]:
        return {"return_moments": self.return_moments.state_dict(), "discounted_return": self.discounted_return.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`, which may have further entries."""
        self.return_moments.load_state_dict(state["return_moments"])
        self.discounted_return.copy_(state["discounted_return"])


RELATIVE_FLOOR = 1e-5
"""Standard deviations below this fraction of the mean count as rounding of a constant."""
ABSOLUTE_FLOOR = 1e-8
CHUNK = 8192
"""Samples per partial sum: few enough for the CPU cache, many enough for a GPU."""
