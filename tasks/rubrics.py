"""Tasks whose grade is a rubric's: conversations of other families, graded by several criteria at once.

The weights are a setting, so that records replay under those of their episodes. In a training they move towards others
that are a setting too, or are moved by a language model's messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from vecenv.registry import Task
from vecenv.system.settings import Count, Share, When
from vecenv.tasks.code.config import CodeConfig
from vecenv.tasks.code.task import CODE
from vecenv.tasks.strategy.config import StrategyConfig
from vecenv.tasks.strategy.task import STRATEGY
from vecenv.text.graded import graded_by
from vecenv.text.interaction import Interaction, Turn
from vecenv.text.rubric import Criterion, Move, Weights, by_model, grade, lines, outcome, towards


def documented(turn: Turn, message: str) -> float:
    """Score a message by its lines with comments or docstrings: one in ten, or more, is worth 1."""
    written = [line for line in message.splitlines() if line.strip()]
    told = sum("#" in line or '"""' in line for line in written)
    return min(1.0, 10 * told / len(written)) if written else 0.0


CODE_CRITERIA = (
    Criterion("correct", grade, 0.7, low=0.4),
    Criterion("short", lines(none=100, full=10), 0.1, high=0.3, needs="correct"),
    Criterion("documented", documented, 0.1, high=0.3, needs="correct"),
    # Of a program's own speed there is no outcome: processor time is not the same when a record is replayed.
    Criterion("fast", outcome("tries", none=5, full=1), 0.1, high=0.3, needs="correct"),
)
STRATEGY_CRITERIA = (
    Criterion("graded", grade, 0.7, low=0.4),
    Criterion("drawdown", outcome("drawdown", none=0.3, full=0.0), 0.1, high=0.3, needs="graded"),
    Criterion("turnover", outcome("turnover", none=50.0, full=0.0), 0.1, high=0.3, needs="graded"),
    Criterion("lines", outcome("lines", none=20, full=1), 0.1, high=0.3, needs="graded"),
)


def weighted(criteria: Sequence[Criterion], weights: Sequence[float]) -> Weights:
    """Return weights that begin at given ones; ValueError if one is out of the bounds of its criterion."""
    return Weights([replace(one, weight=weight) for one, weight in zip(criteria, weights, strict=True)])


@dataclass(frozen=True)
class MovedByModel:
    """Settings of a language model that moves the weights of a training."""

    weights_from: str = ""
    """OpenAI-compatible address of a language model that moves the weights of a training, such as
    http://127.0.0.1:8001/v1, by at most 0.1 within their bounds; by default none. A key is read from OPENAI_API_KEY."""
    weights_model: Annotated[str, When("weights_from")] = "default"
    """The model's name there."""
    weights_every: Annotated[Count, When("weights_from")] = 1
    """Rollouts between questions to it."""
    weights_log: Annotated[str, When("weights_from")] = "rubric.jsonl"
    """File of its messages, the weights and all grades of the training, which can be computed again."""


def moving(criteria: Sequence[Criterion], config: Any) -> tuple[Weights, Move | None]:  # noqa: ANN401
    """Return the weights of a config and what moves them in a training; ValueError as `weighted`, also of the end's."""
    begun = weighted(criteria, config.weights)
    if config.weights_from and config.weights_at_end is not None:
        raise ValueError("weights_from and weights_at_end both move the weights: choose one")
    if config.weights_from:
        try:
            return begun, by_model(config.weights_from, config.weights_model)
        except ValueError as error:
            raise ValueError(f"weights_from: {error}") from error
    if config.weights_at_end is None:
        return begun, None
    return begun, towards({0: begun.values, config.rollouts: weighted(criteria, config.weights_at_end).values})


@dataclass(frozen=True)
class CodeRubricConfig(MovedByModel, CodeConfig):
    """Settings of ``code_rubric``."""

    weights: tuple[Share, Share, Share, Share] = (0.7, 0.1, 0.1, 0.1)
    """Weights of correct, short, documented and fast (in few tries)."""
    weights_at_end: tuple[Share, Share, Share, Share] | None = None
    """Weights towards which a training moves them after each rollout, evenly, by at most 0.1; by default none."""
    rollouts: Annotated[Count, When("weights_at_end")] = 50
    """Rollouts after which they are those at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        moving(CODE_CRITERIA, self)


@dataclass(frozen=True)
class StrategyRubricConfig(MovedByModel, StrategyConfig):
    """Settings of ``strategy_rubric``."""

    weights: tuple[Share, Share, Share, Share] = (0.7, 0.1, 0.1, 0.1)
    """Weights of the grade, a small drawdown, a small turnover, and few lines."""
    weights_at_end: tuple[Share, Share, Share, Share] | None = None
    """Weights towards which a training moves them after each rollout, evenly, by at most 0.1; by default none."""
    rollouts: Annotated[Count, When("weights_at_end")] = 50
    """Rollouts after which they are those at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        moving(STRATEGY_CRITERIA, self)


def _with_rubric(task: Task, criteria: Sequence[Criterion], config: type[Any]) -> Task:
    def world(num_rows: int, config: Any) -> Interaction:  # noqa: ANN401
        assert task.interaction is not None
        weights, move = moving(criteria, config)
        if config.weights_from and config.part == "train":
            weights = Weights(weights.criteria, log=config.weights_log)
        return graded_by(weights, task.interaction(num_rows, config), move, config.weights_every)

    scale = f"the grade is the weighted mean of scores: {', '.join(one.name for one in criteria)}"
    domain = task.domain.replaced(scale=scale)
    return task.replaced(name=f"{task.name}_rubric", interaction=world, config=config, domain=domain)


CODE_RUBRIC = _with_rubric(CODE, CODE_CRITERIA, CodeRubricConfig)
STRATEGY_RUBRIC = _with_rubric(STRATEGY, STRATEGY_CRITERIA, StrategyRubricConfig)
