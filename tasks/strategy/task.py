"""Registration record of the task of writing strategies."""

from __future__ import annotations

from dataclasses import replace

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.strategy.config import PARTS, StrategyConfig


def part(config: StrategyConfig, split: str) -> StrategyConfig:
    """Return the config of the episodes of a split; all of them are those of the test."""
    (chosen,) = [name for name in PARTS if name == ("test" if split == "all" else split)]
    return replace(config, part=chosen)


STRATEGY = Task(
    name="strategy",
    version="3",
    interaction=later("vecenv.tasks.strategy.scene:StrategyWriting"),
    config=StrategyConfig,
    agents=later("vecenv.tasks.strategy.agents:AGENTS"),
    domain=Domain(
        reference="buy_and_hold",
        scale="0.5 at buy and hold; on stock_trading, without costs, 0.73 ten points of log-return above and 0.27 "
        "below; on a tier 1 at hindsight's return, times participation and discipline",
        part=part,
        best=later("vecenv.tasks.strategy.agents:best_rule"),
        teachers=("random_programs",),
        pictures=later("vecenv.tasks.strategy.figures:figures"),
        talk_pictures=later("vecenv.tasks.strategy.figures:talk_figures"),
        trained=later("vecenv.tasks.strategy.token_learner:trained_author"),
    ),
)
