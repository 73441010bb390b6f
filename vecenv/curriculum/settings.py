"""Settings of a curriculum, and the scheduler that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from vecenv.system.settings import Count, Fraction, OpenShare, Positive, Settings, When, Within

if TYPE_CHECKING:
    import torch

    from vecenv.curriculum.scheduler import Scheduler

Curriculum = Literal["uniform", "threshold", "promotion", "adarft", "adacurl", "success_model"]

_SCORED = When("curriculum", "threshold", "promotion", "adarft", "adacurl", "success_model")
_RATED = When("curriculum", "threshold", "promotion", "adacurl")
_COUNTED = When("curriculum", "threshold", "adacurl")
_PROMOTION = When("curriculum", "promotion")
_ADARFT = When("curriculum", "adarft")
_MODEL = When("curriculum", "success_model")


@dataclass(frozen=True)
class CurriculumSettings(Settings):
    """Settings of a curriculum over the levels of a task.

    Raises:
        ValueError: a setting is out of range, or those of a promotion are not in order.
    """

    curriculum: Curriculum | None = None
    """Scheduler of the task's levels, by default the task's own, if it has one. uniform, all levels alike; threshold,
    which unlocks one after another; promotion, a level for each sub-environment; adarft, a target difficulty for all;
    adacurl, bins by solved episodes; success_model, a learned model of success."""
    score_by: Annotated[Literal["grade", "regret"], _SCORED] = "grade"
    """Score of an episode: its grade, or minus its regret, which is hindsight's result less the agent's."""
    success_scores: Annotated[tuple[float, ...], _SCORED] = ()
    """Score above which an episode is a success, by level or one for all; by default the task's own."""
    promote_above: Annotated[Fraction, _RATED] = 0.8
    """Success rate above which a level is done: the next one is unlocked, a sub-environment promoted, a level
    mastered."""
    trials: Annotated[Count, _COUNTED] = 100
    """Episodes of a level over which its success rate is taken."""
    revisit: Annotated[Fraction, _COUNTED, _MODEL] = 0.2
    """Share of the episodes at levels that are easier than those in training."""
    window: Annotated[int, Within(1, 10_000), _PROMOTION] = 8
    """Number of a sub-environment's latest episodes at its level that decide on promotion or demotion."""
    demote_below: Annotated[Fraction, _PROMOTION] = 0.2
    """Success rate below which a sub-environment is demoted."""
    nearest: Annotated[Count, _ADARFT] = 1
    """Number of levels nearest to the target over which the sub-environments are spread."""
    step_size: Annotated[Positive, _ADARFT] = 0.5
    """Largest change of the target after a rollout; difficulties are from 0 to 1."""
    sensitivity: Annotated[Positive, _ADARFT] = 2.0
    """Sensitivity of the change to the mean score's distance from the target score."""
    target_score: Annotated[float | None, _ADARFT] = None
    """Mean score at which the target difficulty stays; by default the mean of the success scores."""
    target_success: Annotated[OpenShare, _MODEL] = 0.5
    """Predicted probability of success near which levels are chosen."""
    drift: Annotated[Positive, _MODEL] = 0.1
    """Standard deviation of what the model's skill and difficulties change by in an update, in logits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.demote_below < self.promote_above and self.curriculum == "promotion":
            raise ValueError(
                f"demote_below {self.demote_below} and promote_above {self.promote_above} must be in this order"
            )

    def scheduler(self, num_envs: int, success_scores: Sequence[float], device: torch.device | str) -> Scheduler:
        """Return the scheduler of so many levels as there are success scores.

        Raises:
            ValueError: there is no curriculum, or more levels are asked for than there are.
        """
        # Here, as settings are told of without PyTorch.
        from vecenv.curriculum.adacurl import AdaCurl
        from vecenv.curriculum.adarft import AdaptiveDifficulty
        from vecenv.curriculum.promotion import Promotion
        from vecenv.curriculum.scheduler import Threshold, Uniform
        from vecenv.curriculum.success_model import SuccessModel

        levels = len(success_scores)
        if self.curriculum == "uniform":
            return Uniform(num_envs, levels, device)
        if self.curriculum == "threshold":
            return Threshold(num_envs, levels, self.trials, self.promote_above, self.revisit, device)
        if self.curriculum == "promotion":
            return Promotion(num_envs, levels, self.window, self.promote_above, self.demote_below, device)
        if self.curriculum == "adacurl":
            return AdaCurl(num_envs, levels, self.trials, self.promote_above, self.revisit, device)
        if self.curriculum == "success_model":
            return SuccessModel(num_envs, levels, self.target_success, self.drift, self.revisit, device)
        if self.curriculum is None:
            raise ValueError("no curriculum is chosen")
        if self.nearest > levels:
            raise ValueError(f"nearest must be at most the {levels} levels, got {self.nearest}")
        target = sum(success_scores) / levels if self.target_score is None else self.target_score
        return AdaptiveDifficulty(num_envs, levels, self.nearest, target, self.step_size, self.sensitivity, device)
