"""Learned difficulty: a logistic model of success by level and time, by which levels near a target are chosen."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vecenv.curriculum.scheduler import Scheduler, evenly, mixed

SPREAD = 0.5
"""Width, in logits, of the kernel around the target."""

DAMPING = 0.9
"""Share of the trend of the skill that is left after an update."""

PRIOR = (2.0, 0.1, 1.0)
"""Standard deviations, in logits, of the skill, of its trend, and of the step in difficulty from a level to the next,
whose mean is 1."""


class SuccessModel(Scheduler):
    """Chooses levels whose probability of success is predicted to be near a target.

    The logit of the success at level l is s - δ_1 - … - δ_l, with a skill s, its trend v, and steps δ of the
    difficulty. With every update s moves by v, and all of them by a random walk of deviation ``drift``: a dynamic
    logistic regression (West, Harrison and Migon, "Dynamic generalized linear models and Bayesian forecasting", 1985),
    whose normal posterior takes in the episodes of one level after another. Neighbouring levels share what is known,
    and a step that turns out to be infinite parts the levels beyond it.

    A level's share is exp(-((m - t)² - (m' - t)²) / 2w²), normalised: m is the mean of its logit, t that of
    ``target_success``, m' the mean nearest to t, and w `SPREAD`. The share ``revisit`` is of the levels that are
    easier than that nearest one.
    """

    kept = ("turn", "mean", "covariance")

    def __init__(
        self,
        num_envs: int,
        num_levels: int,
        target_success: float = 0.5,
        drift: float = 0.1,
        revisit: float = 0.2,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(num_envs, num_levels, device)
        self.revisit, self.target = revisit, math.log(target_success / (1.0 - target_success))
        steps = num_levels - 1
        self.mean = torch.tensor([0.0, 0.0, *[1.0] * steps], dtype=torch.float64)
        deviation = torch.tensor([*PRIOR[:2], *PRIOR[2:] * steps], dtype=torch.float64)
        self.covariance = deviation.square().diag()
        self.noise = torch.tensor([drift, drift / 10, *[drift] * steps], dtype=torch.float64).square().diag()
        self.move = torch.eye(num_levels + 1, dtype=torch.float64)
        self.move[0, 1], self.move[1, 1] = 1.0, DAMPING
        # Row l of the design: s and the steps up to level l.
        below = torch.ones(num_levels, steps, dtype=torch.float64).tril(-1)
        self.design = torch.cat([torch.tensor([[1.0, 0.0]] * num_levels, dtype=torch.float64), -below], dim=-1)

    def logits(self) -> Tensor:
        """Return the mean of each level's logit of success. Shape: (L,), float64."""
        return self.design @ self.mean

    def shares(self) -> Tensor:
        distance = (self.logits() - self.target).square()
        nearest = int(distance.argmin())
        near = torch.exp(-(distance - distance[nearest]) / (2.0 * SPREAD**2))
        easier = evenly(torch.arange(self.num_levels) < nearest)
        return mixed(near / near.sum(), easier, self.revisit)

    def take(self, ids: Tensor, level: Tensor, success: Tensor, score: Tensor) -> None:
        self.mean = self.move @ self.mean
        self.covariance = self.move @ self.covariance @ self.move.T + self.noise
        for place, (count, solved) in enumerate(zip(*self.counted(level, success), strict=True)):
            if count:
                self._observe(self.design[place], float(count), float(solved))

    def _observe(self, row: Tensor, count: float, solved: float) -> None:
        """Take in the episodes of one level: the mode of the posterior, and its curvature there (Laplace)."""
        gain = self.covariance @ row
        mean, variance = float(row @ self.mean), float(row @ gain)
        step = mode(mean, variance, count, solved)
        chance = 1.0 / (1.0 + math.exp(-(mean + variance * step)))
        information = count * chance * (1.0 - chance)
        self.mean = self.mean + gain * step
        self.covariance = self.covariance - gain.outer(gain) * (information / (1.0 + information * variance))

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "skill": float(self.mean[0])}


def mode(mean: float, variance: float, count: float, solved: float) -> float:
    """Return the a at which a logit of prior N(mean, variance) is most probable at mean + variance · a.

    It solves a + count · σ(mean + variance · a) = solved, whose left side rises, between solved - count and solved.
    """
    low, high = solved - count, solved
    for _ in range(60):
        middle = (low + high) / 2.0
        logit = min(max(mean + variance * middle, -700.0), 700.0)
        if middle + count / (1.0 + math.exp(-logit)) < solved:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
