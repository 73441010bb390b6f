"""Levels of a task, and the schedule that learners follow over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from vecenv.core.capabilities import Scheduled
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.curriculum.settings import CurriculumSettings


class Levelled(Scheduled):
    """One of its parameters is a level, which a curriculum may choose for each sub-environment.

    Without a curriculum all play the parameter's own value, at which agents are evaluated: mostly the hardest. The
    level of an episode is that at its `reset`, and its state keeps it: a later one is of the next episode.

    Attributes:
        levels: values of the parameter, easiest first.
        level_parameter: its name among `params`, and by default among the fields of the state.
        curriculum: of the levels; none by default.
    """

    levels: Sequence[float]
    level_parameter: str = "level"
    curriculum: CurriculumSettings = CurriculumSettings()

    def level_of(self, state: Any) -> Tensor:  # noqa: ANN401
        """Return the value of the parameter with which each of E episodes began. Shape: (E,)."""
        value: Tensor = getattr(state, self.level_parameter)
        return value

    def regret(self, state: Any) -> Tensor:  # noqa: ANN401
        """Return what hindsight would have earned more than the agent in each of E episodes. Shape: (E,).

        It is the regret of Dennis et al., "Emergent complexity and zero-shot transfer via unsupervised environment
        design", 2020 (PAIRED), with hindsight as the antagonist. A task without it raises NotImplementedError.
        """
        raise NotImplementedError

    def success_scores(self, score_by: str) -> Sequence[float]:
        """Return the score of each level above which an episode is a success, of grades or negative regrets."""
        return [0.5 if score_by == "grade" else 0.0] * len(self.levels)

    def level_names(self) -> Sequence[str]:
        """Return a name of each level for metrics; levels of one name are told together."""
        return [f"{self.level_parameter}_{value:g}" for value in self.levels]

    def schedule(self, num_envs: int) -> LevelSchedule | None:
        """Return the schedule of N sub-environments over the levels by `curriculum`; None without one."""
        return None if self.curriculum.curriculum is None else LevelSchedule(self, self.curriculum, num_envs)


class LevelSchedule:
    """Applies a scheduler's levels to every sub-environment from its next episode on.

    Raises:
        ValueError: the settings do not fit the levels, or the task knows no regret.
    """

    def __init__(self, scenario: Levelled, settings: CurriculumSettings, num_envs: int) -> None:
        if settings.score_by == "regret" and type(scenario).regret is Levelled.regret:
            raise ValueError(f"{_name(scenario)} knows no regret: score_by must be grade")
        own, given = scenario.success_scores(settings.score_by), settings.success_scores
        if len(given) not in (0, 1, len(own)):
            raise ValueError(f"success_scores must be one or {len(own)}, as there are levels, got {len(given)}")
        scores = list(given) * (len(own) if len(given) == 1 else 1) or own
        self.scenario, self.settings, self.by_regret = scenario, settings, settings.score_by == "regret"
        like: Tensor = scenario.params[scenario.level_parameter]  # type: ignore[attr-defined]
        self.values = torch.tensor(list(scenario.levels), device=like.device).to(like.dtype)
        self.success_scores = torch.tensor(scores, device=like.device)
        self.names = list(dict.fromkeys(scenario.level_names()))
        self._place = torch.tensor([self.names.index(name) for name in scenario.level_names()], device=like.device)
        self.scheduler = settings.scheduler(num_envs, scores, like.device)

    def params(self) -> dict[str, Tensor]:
        """Return each sub-environment's value of the parameter. Shape: (N,)."""
        return {self.scenario.level_parameter: self.values[self.scheduler.levels()]}

    @torch.no_grad()
    def update(self, ended: Rows, ids: Tensor, grade: Callable[[], Tensor]) -> dict[str, float]:
        """Take in E ended episodes, those of one sub-environment in their order, and choose the next levels.

        Returns the scheduler's metrics, the mean score, and by level the share of the sub-environments' next episodes
        and the rate of success; what is of no episode is NaN.
        """
        score = torch.zeros(0, device=ids.device)
        level = torch.zeros(0, dtype=torch.int64, device=ids.device)
        if len(ids):
            score = -self.scenario.regret(ended.state) if self.by_regret else grade()
            level = (self.scenario.level_of(ended.state).unsqueeze(-1) - self.values).abs().argmin(-1)
        success = score > self.success_scores[level]
        self.scheduler.update(ids, level, success, score)
        told, kinds = self._place[level], len(self.names)
        rate = torch.bincount(told, success.double(), kinds) / torch.bincount(told, minlength=kinds)
        share = torch.bincount(self._place[self.scheduler.levels()], minlength=kinds) / self.scheduler.num_envs
        return {
            **self.scheduler.metrics(),
            "curriculum_score": float(score.mean()) if len(score) else math.nan,
            **dict(zip([f"share_{name}" for name in self.names], share.tolist(), strict=True)),
            **dict(zip([f"success_{name}" for name in self.names], rate.tolist(), strict=True)),
        }

    def state_dict(self) -> dict[str, Any]:
        return {**self.scheduler.state_dict(), "settings": asdict(self.settings)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state; ValueError, before anything is changed, if it is of a curriculum with other settings."""
        saved, own = state_dict["settings"], asdict(self.settings)
        if told := [
            f"{name} ({saved.get(name)}, not {value})" for name, value in own.items() if saved.get(name) != value
        ]:
            raise ValueError(f"the curriculum of the checkpoint has other {', '.join(told)}")
        self.scheduler.load_state_dict(state_dict)


def set_curriculum(scenario: Scenario[Any], settings: CurriculumSettings) -> None:
    """Give a scenario a curriculum, which learners made afterwards follow; ValueError if it has no levels for it."""
    if not isinstance(scenario, Levelled):
        raise ValueError(f"task {scenario.name!r} has no levels, which --curriculum {settings.curriculum} needs")
    LevelSchedule(scenario, settings, 1)
    scenario.curriculum = settings


def _name(scenario: Any) -> str:  # noqa: ANN401
    return str(scenario.name)
