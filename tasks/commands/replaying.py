"""Episodes that are played again, by `vecenv replay`, and compared with their records."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from vecenv.core.checks import device_named
from vecenv.registry import make_interaction, task_named
from vecenv.text.recording import Recording, recorded_config, recorded_start, write_report
from vecenv.text.records import EpisodeRecord, read_lines
from vecenv.text.transcripts import ConversationRecord, replayed_conversation, write_conversation_report

if TYPE_CHECKING:
    from vecenv.tasks.commands.replay import ReplaySettings


def replay(settings: ReplaySettings) -> dict[str, Any]:
    """Play recorded episodes again and check that every number is the recorded one."""
    records = dict(enumerate(read_jsonl(settings.file), 1))
    if settings.episode is not None:
        if settings.episode not in records:
            raise ValueError(f"{settings.file}: no episode {settings.episode}; it has 1 to {len(records)}")
        records = {settings.episode: records[settings.episode]}
    if settings.report is not None and not settings.report.absolute().parent.is_dir():
        raise ValueError(f"{settings.report}: there is no folder {settings.report.parent}")

    device = device_named(settings.device)
    replayed: dict[int, Any] = {}
    for lines in _batches(records):
        batch = [records[line] for line in lines]
        try:
            again = _replayed(batch, settings.market, device)
        except (ValueError, OSError) as error:
            raise ValueError(f"{settings.file}: line {lines[0]}: {error}") from error
        replayed |= zip(lines, again, strict=True)

    console, differences = Console(), []
    for line, record in records.items():
        again = replayed[line]
        if isinstance(record, ConversationRecord):
            title, difference = again.title, record.difference(again)
        else:
            title, difference = recording_of(record).title(again), recording_of(record).difference(record, again)
        outcome = "ok" if difference is None else difference
        console.print(f"episode {line}: {title}: {outcome}", soft_wrap=True, markup=False, highlight=False)
        if difference is not None:
            differences.append(f"episode {line}: {difference}")
    if differences:
        raise ValueError(
            f"{settings.file}: {len(differences)} of {len(records)} episodes are not reproduced; {differences[0]}"
        )
    if settings.report is not None:
        line, record = next(iter(records.items()))
        if isinstance(record, ConversationRecord):
            write_conversation_report(settings.report, record)
        else:
            _write_report(settings, replace(record, grade_parts=replayed[line].grade_parts), device)
        other = f", the first of {len(records)} (--episode chooses another)" if len(records) > 1 else ""
        console.print(f"Report of episode {line}{other} written to {settings.report}", soft_wrap=True)
    return {"file": str(settings.file), "episodes": [{"line": line, **_summary(records[line])} for line in records]}


def _replayed(batch: Sequence[Any], market: str | None, device: torch.device) -> Sequence[Any]:
    """Return what records of one kind of rules come to when they are played again."""
    task, first = task_named(batch[0].task), batch[0]
    if not isinstance(first, ConversationRecord):
        return task.check_recording().replay(batch, task.scenario_of(first, market, device), device)
    if market is not None:
        raise ValueError(f"{first.task} is a conversation, so --market {market} cannot be used")
    config = recorded_config(task.default_text_config(), first.config)
    return [replayed_conversation(record, make_interaction(task, config=config)) for record in batch]


def _write_report(settings: ReplaySettings, record: EpisodeRecord, device: torch.device) -> None:
    assert settings.report is not None
    task, recording = task_named(record.task), recording_of(record)
    # The episode's own parameters have replaced those of the scenario.
    scenario = task.scenario_of(record, settings.market, device)
    env = recorded_start([record], scenario, device)
    (reference,) = recording.record(env, task.agents[task.domain.reference](), [0])
    write_report(settings.report, recording, record, reference, task.domain.reference, scenario)


def recording_of(record: EpisodeRecord) -> Recording[Any, Any]:
    return task_named(record.task).check_recording()


def read_jsonl(path: Path | str) -> list[Any]:
    """Read episodes of any task; the first line that is no record, or a file without any, is a ValueError."""
    records = []
    for number, values in enumerate(read_lines(path), 1):
        try:
            task = task_named(values["task"])
            talks = task.recorded_as_conversations
            records.append(ConversationRecord.from_json(values) if talks else task.check_recording().read(values))
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from error
    return records


def _batches(records: Mapping[int, Any]) -> list[list[int]]:
    """Group the lines of records that can be replayed in one batch."""
    batches = defaultdict(list)
    for line, record in records.items():
        batches[json.dumps(record.shared)].append(line)
    return list(batches.values())


def _summary(record: EpisodeRecord | ConversationRecord) -> dict[str, Any]:
    if isinstance(record, ConversationRecord):
        return record.result()
    names = ("task", "seed", "env_id", "episode", "total_return", "grades")
    return {name: getattr(record, name) for name in names} | recording_of(record).result(record)
