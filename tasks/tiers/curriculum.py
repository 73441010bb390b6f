"""The trading tiers as levels of one batch, for the schedulers of `vecenv.curriculum`: by default, promotion.

All rows have the symbols of the largest tier; symbols outside a row's tier are masked with zeros and untradable. The
share of declining symbols and their mean change, and so the gate, are always of all symbols. Without a schedule the
task plays the last tier, on which agents are evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.curriculum import CurriculumSettings, Levelled
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import SUCCESS, CurriculumConfig
from vecenv.tasks.tiers.law import Tensors, TierState
from vecenv.tasks.tiers.scenario import TierTrading


class Curriculum(Levelled, TierTrading):
    """The trading tiers in one batch, padded to the symbols of the largest.

    With `num_levels` a level also selects paths: it draws from a window of `path_share` of the paths, sorted
    by volatility, at the level's relative position; start days begin when every path has begun. Replayed history is one
    path, so no path is selected; start days are never selected by volatility.

    Raises:
        ValueError: the tape lacks a symbol, a feature or a series, or is too short for an episode.
    """

    level_parameter = "rule"
    curriculum = CurriculumSettings("promotion")

    def __init__(self, tape: MarketTape, config: CurriculumConfig | None = None) -> None:
        self.mixture = config or CurriculumConfig()
        rules = self.mixture.rules
        super().__init__(tape, self.mixture.shared, rules)
        self.levels = range(len(rules))
        device, num_paths = self.tape.device, self.tape.num_paths
        self.params = {**self.params, "rule": torch.full((), len(rules) - 1, dtype=torch.int64, device=device)}
        if self.mixture.num_levels is not None:
            self.paths_a_level = max(1, round(self.mixture.path_share * num_paths))
            difficulty = torch.tensor(self.mixture.difficulties, dtype=torch.float64, device=device)
            calmest = (difficulty * (num_paths - self.paths_a_level)).round().to(torch.int64)
            self.params = {**self.params, "calmest_path": calmest}
            self.shared = {
                **self.shared,
                "first_day": self.shared["first_day"].max().repeat(num_paths),
                "paths_by_volatility": path_volatility(self.tape.price_ticks()).argsort(stable=True),
            }

    @property
    def task_config(self) -> CurriculumConfig:
        return self.mixture

    @property
    def mixed(self) -> bool:
        """Whether a batch may mix tiers: always, since even a single tier is padded with other symbols."""
        return True

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"curriculum": asdict(self.mixture)}

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> TierState:
        state = super().reset(key, params, shared)
        if self.mixture.num_levels is None:
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

    def success_scores(self, score_by: str) -> Sequence[float]:
        return [SUCCESS[score_by][tier] for tier in self.mixture.nearest_tiers]

    def level_names(self) -> Sequence[str]:
        return self.mixture.nearest_tiers


def path_volatility(close: Tensor) -> Tensor:
    """Return the root mean square of the listed symbols' daily log-returns. Shape: (P, T, K) -> (P,), float64."""
    before, after = close[:, :-1].double(), close[:, 1:].double()
    listed = before > 0
    change = torch.where(listed, (after / torch.where(listed, before, 1.0)).clamp(min=1e-12).log(), 0.0)
    return (change.square().sum((1, 2)) / listed.sum((1, 2)).clamp(min=1)).sqrt()
