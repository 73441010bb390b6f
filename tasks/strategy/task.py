"""Registration record of the task of writing strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.tasks.strategy.agents import AGENTS, Author, best_rule
from vecenv.tasks.strategy.config import StrategyConfig
from vecenv.tasks.strategy.figures import figures, talk_figures
from vecenv.tasks.strategy.scene import PARTS, StrategyWriting


def part(config: StrategyConfig, split: str) -> StrategyConfig:
    """Return the config of the episodes of a split; all of them are those of the test."""
    (chosen,) = [name for name in PARTS if name == ("test" if split == "all" else split)]
    return replace(config, part=chosen)


def _trained(checkpoints: Sequence[Path], config: StrategyConfig, world: Any) -> Author:  # noqa: ANN401
    # Here, as the task needs no learner to be played.
    from vecenv.tasks.strategy.token_learner import trained_author

    return trained_author(checkpoints, config, world)


STRATEGY = Task(
    name="strategy",
    version="3",
    interaction=StrategyWriting,
    config=StrategyConfig,
    agents=AGENTS,
    domain=Domain(
        reference="buy_and_hold",
        scale="0.5 at buy and hold; on stock_trading, without costs, 0.73 ten points of log-return above and 0.27 "
        "below; on a tier 1 at hindsight's return, times participation and discipline",
        part=part,
        best=best_rule,
        teachers=("random_programs",),
        pictures=figures,
        talk_pictures=talk_figures,
        trained=_trained,
    ),
)
