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

    Args:
        num_envs: N.
        gamma: discount per step.
        device: of the moments.
    """

    def __init__(self, num_envs: int, gamma: float, device: torch.device) -> None:
        self.gamma = gamma
        self.return_moments = RunningMoments((), device)
        self.discounted_return = torch.zeros(num_envs, device=device)

    def update(self, collector: FusedCollector) -> None:
        """Add the rewards of a rollout."""
        done = collector.terminated | collector.truncated
        sums, self.discounted_return = discounted_sums(
            collector.reward.float(), done, self.discounted_return, self.gamma
        )
        self.return_moments.update(sums.flatten())

    def scaled(self, reward: Tensor) -> Tensor:
        """Return scaled rewards. Shape: any, float32."""
        return reward.float() / self.deviation()

    def deviation(self) -> Tensor:
        """Return the reward that counts as 1. Shape: (), float32."""
        return self.return_moments.deviation().float()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the state needed to resume."""
        return {"return_moments": self.return_moments.state_dict(), "discounted_return": self.discounted_return.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`, which may have further entries."""
        self.return_moments.load_state_dict(state["return_moments"])
        self.discounted_return.copy_(state["discounted_return"])
