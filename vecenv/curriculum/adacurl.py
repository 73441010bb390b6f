"""AdaCuRL: levels in bins by how many of five episodes are solved, trained from easy to hard, old ones revisited."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.curriculum.scheduler import Scheduler, evenly, mixed

COARSE = 5
"""Episodes of a level after which it has a bin."""


class AdaCurl(Scheduler):
    """Trains the easiest bin of levels that are not mastered yet, and revisits the mastered ones at a rate.

    After AdaCuRL, Li et al., arXiv 2511.09478, 2025. Each problem is there answered five times, and belongs to a bin
    by its correct answers, {0, 1}, {2, 3} or {4, 5}; more answers refine this. Training goes from easy to hard, what
    was trained is revisited, difficulties are estimated anew as the policy improves, and problems of which all or no
    answers are right are left out of the loss. Here the problems are levels:

    * A level without five episodes yet is played until it has them. Later episodes refine the rate of success, which
      counts as one of ``trials`` episodes at most, so that it follows the policy. The bin is that of the solved of five
      which the rate amounts to.
    * A level is mastered while its rate is above ``mastered_above``, and then shares the rate ``revisit`` with the
      others that are.
    * A level with less than half an episode solved of ``trials`` teaches nothing. It is left out while another one can
      be trained; when only such ones and mastered ones are left, they change parts: the former share ``revisit``.
      Before any level is solved, the easiest is trained.
    """

    kept = ("turn", "count", "solved")

    def __init__(
        self,
        num_envs: int,
        num_levels: int,
        trials: int = 100,
        mastered_above: float = 0.8,
        revisit: float = 0.2,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(num_envs, num_levels, device)
        self.trials, self.mastered_above, self.revisit = trials, mastered_above, revisit
        self.count, self.solved = (torch.zeros(num_levels, dtype=torch.float64) for _ in range(2))

    def bins(self) -> Tensor:
        """Return the bin of each level: 0 of {4, 5} solved of five, 1 of {2, 3}, 2 of {0, 1}. Shape: (L,), int64."""
        of_five = (COARSE * self.solved / self.count.clamp(min=1)).round().long()
        return 2 - of_five.div(2, rounding_mode="floor").clamp(max=2)

    def shares(self) -> Tensor:
        if (unknown := self.count < COARSE).any():
            return evenly(unknown)
        mastered = self.solved > self.mastered_above * self.count
        hopeless = (self.solved < 0.5) & (self.count >= self.trials)
        taught = ~mastered & ~hopeless
        if taught.any():
            bins = self.bins()
            return mixed(evenly(taught & (bins == bins[taught].min())), evenly(mastered), self.revisit)
        if mastered.any():
            return mixed(evenly(mastered), evenly(hopeless), self.revisit)
        return evenly(torch.arange(self.num_levels) == 0)

    def take(self, ids: Tensor, level: Tensor, success: Tensor, score: Tensor) -> None:
        count, solved = self.counted(level, success)
        self.count += count
        self.solved += solved
        self.solved *= (self.trials / self.count.clamp(min=1)).clamp(max=1.0)
        self.count.clamp_(max=self.trials)

    def metrics(self) -> dict[str, float]:
        mastered = self.solved > self.mastered_above * self.count
        return {**super().metrics(), "mastered_levels": float(mastered.sum())}
