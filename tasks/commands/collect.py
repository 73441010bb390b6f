"""Collect conversations of baseline agents for the supervised training of language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro import conf

from vecenv.registry import task_named
from vecenv.system.settings import Count, NotNegative, Seed
from vecenv.tasks.experiment.kinds import ALL, OF_TENSORS, TaskSettings
from vecenv.tasks.experiment.markets import MARKETS, SPLITS, NoMarket, market_for
from vecenv.tasks.experiment.options import TaskOptions, chosen_options, given_options, refuse_elsewhere, with_preset
from vecenv.tasks.experiment.rules import compared_rules


@dataclass(frozen=True, kw_only=True)
class CollectSettings(TaskSettings):
    """Settings of ``vecenv collect``. The episodes are drawn from the training days."""

    task: str = "single_stock"
    """Installed task with text."""
    task_preset: str | None = None
    """Preset of the rules."""
    source: Annotated[Any, conf.arg(name="")] = field(default_factory=NoMarket)
    """Where the episodes come from."""
    out: Path = Path("conversations.jsonl")
    """File to write, ending in .jsonl: a line per conversation, under ``messages`` as chat templates take them."""
    agents: tuple[str, ...] = ("rule_based", "oracle")
    """Baseline agents; by default the task's teachers, or those of these that it has, or its reference."""
    episodes: Count = 256
    """Episodes of each agent; all play the same ones."""
    seed: Seed = 0
    """Seed of the episodes."""
    conversation: Literal["episode", "day"] = "episode"
    """Content of a line: all days (steps, or turns of a conversation) of an episode, or a single one without the
    earlier ones."""
    min_grade: NotNegative = 0.0
    """Lowest grade of the episodes that are kept."""
    device: Annotated[str, OF_TENSORS] = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""
    env: Any
    """Rules of the task."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> CollectSettings:
        given = chosen_options(TaskOptions, args)
        record = task_named(given.get("task", cls.task))
        known = record.domain.teachers or tuple(name for name in cls.agents if name in record.agents)
        agents = known or (record.domain.reference or ALL,)
        env = with_preset(compared_rules(record, of_text=True), "task", given.get("task_preset"))
        settings = cls(task=record.name, source=market_for(record, env, given), agents=agents, env=env)
        refuse_elsewhere(settings, (*MARKETS, *SPLITS), given_options(args))
        return settings


def main(settings: CollectSettings) -> dict[str, Any]:
    """Write what baselines were shown and answered as conversations for supervised training."""
    # It needs PyTorch, which settings do not.
    from vecenv.tasks.commands.collecting import collected

    return collected(settings)
