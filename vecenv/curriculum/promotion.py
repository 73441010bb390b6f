"""Promotion: every sub-environment has a level of its own, and moves up and down by its own results."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.curriculum.scheduler import Scheduler


class Promotion(Scheduler):
    """Moves each sub-environment one level up or down by its success rate at its level.

    The rate is over the last ``window`` episodes, without a decision before as many at the level. Episodes of another
    level, such as those running during a move, do not count.
    """

    kept = ("turn", "level", "count", "successes")

    def __init__(
        self,
        num_envs: int,
        num_levels: int,
        window: int = 8,
        promote_above: float = 0.8,
        demote_below: float = 0.2,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(num_envs, num_levels, device)
        self.promote_above, self.demote_below = promote_above, demote_below
        self.level = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.count = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.successes = torch.zeros(num_envs, window, device=device)

    def levels(self) -> Tensor:
        return self.level.clone()

    def shares(self) -> Tensor:
        return self.level.cpu().bincount(minlength=self.num_levels).double() / self.num_envs

    def take(self, ids: Tensor, level: Tensor, success: Tensor, score: Tensor) -> None:
        # One turn for the first episode of every sub-environment, one for the second, and so on.
        order = ids.argsort(stable=True)
        place = torch.arange(len(ids), device=ids.device)
        _, episodes = ids[order].unique_consecutive(return_counts=True)
        nth = place - (episodes.cumsum(0) - episodes).repeat_interleave(episodes)
        for turn in range(int(episodes.max()) if len(ids) else 0):
            chosen = order[nth == turn]
            chosen = chosen[level[chosen] == self.level[ids[chosen]]]
            self._decide(ids[chosen], success[chosen])

    def _decide(self, ids: Tensor, success: Tensor) -> None:
        """Count one episode of each of some sub-environments, and move them. Shape of both: (E,)."""
        level, window = self.level[ids], self.successes.shape[1]
        self.successes[ids, self.count[ids] % window] = success.float()
        count = self.count[ids] + 1
        rate = self.successes[ids].mean(-1)
        full = count >= window
        promoted = full & (rate > self.promote_above) & (level < self.num_levels - 1)
        demoted = full & (rate < self.demote_below) & (level > 0)
        self.level[ids] = level + promoted.long() - demoted.long()
        self.count[ids] = torch.where(promoted | demoted, 0, count)
