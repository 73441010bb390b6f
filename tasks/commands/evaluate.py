"""Evaluate trained agents, baselines, or both on any market and span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from rich.console import Console

from vecenv.core.env import VecEnv
from vecenv.language.config import AnswerConfig
from vecenv.learn.agents import Agent
from vecenv.learn.ensemble import Combination, Kind, diversity_line
from vecenv.learn.evaluation import evaluate
from vecenv.learn.report import evaluation_table, parts_table, write_run_folder, write_task_figures
from vecenv.market.load import generator_of
from vecenv.registry import task_named
from vecenv.system.files import WriteLock
from vecenv.system.preset_files import read_values, with_values
from vecenv.system.settings import Count, Positive, Seed, with_earlier
from vecenv.tasks.commands.applicable import named_settings
from vecenv.tasks.commands.comparison import (
    ALL,
    COMPARING,
    ENSEMBLE,
    SHOWN_BESIDE,
    asked_combination,
    baseline_agents,
    check_combination,
    check_fits,
    chosen_agents,
    compared_config,
    comparison_environment,
    config_of,
    policies_diversity,
    show_market,
    text_config,
    trained_agents,
    trained_config,
    wide_console,
)
from vecenv.tasks.commands.known_before import days_to_play, tell_known_before
from vecenv.tasks.commands.language_training import MODEL, check_language, loaded_model
from vecenv.tasks.commands.market_settings import MarketSettings, default_market, market_origin
from vecenv.tasks.commands.options import early_options, with_preset
from vecenv.tasks.commands.progress import working
from vecenv.tasks.commands.run_folder import SETTINGS, checkpoint_path, read_checkpoint
from vecenv.tasks.commands.seeds import policies_by_folder, policy_files
from vecenv.tasks.commands.simulated import (
    is_simulated,
    show_simulation,
    split_environment,
    unknown_to,
    without_effect,
)
from vecenv.text.recording import write_parquet
from vecenv.text.records import write_jsonl

RECORD_FILES = (".jsonl", ".parquet")
"""Suffixes of files of records."""

TaskConfig = TypeVar("TaskConfig")


@dataclass(frozen=True)
class EvaluateOptions:
    """Options that determine the defaults of the other settings."""

    checkpoint: tuple[Path, ...] = ()
    """Folder of a run, or its checkpoint; the rules and the market of its training become the defaults. Of several, or
    of a run of several seeds, each policy plays, and their ensemble by the mean of their actions."""
    model: str | None = None
    """Language model to play: a folder, a name on the Hugging Face hub, or the folder of a run, whose rules and market
    become the defaults."""
    task: str | None = None
    """Installed task, by default that of the checkpoint, else stock_trading."""
    task_preset: str | None = None
    """Preset of the rules."""


@dataclass(frozen=True)
class EvaluateSettings(MarketSettings, EvaluateOptions, Generic[TaskConfig]):
    """Settings of ``vecenv evaluate``. The episodes are drawn from the test days, or from all that no policy knows."""

    task: str = "stock_trading"
    """Installed task, by default that of the checkpoint, else stock_trading."""
    agents: tuple[str, ...] = (ALL,)
    """Baselines to play, or all."""
    part: Literal["test", "all"] | None = None
    """Days of a market of data to play: the test, or all; by default all where no policy was trained on the market,
    known by its content, unless dates or a share of the test are given."""
    seed: Seed = 0
    """Seed of the episodes."""
    episodes: Count = 256
    """Episodes of each agent."""
    combine: Kind = "mean"
    """How several checkpoints become the agent ensemble: mean of actions that are numbers, and vote of choices;
    weighted, the same by softmax(Sharpe ratio of the validation / sharpe_temperature); vote, of numbers on their signs;
    or select, the policy with the best Sharpe ratio of the validation."""
    sharpe_temperature: Positive = 1.0
    """weighted: towards 0 the best policy has all the weight."""
    folder: Path | None = None
    """Folder for metrics.json and pictures, none by default."""
    record: Path | None = None
    """File for the episodes of the table's first agent: .jsonl, for vecenv replay, or .parquet."""
    language: AnswerConfig = field(default_factory=AnswerConfig)
    """Answer settings of a language model."""
    env: TaskConfig = field(kw_only=True)
    """Rules of the task."""

    def inapplicable(self) -> dict[str, str]:
        market = without_effect() if is_simulated(self.task) else super().inapplicable()
        if is_simulated(self.task) or generator_of(self.market) is not None:
            market["part"] = "a market of data"
        elif self.part == "all":
            market |= dict.fromkeys(("train_end", "test_start", "test_fraction", "embargo"), "--part test")
        names = market | ({"language": "--model"} if self.model is None else {})
        if not self.checkpoint:
            names["combine"] = "--checkpoint"
        if self.combine != "weighted":
            names["sharpe_temperature"] = "--combine weighted"
        return names

    @classmethod
    def defaults(cls, args: Sequence[str]) -> EvaluateSettings:
        """Return the defaults of the command line, from a checkpoint or presets."""
        options = early_options(EvaluateOptions, args)
        if options.checkpoint and options.model is not None:
            raise ValueError("either a checkpoint or a model plays beside the baselines, not both")
        if options.checkpoint:
            settings = cls._trained(next(iter(policy_files(options.checkpoint[0]).values())))
        elif options.model is not None and (Path(options.model) / SETTINGS).is_file():
            settings = cls._trained(Path(options.model))
        else:
            task = options.task or cls.task
            own = compared_config(task) if options.model is None else text_config(task)
            settings = cls(task=task, market=default_market(task), env=own)
        if options.task not in (None, settings.task):
            place = options.checkpoint[0] if options.checkpoint else options.model
            raise ValueError(f"{place} was trained on the task {settings.task!r}, not on {options.task!r}")
        split = named_settings(dict.fromkeys(("train_end", "test_start", "test_fraction")), args)
        settings = replace(settings, part="test" if split else None)
        return replace(settings, env=with_preset(settings.env, "task", options.task_preset))

    @classmethod
    def _trained(cls, place: Path) -> EvaluateSettings:
        """Return the config and, if its folder has it, the market of a training run."""
        path, scenario = checkpoint_path(place), read_checkpoint(place)["scenario"]
        settings = cls(
            task=scenario["task"], env=compared_config(scenario["task"], trained_config(scenario, str(path)))
        )
        record = path.parent / SETTINGS
        if not record.is_file():
            return settings
        known, plain = read_values(record), config_of(settings.task)
        if known.get("algorithm") == "exact":
            # Trained under smooth rules, compared under those of its run.
            own = with_values(plain, with_earlier(known["env"], plain), str(record))
            settings = replace(settings, env=compared_config(settings.task, own))
        if "config" not in scenario:
            # The rules of a task whose scenario does not tell them.
            settings = replace(settings, env=with_values(plain, with_earlier(known["env"], plain), str(record)))
        market = {item.name for item in fields(MarketSettings)} - {"device"}
        values = {name: value for name, value in known.items() if name in market}
        asked = {item.name for item in fields(AnswerConfig)}
        values["language"] = {name: value for name, value in known.get("language", {}).items() if name in asked}
        return with_values(settings, values, str(record))


def main(settings: EvaluateSettings) -> dict[str, Any]:
    """Evaluate trained agents, baselines, or both on any market and span."""
    names = chosen_agents(settings.task, settings.agents)
    if settings.model is not None:
        check_language(settings.task, settings.model)
    _refuse_bad_record(settings)
    with nullcontext() if settings.folder is None else WriteLock(settings.folder):
        return _run(settings, names)


def _run(settings: EvaluateSettings, names: Sequence[str]) -> dict[str, Any]:
    console = wide_console()
    checkpoints = _checkpoints(settings.checkpoint, names)
    combination = asked_combination(settings.combine, settings.sharpe_temperature)
    check_combination(combination, list(checkpoints.values()))
    env = (
        _simulation(settings, checkpoints, console)
        if is_simulated(settings.task)
        else _on_tape(settings, checkpoints, console)
    )
    with working(console, COMPARING.format(settings.episodes)):
        agents = _agents(settings, env, checkpoints, names, combination)
        evaluation = evaluate(env, agents, settings.seed)
        evaluation = evaluation if settings.part == "all" else replace(evaluation, part="test")
        differing = policies_diversity(list(checkpoints.values()), env, settings.seed)
    console.print(evaluation_table(evaluation))
    if (parts := parts_table(evaluation)) is not None:
        console.print(parts)
    if differing is not None:
        console.print(diversity_line(differing), soft_wrap=True)
    paths = [str(path) for path in checkpoints.values()]
    origin = {"checkpoint": paths if len(paths) > 1 else next(iter(paths), None), "model": settings.model}
    told = {} if differing is None else {"combine": settings.combine, "diversity": differing.to_json()}
    result = {**origin, **told, **evaluation.to_json()}
    if settings.folder is not None:
        metadata = {"command": "evaluate", **origin, **told, "seed": settings.seed}
        write_run_folder(settings.folder, metadata, evaluation, agent=next(iter(agents)), beside=SHOWN_BESIDE)
        write_task_figures(settings.folder, env, agents, settings.seed)
        console.print(f"Written to {settings.folder}", soft_wrap=True)
    if settings.record is not None:
        agent = next(iter(agents.values()))
        recording = task_named(settings.task).check_recording()
        market = None if is_simulated(settings.task) else market_origin(settings)
        records = recording.record(env, agent, range(env.num_envs), settings.seed, market)
        if settings.record.suffix == ".parquet":
            write_parquet(settings.record, recording, records)
        else:
            write_jsonl(settings.record, records)
        console.print(f"{len(records)} episodes written to {settings.record}", soft_wrap=True)
    return result


def _simulation(settings: EvaluateSettings, checkpoints: Mapping[str, Path], console: Console) -> VecEnv:
    env = split_environment(settings.task, settings.env, settings.episodes, "test", settings.device)
    why = ""
    if unknown_to([read_checkpoint(path)["scenario"] for path in checkpoints.values()], env):
        env = split_environment(settings.task, settings.env, settings.episodes, "all", settings.device)
        why = "all of it, as no policy here was trained on this time"
    show_simulation(console, {"test": env}, settings.seed, why)
    return env


def _on_tape(settings: EvaluateSettings, checkpoints: Mapping[str, Path], console: Console) -> VecEnv:
    config = settings.with_symbols(settings.env)
    with working(console, f"Making the market {settings.market} …"):
        tape = settings.tape(config)
    for path in checkpoints.values():
        check_fits(read_checkpoint(path), tape, config)
    run = [] if settings.model is None or not (Path(settings.model) / SETTINGS).is_file() else [Path(settings.model)]
    with working(console, "Comparing the market with those of the trainings …"):
        test, why = days_to_play(settings, tape, [*checkpoints.values(), *run], settings.part)
    env, note = comparison_environment(settings.task, test, config, settings.episodes)
    show_market(console, tape, {"Test": test}, why)
    tell_known_before(console, settings.market, test, checkpoints.values())
    if note:
        console.print(note)
    return env


def _checkpoints(places: Sequence[Path], baselines: Sequence[str]) -> dict[str, Path]:
    """Return the checkpoints of one place by seed, of several by the names of their folders."""
    return policy_files(places[0]) if len(places) == 1 else policies_by_folder(places, {ENSEMBLE, *baselines})


def _agents(
    settings: EvaluateSettings,
    env: VecEnv,
    checkpoints: Mapping[str, Path],
    names: Sequence[str],
    combination: Combination | None,
) -> dict[str, Agent]:
    """Return the agents by name, the trained ones, if any, first."""
    if settings.model is None:
        return trained_agents(checkpoints, env, combination) | baseline_agents(env, names)
    return {MODEL: loaded_model(settings.model, env.device, settings.language)} | baseline_agents(env, names)


def _refuse_bad_record(settings: EvaluateSettings) -> None:
    if settings.record is None:
        return
    task_named(settings.task).check_recording()
    if settings.record.suffix not in RECORD_FILES:
        raise ValueError(f"{settings.record}: episodes are written as {' or '.join(RECORD_FILES)}")
