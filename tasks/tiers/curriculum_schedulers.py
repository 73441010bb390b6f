"""Curriculum schedulers: map the scores of ended episodes to rows of a rule table, easiest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class Promotion:
    """Moves each sub-environment one tier up or down by its success rate in its tier.

    The rate is over the last ``window`` episodes, without a decision before as many in the tier. Episodes of another
    tier, such as those running during a move, do not count.
    """

    def __init__(
        self,
        num_envs: int,
        thresholds: Sequence[float],
        window: int = 8,
        promote_above: float = 0.8,
        demote_below: float = 0.2,
        device: torch.device | str = "cpu",
    ) -> None:
        self.thresholds = torch.tensor(thresholds, dtype=torch.float32, device=device)
        self.promote_above, self.demote_below = promote_above, demote_below
        self.tier = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.count = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.successes = torch.zeros(num_envs, window, device=device)

    def rules(self) -> Tensor:
        return self.tier.clone()

    def update(self, ids: Tensor, rule: Tensor, score: Tensor) -> None:
        """Take in E ended episodes, those of one sub-environment in their order. Shape of each: (E,)."""
        # One turn for the first episode of every sub-environment, one for the second, and so on.
        order = ids.argsort(stable=True)
        place = torch.arange(len(ids), device=ids.device)
        _, episodes = ids[order].unique_consecutive(return_counts=True)
        nth = place - (episodes.cumsum(0) - episodes).repeat_interleave(episodes)
        for turn in range(int(episodes.max()) if len(ids) else 0):
            chosen = order[nth == turn]
            chosen = chosen[rule[chosen] == self.tier[ids[chosen]]]
            self._decide(ids[chosen], score[chosen])

    def _decide(self, ids: Tensor, score: Tensor) -> None:
        """Count one episode of each of some sub-environments, and move them. Shape of both: (E,)."""
        tier, window = self.tier[ids], self.successes.shape[1]
        self.successes[ids, self.count[ids] % window] = (score > self.thresholds[tier]).float()
        count = self.count[ids] + 1
        rate = self.successes[ids].mean(-1)
        full = count >= window
        promoted = full & (rate > self.promote_above) & (tier < len(self.thresholds) - 1)
        demoted = full & (rate < self.demote_below) & (tier > 0)
        self.tier[ids] = tier + promoted.long() - demoted.long()
        self.count[ids] = torch.where(promoted | demoted, 0, count)

    def metrics(self) -> dict[str, float]:
        return {"mean_tier": float(self.tier.double().mean())}

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in ("tier", "count", "successes")}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        for name, value in state_dict.items():
            getattr(self, name).copy_(value)


class AdaptiveDifficulty:
    """Moves a target difficulty towards the one at which the mean score is the target score.

    AdaRFT, Shi et al., arXiv 2504.05520, 2025: after each batch of mean score R the target moves by
    η tanh(α (R − β)), with η ``step_size``, α ``sensitivity`` and β ``target_score``, within [0, 1], and the next batch
    takes the difficulties nearest to it. Here these are the nearest of evenly spaced levels, over which the
    sub-environments are spread evenly. The paper's η is 50 for a range of 100.
    """

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
        self.target_score, self.step_size, self.sensitivity = target_score, step_size, sensitivity
        self.difficulty = torch.linspace(0.0, 1.0, num_levels, dtype=torch.float64, device=device)
        self.target = torch.zeros((), dtype=torch.float64, device=device)
        self._turn = torch.arange(num_envs, device=device) % nearest

    def rules(self) -> Tensor:
        distance = (self.difficulty - self.target).abs()
        return distance.argsort(stable=True)[self._turn]

    def update(self, ids: Tensor, rule: Tensor, score: Tensor) -> None:
        """Move the target by the mean score of E ended episodes; without any it stays. Shape of each: (E,)."""
        if len(score):
            excess = score.double().mean() - self.target_score
            self.target += self.step_size * torch.tanh(self.sensitivity * excess)
            self.target.clamp_(0.0, 1.0)

    def metrics(self) -> dict[str, float]:
        return {"target_difficulty": float(self.target)}

    def state_dict(self) -> dict[str, Tensor]:
        return {"target": self.target.clone()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        self.target.copy_(state_dict["target"])


Scheduler = Promotion | AdaptiveDifficulty
"""Chooses the rule of each sub-environment's next episode; metrics have the same names at every call."""
