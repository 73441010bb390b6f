"""Curriculum over the trading tiers: one batch mixes tiers, and sub-environments are promoted as the agent improves.

All rows have the symbols of the largest tier; symbols outside a row's tier are masked with zeros and untradable. The
share of declining symbols and their mean change, and so the gate, are always of all symbols. Without a schedule the
task plays the last tier, on which agents are evaluated; a `CurriculumSchedule` starts training at the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from vecenv.core.capabilities import Scheduled
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.core.rows import Rows
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import CurriculumConfig
from vecenv.tasks.tiers.law import Tensors, TierState
from vecenv.tasks.tiers.scenario import TierTrading


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


class Curriculum(Scheduled, TierTrading):
    """The trading tiers in one batch, padded to the symbols of the largest.

    With the adaptive scheduler a level also selects paths: it draws from a window of `path_share` of the paths, sorted
    by volatility, at the level's relative position; start days begin when every path has begun. Replayed history is one
    path, so no path is selected; start days are never selected by volatility.

    Raises:
        ValueError: the tape lacks a symbol, a feature or a series, or is too short for an episode.
    """

    def __init__(self, tape: MarketTape, config: CurriculumConfig | None = None) -> None:
        self.curriculum = config or CurriculumConfig()
        rules = self.curriculum.rules
        super().__init__(tape, self.curriculum.shared, rules)
        device, num_paths = self.tape.device, self.tape.num_paths
        self.params = {**self.params, "rule": torch.full((), len(rules) - 1, dtype=torch.int64, device=device)}
        if self.curriculum.scheduler == "adaptive":
            self.paths_a_level = max(1, round(self.curriculum.path_share * num_paths))
            difficulty = torch.tensor(self.curriculum.difficulties, dtype=torch.float64, device=device)
            calmest = (difficulty * (num_paths - self.paths_a_level)).round().to(torch.int64)
            self.params = {**self.params, "calmest_path": calmest}
            self.shared = {
                **self.shared,
                "first_day": self.shared["first_day"].max().repeat(num_paths),
                "paths_by_volatility": path_volatility(self.tape.price_ticks()).argsort(stable=True),
            }

    @property
    def task_config(self) -> CurriculumConfig:
        return self.curriculum

    @property
    def mixed(self) -> bool:
        """Whether a batch may mix tiers: always, since even a single tier is padded with other symbols."""
        return True

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"curriculum": asdict(self.curriculum)}

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> TierState:
        state = super().reset(key, params, shared)
        if self.curriculum.scheduler != "adaptive":
            return state
        bits = random_bits(key, EpisodeStream.LEVEL_PATH)[0]
        place = params["calmest_path"][state.rule] + ((bits * self.paths_a_level) >> 32)
        return state.replace(path=shared["paths_by_volatility"][place])

    def regret(self, state: TierState) -> Tensor:
        """Return hindsight's simple return of the same days less the account's. Shape: (B,), float64.

        It is the regret of Dennis et al., 2020 (PAIRED), with hindsight of `grading.references` as the antagonist. That
        pays at least the standard cost and is approximate for several symbols, so a regret may be slightly negative.
        """
        start = state.path * self.tape.num_days + state.start_day
        oracle = self.references["oracle_return"][state.rule, start, state.day - state.start_day].double()
        return oracle - (state.portfolio_value / state.start_value - 1.0)

    def scheduler(self, num_envs: int) -> Scheduler:
        config, device = self.curriculum, self.tape.device
        if config.scheduler == "promotion":
            rates = (config.promote_above, config.demote_below)
            return Promotion(num_envs, config.success_scores, config.window, *rates, device)
        target = config.target_score
        if target is None:
            target = sum(config.success_scores) / len(config.tiers)
        steps = (config.step_size, config.sensitivity)
        return AdaptiveDifficulty(num_envs, config.num_levels, config.nearest, target, *steps, device)

    def schedule(self, num_envs: int) -> CurriculumSchedule:
        return CurriculumSchedule(self, self.scheduler(num_envs))


class CurriculumSchedule:
    """Applies a scheduler's choice of rules to every sub-environment from its next episode on."""

    def __init__(self, scenario: Curriculum, scheduler: Scheduler) -> None:
        self.scenario, self.scheduler = scenario, scheduler

    def params(self) -> dict[str, Tensor]:
        """Return each sub-environment's row of the rule table, as ``rule``. Shape: (N,)."""
        return {"rule": self.scheduler.rules()}

    @torch.no_grad()
    def update(self, ended: Rows, ids: Tensor, grade: Callable[[], Tensor]) -> dict[str, float]:
        """Take in E ended episodes, those of one sub-environment in their order, and choose the next rules.

        Returns the scheduler's metrics, the mean score (NaN without an episode), and each tier's share of the
        sub-environments; levels between two tiers count as the nearer.
        """
        score = self.score(ended, ids, grade)
        self.scheduler.update(ids, ended.state.rule, score)
        names, rule = self.scenario.curriculum.tiers, self.scheduler.rules()
        tier = (rule.double() * (len(names) - 1) / (len(self.scenario.tiers) - 1 or 1)).round().to(torch.int64)
        shares = tier.bincount(minlength=len(names)).double() / len(tier)
        return {
            **self.scheduler.metrics(),
            "curriculum_score": float(score.mean()) if len(score) else math.nan,
            **{f"share_{name}": share for name, share in zip(names, shares.tolist(), strict=True)},
        }

    def score(self, ended: Rows, ids: Tensor, grade: Callable[[], Tensor]) -> Tensor:
        """Return the grade of each episode, or its regret as a negative number. Shape: (E,)."""
        if len(ids) == 0:
            return torch.zeros(0, device=ids.device)
        return -self.scenario.regret(ended.state) if self.scenario.curriculum.score == "regret" else grade()

    def state_dict(self) -> dict[str, Tensor]:
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        self.scheduler.load_state_dict(state_dict)


def path_volatility(close: Tensor) -> Tensor:
    """Return the root mean square of the listed symbols' daily log-returns. Shape: (P, T, K) -> (P,), float64."""
    before, after = close[:, :-1].double(), close[:, 1:].double()
    listed = before > 0
    change = torch.where(listed, (after / torch.where(listed, before, 1.0)).clamp(min=1e-12).log(), 0.0)
    return (change.square().sum((1, 2)) / listed.sum((1, 2)).clamp(min=1)).sqrt()
