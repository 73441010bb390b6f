"""Play an episode yourself, in the terminal, from the text that language models read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro import conf

from vecenv.registry import Task, task_named, task_names
from vecenv.system.settings import Seed
from vecenv.tasks.experiment.kinds import OF_TENSORS, TaskSettings
from vecenv.tasks.experiment.markets import MARKETS, SPLITS, NoMarket, Whole, market_for
from vecenv.tasks.experiment.options import TaskOptions, chosen_options, given_options, refuse_elsewhere, with_preset


@dataclass(frozen=True, kw_only=True)
class PlaySettings(TaskSettings):
    """Settings of ``vecenv play``. The episode is drawn from all days used, or simulated."""

    task: str = "single_stock"
    """Installed task with text, such as single_stock, market_making, sokoban or shop."""
    task_preset: str | None = None
    """Preset of the rules."""
    source: Annotated[Any, conf.arg(name="")] = field(default_factory=NoMarket)
    """Where the episodes come from."""
    seed: Seed = 0
    """Seed of the episode."""
    device: Annotated[str, OF_TENSORS] = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""
    record: Path | None = None
    """JSONL file for the record of the episode."""
    env: Any
    """Rules of the task."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> PlaySettings:
        given = chosen_options(TaskOptions, args)
        record = task_named(given.get("task", cls.task))
        if not _playable(record):
            playable = ", ".join(name for name in task_names() if _playable(task_named(name)))
            raise ValueError(f"{record.name!r} has no text or no records, so it cannot be played; there are {playable}")
        config = with_preset(record.default_text_config(), "task", given.get("task_preset"))
        settings = cls(task=record.name, source=market_for(record, config, given, Whole()), env=config)
        refuse_elsewhere(settings, (*MARKETS, *SPLITS), given_options(args))
        return settings


def _playable(task: Task) -> bool:
    return task.recorded_as_conversations or (task.speaks and task.is_recorded)


def main(settings: PlaySettings) -> dict[str, Any]:
    """Play an episode yourself, in the terminal, from the text that language models read."""
    # It needs PyTorch, which settings do not.
    from vecenv.tasks.commands.playing import played

    return played(settings)
