"""Evaluation of agents by `vecenv evaluate`: what is played, and what is told and written of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vecenv.core.checks import device_named
from vecenv.core.env import VecEnv
from vecenv.learn.conversations import ConversationEvaluation
from vecenv.learn.ensemble import diversity_line
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.report import show_evaluation, write_run_folder, write_task_figures
from vecenv.learn.settings.ensemble import Combination
from vecenv.learn.verdict import Verdict, verdicts
from vecenv.registry import task_named
from vecenv.system.files import WriteLock
from vecenv.tasks.experiment.checkpoints import looks_of, read_checkpoint, trained_config
from vecenv.tasks.experiment.comparison import (
    COMPARING,
    ENSEMBLE,
    SHOWN_BESIDE,
    baseline_agents,
    check_combination,
    chosen_agents,
    compared_conversations,
    policies_diversity,
    trained_agents,
    write_conversations,
)
from vecenv.tasks.experiment.kinds import Combining
from vecenv.tasks.experiment.language_training import MODEL, check_language, loaded_model
from vecenv.tasks.experiment.markets import BarMarket
from vecenv.tasks.experiment.progress import wide_console, working
from vecenv.tasks.experiment.run_files import SETTINGS
from vecenv.tasks.experiment.seeds import policies_by_folder, policy_files
from vecenv.tasks.experiment.side_by_side import Own, own_of, play_side_by_side, tell_other_rules
from vecenv.tasks.experiment.splits import splits_of
from vecenv.text.interaction import Interaction
from vecenv.text.recording import write_parquet
from vecenv.text.records import write_jsonl

if TYPE_CHECKING:
    from vecenv.tasks.commands.evaluate import EvaluateSettings

RECORD_FILES = (".jsonl", ".parquet")
"""Suffixes of files of records."""


def evaluated(settings: EvaluateSettings) -> dict[str, Any]:
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
    benchmarks: Mapping[str, str] = {}
    differing = None
    own = _own(settings, checkpoints)
    if own:
        if combination is not None:
            raise ValueError("policies with features, actions or symbols of their own have no ensemble")
        assert isinstance(settings.source, BarMarket)
        record = task_named(settings.task)
        tell_other_rules(console, record, settings.env, checkpoints)
        part = getattr(settings.days, "part", None)
        played = play_side_by_side(
            record, settings.source, own, checkpoints, part, settings.episodes, settings.seed, tuple(names),
            settings.device, console,
        )  # fmt: skip
        evaluation, agents, benchmarks = played.evaluation, played.agents, played.benchmarks
        env: VecEnv | Interaction = played.env
    else:
        env = environment_of(settings, checkpoints, console)
        with working(console, COMPARING.format(settings.episodes)):
            agents = _agents(settings, env, checkpoints, names, combination)
            if isinstance(env, Interaction):
                evaluation = compared_conversations(env, agents, settings.seed)
            else:
                evaluation = evaluate(env, agents, settings.seed)
                differing = policies_diversity(list(checkpoints.values()), env, settings.seed)
    evaluation = evaluation if settings.days.part == "all" else replace(evaluation, part="test")
    judged = _verdicts(settings, evaluation, checkpoints, benchmarks)
    show_evaluation(console, evaluation, judged)
    if differing is not None:
        console.print(diversity_line(differing), soft_wrap=True)
    paths = [str(path) for path in checkpoints.values()]
    origin = {"checkpoint": paths if len(paths) > 1 else next(iter(paths), None), "model": settings.model}
    told = {} if differing is None else {"combine": settings.trained.combine, "diversity": differing.to_json()}
    result = {**origin, **told, **evaluation.to_json(), "verdicts": [verdict.to_json() for verdict in judged]}
    if settings.folder is not None:
        metadata = {"command": "evaluate", **origin, **told, "seed": settings.seed}
        write_run_folder(settings.folder, metadata, evaluation, beside=SHOWN_BESIDE, verdicts=judged)
        write_task_figures(settings.folder, env, agents, settings.seed)
        if isinstance(evaluation, ConversationEvaluation):
            write_conversations(settings.folder, evaluation.conversations)
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


def environment_of(
    settings: EvaluateSettings, checkpoints: Mapping[str, Path], console: Console, own_actions: bool = False
) -> VecEnv | Interaction:
    """Return an environment of the episodes that are played, and print what they are of.

    ``own_actions`` are those of one policy, as of `Splits.episodes`.
    """
    record = task_named(settings.task)
    config = settings.source.fitted(record, settings.env)
    splits = splits_of(record, settings.source, config, settings.device, console)
    splits.check_policies(config, checkpoints.values())
    run = [] if settings.model is None or not (Path(settings.model) / SETTINGS).is_file() else [Path(settings.model)]
    policies = [*checkpoints.values(), *run]
    with working(console, "Comparing the market with those of the trainings …") if policies else nullcontext():
        split, why = splits.unseen(config, policies, settings.days.part)
    env, note = splits.episodes(split, settings.episodes, config, own_actions=own_actions)
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


def _own(settings: EvaluateSettings, checkpoints: Mapping[str, Path]) -> Mapping[str, Own]:
    """Return what is each policy's own, where they differ in it or in their rules; else nothing."""
    record = task_named(settings.task)
    if len(checkpoints) < 2 or not record.domain.of_policy or not isinstance(settings.source, BarMarket):
        return {}
    own = own_of(record, settings.source, settings.env, checkpoints)
    trained = [trained_config(read_checkpoint(path)["scenario"], str(path)) for path in checkpoints.values()]
    smooth = record.domain.smooth or (lambda rules: rules)
    first = next(iter(own.values()))
    same = all(smooth(rules) == smooth(trained[0]) for rules in trained)
    return {} if same and all(one.symbols == first.symbols for one in own.values()) else own


def _verdicts(
    settings: EvaluateSettings, evaluation: Evaluation, checkpoints: Mapping[str, Path], benchmarks: Mapping[str, str]
) -> list[Verdict]:
    """Return the verdicts on what was trained: the seeds of one run together, others by themselves and by the first.

    ``benchmarks`` are references of policies with symbols of their own.
    """
    names = [*checkpoints] if settings.model is None else [MODEL]
    groups = [names] if len(settings.checkpoint) == 1 else [[name] for name in names]
    groups += [[ENSEMBLE]] if ENSEMBLE in evaluation.records else []
    known = {name: looks_of(path) for name, path in checkpoints.items()}
    found = []
    for group in groups:
        beside = [] if len(settings.checkpoint) == 1 or group[0] in (names[0], ENSEMBLE) else names[:1]
        by = replace(evaluation, reference=benchmarks.get(group[0], evaluation.reference))
        found += verdicts(by, group, looks=known.get(group[0]), beside=beside)
    return found


def _refuse_bad_record(settings: EvaluateSettings) -> None:
    if settings.record is None:
        return
    task = task_named(settings.task)
    kinds = RECORD_FILES if task.interaction is None else RECORD_FILES[:1]
    if task.interaction is None:
        task.check_recording()
    if settings.record.suffix not in kinds:
        raise ValueError(f"{settings.record}: episodes are written as {' or '.join(kinds)}")
