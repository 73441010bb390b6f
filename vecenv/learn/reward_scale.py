"""Scale of rewards: the running standard deviation of the discounted return, so that values are near 1 in any unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.learn.advantages import discounted_sums
from vecenv.learn.running_moments import RunningMoments


class RewardScale:
    """Divides rewards by the deviation of the discounted sums of those so far; 1 before the first rollout.

    Each of ``num_members`` policies, to which as many consecutive rows belong, has a scale of its own.
    """

    def __init__(self, num_envs: int, gamma: float, device: torch.device, num_members: int = 1) -> None:
        self.gamma, self.num_members = gamma, num_members
        self.return_moments = RunningMoments(() if num_members == 1 else (num_members,), device)
        self.discounted_return = torch.zeros(num_envs, device=device)

    def update(self, collector: FusedCollector) -> None:
        done = collector.terminated | collector.truncated
        sums, self.discounted_return = discounted_sums(
            collector.reward.float(), done, self.discounted_return, self.gamma
        )
        samples = sums.flatten()
        if self.num_members > 1:
            samples = sums.unflatten(1, (self.num_members, -1)).movedim(1, -1).flatten(0, 1)
        self.return_moments.update(samples)

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
