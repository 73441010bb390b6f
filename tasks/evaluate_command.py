"""Evaluate a trained agent, baselines, or both on any market and span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from tasks.comparison import (
    ALL,
    TRAINED,
    check_fits,
    chosen_agents,
    compare,
    rules_of,
    show_market,
    test_environment,
    test_rules,
    trained_rules,
    wide_console,
)
from tasks.market_settings import MarketSettings
from tasks.options import early_options, with_preset
from tasks.run_folder import SETTINGS, checkpoint_path, read_checkpoint
from vecenv.learn.report import write_run_folder
from vecenv.preset_files import read_values, with_values

Rules = TypeVar("Rules")


@dataclass(frozen=True)
class EvaluateOptions:
    """Options that decide where the other settings start."""

    checkpoint: Path | None = None
    """Folder of a run, or its checkpoint; the rules and the market of its training become the defaults."""
    task: str = "stock_trading"
    """Installed task, without a checkpoint."""
    task_preset: str | None = None
    """Preset of the rules."""


@dataclass(frozen=True)
class EvaluateSettings(MarketSettings, EvaluateOptions, Generic[Rules]):
    """Settings of ``vecenv evaluate``. The episodes lie in the days of the test."""

    agents: tuple[str, ...] = (ALL,)
    """Baselines to play, or all."""
    seed: int = 0
    """Names the episodes."""
    episodes: int = 256
    """Episodes of each agent."""
    folder: Path | None = None
    """Folder for metrics.json and pictures, none by default."""
    env: Rules = field(kw_only=True)
    """Rules of the task."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> EvaluateSettings:
        """Return the settings that the command line starts from, those of a checkpoint or of presets.

        Raises:
            ValueError: there is no such checkpoint, task or preset.
        """
        options = early_options(EvaluateOptions, args)
        if options.checkpoint is None:
            settings = cls(task=options.task, env=test_rules(rules_of(options.task)))
        else:
            settings = cls._trained(options.checkpoint)
        return replace(settings, env=with_preset(settings.env, "task", options.task_preset))

    @classmethod
    def _trained(cls, place: Path) -> EvaluateSettings:
        """Return rules and, where its folder tells it, market of a training."""
        path, scenario = checkpoint_path(place), read_checkpoint(place)["scenario"]
        settings = cls(task=scenario["task"], env=test_rules(trained_rules(scenario, str(path))))
        record = path.parent / SETTINGS
        if not record.is_file():
            return settings
        market = {item.name for item in fields(MarketSettings)} - {"device"}
        values = {name: value for name, value in read_values(record).items() if name in market}
        return with_values(settings, values, str(record))


def main(settings: EvaluateSettings) -> dict[str, Any]:
    """Evaluate a trained agent, baselines, or both on any market and span."""
    names = chosen_agents(settings.task, settings.agents)
    rules = settings.with_symbols(settings.env)
    tape = settings.tape(rules)
    test = settings.test(tape)
    checkpoint = None
    if settings.checkpoint is not None:
        checkpoint = checkpoint_path(settings.checkpoint)
        check_fits(read_checkpoint(checkpoint), tape, rules)
    env, note = test_environment(settings.task, test, rules, settings.episodes)
    console = wide_console()
    show_market(console, tape, {"Test": test})
    if note:
        console.print(note)
    evaluation = compare(env, checkpoint, names, settings.seed)
    console.print(evaluation.table())
    result = {"checkpoint": None if checkpoint is None else str(checkpoint), **evaluation.to_json()}
    if settings.folder is not None:
        shown = TRAINED if checkpoint is not None else names[0]
        metadata = {"command": "evaluate", "checkpoint": result["checkpoint"], "seed": settings.seed}
        write_run_folder(settings.folder, metadata, evaluation, agent=shown)
        console.print(f"Written to {settings.folder}", soft_wrap=True)
    return result
