"""Curriculum over the trading tiers: one batch mixes tiers, and sub-environments are promoted as the agent improves.

All rows have the symbols of the largest tier; symbols outside a row's tier are masked with zeros and untradable. The
share of declining symbols and their mean change, and so the gate, are always of all symbols. Without a schedule the
task plays the last tier, on which agents are evaluated; a `CurriculumSchedule` starts training at the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from vecenv.core.capabilities import Scheduled
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.core.rows import Rows
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.curriculum_config import CurriculumConfig
from vecenv.tasks.tiers.curriculum_schedulers import AdaptiveDifficulty, Promotion, Scheduler
from vecenv.tasks.tiers.rules import Tensors
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.state import TierState


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
