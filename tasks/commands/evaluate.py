"""Evaluate trained agents, baselines, or both on any market and span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro import conf

from vecenv.core.checks import device_named
from vecenv.core.env import VecEnv
from vecenv.language.config import AnswerConfig
from vecenv.learn import algorithm_named
from vecenv.learn.conversations import ConversationEvaluation
from vecenv.learn.ensemble import diversity_line
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.report import evaluation_table, parts_table, write_run_folder, write_task_figures
from vecenv.learn.settings.ensemble import Combination
from vecenv.registry import task_named
from vecenv.system.files import WriteLock
from vecenv.system.preset_files import option_names, read_values, with_values
from vecenv.system.settings import Count, Seed, Settings, When, with_earlier
from vecenv.tasks.experiment.checkpoints import read_checkpoint, trained_config
from vecenv.tasks.experiment.comparison import (
    COMPARING,
    ENSEMBLE,
    SHOWN_BESIDE,
    baseline_agents,
    check_combination,
    chosen_agents,
    compared_conversations,
    compared_rules,
    policies_diversity,
    trained_agents,
    write_conversations,
)
from vecenv.tasks.experiment.kinds import ALL, OF_TENSORS, Combining, TaskSettings
from vecenv.tasks.experiment.language_training import MODEL, check_language, loaded_model
from vecenv.tasks.experiment.markets import MARKETS, SPLITS, FileMarket, NoMarket, market_for
from vecenv.tasks.experiment.options import TaskOptions, chosen_options, given_options, refuse_elsewhere, with_preset
from vecenv.tasks.experiment.progress import wide_console, working
from vecenv.tasks.experiment.run_files import SETTINGS, checkpoint_path
from vecenv.tasks.experiment.seeds import policies_by_folder, policy_files
from vecenv.tasks.experiment.settings import DEFAULT_TASK, TrainSettings, block_of, deciding
from vecenv.tasks.experiment.splits import PartAsked, splits_of
from vecenv.text.interaction import Interaction
from vecenv.text.recording import write_parquet
from vecenv.text.records import write_jsonl

RECORD_FILES = (".jsonl", ".parquet")
"""Suffixes of files of records."""


@dataclass(frozen=True, kw_only=True)
class Test(Settings):
    """The test alone."""

    owner: ClassVar[str] = "a task or a market without days that no policy knows"

    part: ClassVar[PartAsked] = None


@dataclass(frozen=True, kw_only=True)
class Part(Settings):
    """The test, or all of a market of data."""

    owner: ClassVar[str] = "a market of data"

    part: PartAsked = None
    """Days of a market of data to play: the test, or all. By default all where no policy was trained on the market,
    known by its content, unless dates or a share of the test are given."""


@dataclass(frozen=True, kw_only=True)
class Baselines(Settings):
    """Baselines alone."""

    owner: ClassVar[str] = "neither --checkpoint nor --model"


@dataclass(frozen=True, kw_only=True)
class Model(Settings):
    """A language model beside the baselines."""

    owner: ClassVar[str] = "--model"

    language: AnswerConfig = field(default_factory=AnswerConfig)
    """Answer settings of a language model."""


KINDS = (*MARKETS, *SPLITS, Part, Combining, Model)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(TaskOptions):
    """Options that decide which settings there are, and their defaults."""

    checkpoint: tuple[Path, ...] | None = None
    model: str | None = None
    test_fraction: float | None = None
    part: str | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(TaskSettings):
    """Settings of ``vecenv evaluate``. The episodes are drawn from the test days, or from all that no policy knows."""

    checkpoint: tuple[Path, ...] = ()
    """Folder of a run, or its checkpoint. The rules and the market of its training become the defaults. Of several, or
    of a run of several seeds, each policy plays, and their ensemble by the mean of their actions."""
    model: str | None = None
    """Language model to play. A folder, a name on the Hugging Face hub, or the folder of a run, whose rules and market
    become the defaults."""
    task: str = DEFAULT_TASK
    """Installed task, by default the checkpoint's, else stock_trading."""
    task_preset: str | None = None
    """Preset of the rules."""
    source: Annotated[Any, conf.arg(name="")] = field(default_factory=NoMarket)
    """Where the episodes come from."""
    days: Annotated[Any, conf.arg(name="")] = field(default_factory=Test)
    """Which days are played."""
    agents: tuple[str, ...] = (ALL,)
    """Baselines to play, or all."""
    trained: Annotated[Any, conf.arg(name="")] = field(default_factory=Baselines)
    """How what was trained plays."""
    seed: Seed = 0
    """Seed of the episodes."""
    episodes: Count = 256
    """Episodes of each agent."""
    device: Annotated[str, OF_TENSORS, When("model", told="--model")] = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""
    folder: Path | None = None
    """Folder for metrics.json and pictures, none by default."""
    record: Path | None = None
    """File for the episodes of the table's first agent. It ends in .jsonl, for vecenv replay, or .parquet."""
    env: Any
    """Rules of the task."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> EvaluateSettings:
        """Return the defaults of the command line, from a checkpoint or presets."""
        given = chosen_options(EvaluateOptions, args)
        places, model = given.get("checkpoint", ()), given.get("model")
        if places and model is not None:
            raise ValueError("either a checkpoint or a model plays beside the baselines, not both")
        run = next(iter(policy_files(places[0]).values())) if places else None
        if model is not None and (Path(model) / SETTINGS).is_file():
            run = Path(model)
        known = {} if run is None else _trained(run)
        task = known.get("task") or given.get("task", DEFAULT_TASK)
        if given.get("task", task) != task:
            place = places[0] if places else model
            raise ValueError(f"{place} was trained on the task {task!r}, not on {given['task']!r}")
        record = task_named(task)
        of_text = model is not None or record.interaction is not None
        env = known["env"] if run is not None else compared_rules(record, of_text=of_text)
        env = with_preset(env, "task", given.get("task_preset"))
        source = market_for(record, env, known.get("market", {}) | given)
        of_data = isinstance(source, FileMarket)
        parted = not {"train_end", "test_start", "test_fraction"}.isdisjoint(given)
        settings = cls(
            task=task,
            source=source,
            days=Part(part="test" if parted else None) if of_data else Test(),
            trained=Model() if model is not None else Combining() if places else Baselines(),
            env=env,
        )
        own = {*option_names(source), *option_names(settings.trained)}.difference(given)
        values = known.get("market", {}) | {"language": known.get("language", {})}
        values = {name: value for name, value in values.items() if name in own}
        settings = with_values(settings, values, str(run))
        refuse_elsewhere(settings, KINDS, given_options(args))
        if parted and given.get("part") == "all":
            raise ValueError("--part all plays all days: it needs none of --train-end, --test-start, --test-fraction")
        return settings


def _trained(place: Path) -> dict[str, Any]:
    """Return ``task`` and ``env`` of a training and, if its folder has them, ``market`` and ``language`` by name."""
    path, scenario = checkpoint_path(place), read_checkpoint(place)["scenario"]
    record = task_named(scenario["task"])
    known: dict[str, Any] = {"task": record.name, "env": compared_rules(record, trained_config(scenario, str(path)))}
    file = path.parent / SETTINGS
    if not file.is_file():
        return known
    values, plain = read_values(file), record.config()
    chosen = deciding(values, str(file))
    if "config" not in scenario or algorithm_named(chosen.get("algorithm", TrainSettings.algorithm)).smooth:
        # The rules of a task whose scenario does not tell them; or trained under smooth ones, compared under its own.
        known["env"] = with_values(plain, with_earlier(block_of(values, "env", plain, file), plain), str(file))
        if "config" in scenario:
            known["env"] = compared_rules(record, known["env"])
    market = {name for kind in (*MARKETS, *SPLITS) for name in option_names(kind)}
    known["market"] = {name: value for name, value in values.items() if name in market}
    speaks = "model" in chosen or record.interaction is not None
    part = "learner" if speaks and not values.get("language") else "language"
    answers = block_of(values, part, AnswerConfig, file)
    known["language"] = {name: value for name, value in answers.items() if name in option_names(AnswerConfig)}
    return known


def main(settings: EvaluateSettings) -> dict[str, Any]:
    """Evaluate trained agents, baselines, or both on any market and span."""
    names = chosen_agents(settings.task, settings.agents)
    if settings.model is not None:
        check_language(settings.task, settings.model)
    elif settings.checkpoint and settings.without_tensors and task_named(settings.task).domain.trained is None:
        raise ValueError(f"task {settings.task!r} is a conversation, which a language model plays: give --model")
    _refuse_bad_record(settings)
    with nullcontext() if settings.folder is None else WriteLock(settings.folder):
        return _run(settings, names)


def _run(settings: EvaluateSettings, names: Sequence[str]) -> dict[str, Any]:
    console = wide_console()
    checkpoints = _checkpoints(settings.checkpoint, names)
    combination = settings.trained.asked() if isinstance(settings.trained, Combining) else None
    check_combination(combination, list(checkpoints.values()))
    env, differing = _environment(settings, checkpoints, console), None
    with working(console, COMPARING.format(settings.episodes)):
        agents = _agents(settings, env, checkpoints, names, combination)
        if isinstance(env, Interaction):
            evaluation: Evaluation = compared_conversations(env, agents, settings.seed)
        else:
            evaluation = evaluate(env, agents, settings.seed)
            differing = policies_diversity(list(checkpoints.values()), env, settings.seed)
        evaluation = evaluation if settings.days.part == "all" else replace(evaluation, part="test")
    console.print(evaluation_table(evaluation))
    if (parts := parts_table(evaluation)) is not None:
        console.print(parts)
    if differing is not None:
        console.print(diversity_line(differing), soft_wrap=True)
    paths = [str(path) for path in checkpoints.values()]
    origin = {"checkpoint": paths if len(paths) > 1 else next(iter(paths), None), "model": settings.model}
    told = {} if differing is None else {"combine": settings.trained.combine, "diversity": differing.to_json()}
    result = {**origin, **told, **evaluation.to_json()}
    if settings.folder is not None:
        metadata = {"command": "evaluate", **origin, **told, "seed": settings.seed}
        write_run_folder(settings.folder, metadata, evaluation, beside=SHOWN_BESIDE)
        write_task_figures(settings.folder, env, agents, settings.seed)
        if isinstance(env, Interaction):
            write_conversations(settings.folder, evaluation)
        console.print(f"Written to {settings.folder}", soft_wrap=True)
    if settings.record is not None:
        records: Sequence[Any]
        if isinstance(evaluation, ConversationEvaluation):
            records = next(iter(evaluation.conversations.values()))
        else:
            assert isinstance(env, VecEnv)
            agent, recording = next(iter(agents.values())), task_named(settings.task).check_recording()
            records = recording.record(env, agent, range(env.num_envs), settings.seed, settings.source.origin())
        if settings.record.suffix == ".parquet":
            write_parquet(settings.record, recording, records)
        else:
            write_jsonl(settings.record, records)
        console.print(f"{len(records)} episodes written to {settings.record}", soft_wrap=True)
    return result


def _environment(settings: EvaluateSettings, checkpoints: Mapping[str, Path], console: Console) -> VecEnv | Interaction:
    record = task_named(settings.task)
    config = settings.source.fitted(record, settings.env)
    splits = splits_of(record, settings.source, config, settings.device, console)
    splits.check_policies(config, checkpoints.values())
    run = [] if settings.model is None or not (Path(settings.model) / SETTINGS).is_file() else [Path(settings.model)]
    policies = [*checkpoints.values(), *run]
    with working(console, "Comparing the market with those of the trainings …") if policies else nullcontext():
        split, why = splits.unseen(config, policies, settings.days.part)
    env, note = splits.episodes(split, settings.episodes, config)
    splits.show(console, {split: env}, settings.seed, why)
    splits.tell_known_before(console, checkpoints.values())
    if note:
        console.print(note)
    return env


def _checkpoints(places: Sequence[Path], baselines: Sequence[str]) -> dict[str, Path]:
    """Return the checkpoints of one place by seed, of several by the names of their folders."""
    return policy_files(places[0]) if len(places) == 1 else policies_by_folder(places, {ENSEMBLE, *baselines})


def _agents(
    settings: EvaluateSettings,
    env: VecEnv | Interaction,
    checkpoints: Mapping[str, Path],
    names: Sequence[str],
    combination: Combination | None,
) -> dict[str, Any]:
    """Return the agents by name, the trained ones, if any, first."""
    trained: dict[str, Any] = {}
    if settings.model is not None:
        trained[MODEL] = loaded_model(settings.model, device_named(settings.device), settings.trained.language)
    if isinstance(env, Interaction):
        made, config = env.task.domain.trained, env.config
        trained |= {name: made([path], config, env) for name, path in checkpoints.items()}
    else:
        trained = trained_agents(checkpoints, env, combination) | trained
    return trained | baseline_agents(env, names)


def _refuse_bad_record(settings: EvaluateSettings) -> None:
    if settings.record is None:
        return
    task = task_named(settings.task)
    kinds = RECORD_FILES if task.interaction is None else RECORD_FILES[:1]
    if task.interaction is None:
        task.check_recording()
    if settings.record.suffix not in kinds:
        raise ValueError(f"{settings.record}: episodes are written as {' or '.join(kinds)}")
