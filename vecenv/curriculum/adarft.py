"""AdaRFT: one target difficulty for the whole batch, moved by the mean score."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.curriculum.scheduler import Scheduler, evenly


class AdaptiveDifficulty(Scheduler):
    """Moves a target difficulty towards the one at which the mean score is the target score.

    AdaRFT, Shi et al., arXiv 2504.05520, 2025: after each batch of mean score R the target moves by
    η tanh(α (R − β)), with η ``step_size``, α ``sensitivity`` and β ``target_score``, within [0, 1], and the next batch
    takes the difficulties nearest to it. Here these are the ``nearest`` of evenly spaced levels, over which the
    sub-environments are spread evenly. The paper's η is 50 for a range of 100.
    """

    kept = ("turn", "target")

    def __init__(
        self,
        num_envs: int,
        num_levels: int,
        nearest: int = 1,
        target_score: float = 0.5,
        step_size: float = 0.5,
        sensitivity: float = 2.0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(num_envs, num_levels, device)
        self.nearest, self.target_score = nearest, target_score
        self.step_size, self.sensitivity = step_size, sensitivity
        self.difficulty = torch.linspace(0.0, 1.0, num_levels, dtype=torch.float64)
        self.target = torch.zeros((), dtype=torch.float64)

    def shares(self) -> Tensor:
        near = (self.difficulty - self.target).abs().argsort(stable=True)[: self.nearest]
        return evenly(torch.zeros(self.num_levels, dtype=torch.bool).index_fill(0, near, True))

    def take(self, ids: Tensor, level: Tensor, success: Tensor, score: Tensor) -> None:
        """Move the target by the mean score of E ended episodes; without any it stays. Shape of each: (E,)."""
        if len(score):
            excess = score.double().mean().cpu() - self.target_score
            self.target += self.step_size * torch.tanh(self.sensitivity * excess)
            self.target.clamp_(0.0, 1.0)

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "target_difficulty": float(self.target)}
