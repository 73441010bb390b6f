"""Conversations of baseline agents, which `vecenv collect` writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from vecenv.core.env import VecEnv
from vecenv.learn.conversations import recorded_conversations
from vecenv.registry import task_named
from vecenv.system.files import WriteLock
from vecenv.tasks.experiment.comparison import baseline_agents, chosen_agents
from vecenv.tasks.experiment.progress import wide_console, working
from vecenv.tasks.experiment.splits import FIRST, splits_of
from vecenv.text.interaction import Episode, Interaction
from vecenv.text.recording import Recording
from vecenv.text.records import EpisodeRecord
from vecenv.text.transcripts import ConversationRecord

if TYPE_CHECKING:
    from vecenv.tasks.commands.collect import CollectSettings


def collected(settings: CollectSettings) -> dict[str, Any]:
    """Write what baselines were shown and answered as conversations for supervised training."""
    _check(settings)
    names = chosen_agents(settings.task, settings.agents)
    if not names:
        raise ValueError(f"task {settings.task!r} has no agents")
    with WriteLock.beside(settings.out):
        if settings.out.exists():
            raise ValueError(f"{settings.out} exists already")
        return _run(settings, names)


def _run(settings: CollectSettings, names: Sequence[str]) -> dict[str, Any]:
    console = wide_console()
    world = _training_episodes(settings, console)
    counts: dict[str, Counter[str]] = {}
    partial = settings.out.with_suffix(".partial")
    with working(console, f"{', '.join(names)} play …"), partial.open("w") as file:
        known = baseline_agents(world, names)
        # The best rule is among them even if it was not asked for.
        for name, episodes in _played(settings, world, {name: known[name] for name in names}):
            kept = [lines for grade, lines in episodes if grade >= settings.min_grade]
            lines = [line for own in kept for line in own]
            file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)
            said = [one for line in lines for one in line["messages"]]
            counts[name] = Counter(episodes=settings.episodes, kept=len(kept), conversations=len(lines))
            counts[name]["answers"] = sum(one["role"] == "assistant" for one in said)
            counts[name]["characters"] = sum(len(one["content"]) for one in said)
    if not any(count["kept"] for count in counts.values()):
        partial.unlink()
        raise ValueError(f"no episode has a grade of {settings.min_grade} or more")
    partial.replace(settings.out)
    console.print(_table(counts))
    console.print(f"Written to {settings.out}", soft_wrap=True)
    return {"file": str(settings.out), "agents": {name: dict(count) for name, count in counts.items()}}


def _training_episodes(settings: CollectSettings, console: Console) -> VecEnv | Interaction:
    record = task_named(settings.task)
    config = settings.source.fitted(record, settings.env)
    splits = splits_of(record, settings.source, config, settings.device, console)
    env, _ = splits.episodes("train", settings.episodes, config)
    splits.show(console, {"train": env}, settings.seed)
    return env


def _played(
    settings: CollectSettings, world: VecEnv | Interaction, agents: Mapping[str, Any]
) -> Iterator[tuple[str, list[tuple[float, list[dict[str, Any]]]]]]:
    """Return by agent the grade and the lines of each episode; those whose world failed are left out."""
    if isinstance(world, Interaction):
        episodes = [Episode(settings.seed, FIRST["train"] + row) for row in range(world.num_rows)]
        for name, talks in recorded_conversations(world, agents, episodes):
            yield name, [_of_talk(talk, name, settings) for talk in talks]
        return
    recording, rows = task_named(settings.task).check_recording(), range(world.num_envs)
    for name, agent in agents.items():
        records = recording.record(world, agent, rows, settings.seed)
        yield name, [_of_episode(recording, record, name, settings) for record in records]


def _of_talk(talk: ConversationRecord, agent: str, settings: CollectSettings) -> tuple[float, list[dict[str, Any]]]:
    system, *said = talk.messages()
    grade = talk.turns[-1].grade
    origin = {"task": talk.task, "agent": agent, "grade": grade, "seed": talk.seed, "index": talk.index}
    turns = [said[place : place + 2] for place in range(0, len(said), 2)]
    return grade or 0.0, list(_lines(system["content"], turns, origin, settings, "turn"))


def _of_episode(
    recording: Recording[Any, Any], record: EpisodeRecord, agent: str, settings: CollectSettings
) -> tuple[float, list[dict[str, Any]]]:
    grade = record.grades[record.config.get("grader", "grade")]
    origin = {
        "task": record.task,
        "agent": agent,
        "grade": grade,
        "total_return": record.total_return,
        "seed": record.seed,
        "env_id": record.env_id,
        **recording.origin(record),
    }
    steps = [step.messages for step in record.steps]
    return grade, list(_lines(record.instructions, steps, origin, settings, recording.step_name))


def _lines(
    instructions: str,
    steps: Sequence[Sequence[Mapping[str, str]]],
    origin: Mapping[str, Any],
    settings: CollectSettings,
    step_name: str,
) -> Iterator[dict[str, Any]]:
    """Return the lines of an episode: ``messages``, beginning with the instructions, and their origin."""
    system = {"role": "system", "content": instructions}
    if settings.conversation == "episode":
        yield {"messages": [system, *(said for step in steps for said in step)], **origin}
        return
    for number, step in enumerate(steps, 1):
        yield {"messages": [system, *step], **origin, step_name: number}


def _check(settings: CollectSettings) -> None:
    if not settings.without_tensors:
        task_named(settings.task).check_text()
        task_named(settings.task).check_recording()
    if settings.out.suffix != ".jsonl" or not settings.out.absolute().parent.is_dir():
        raise ValueError(f"{settings.out}: a file that ends in .jsonl, in a folder that exists, is needed")


def _table(counts: dict[str, Counter[str]]) -> Table:
    table = Table()
    columns = ("episodes", "kept", "conversations", "answers", "characters")
    for heading in ("agent", *columns):
        table.add_column(heading, justify="left" if heading == "agent" else "right")
    for name, count in counts.items():
        table.add_row(name, *(f"{count[column]:,}" for column in columns))
    return table
