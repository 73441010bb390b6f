"""Play recorded episodes again and check that every number is the recorded one."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from tyro import conf

from vecenv.core.checks import device_named
from vecenv.registry import task_named
from vecenv.system.settings import Count, Settings
from vecenv.text.recording import Recording, recorded_start, write_report
from vecenv.text.records import EpisodeRecord, read_lines


@dataclass(frozen=True)
class ReplaySettings(Settings):
    """Settings of ``vecenv replay``."""

    file: conf.Positional[Path]
    """JSONL file of recorded episodes."""
    episode: Count | None = None
    """Line number of a single episode to replay, from 1; all by default."""
    market: str | None = None
    """File or generator to use instead of the recorded one, of tasks on bars; it must be the same market."""
    report: Path | None = None
    """HTML file for a report of the episode."""
    device: str = "cpu"
    """Device; another device than the recording's may round rewards differently."""


def main(settings: ReplaySettings) -> dict[str, Any]:
    """Play recorded episodes again and check that every number is the recorded one."""
    records = dict(enumerate(read_jsonl(settings.file), 1))
    if settings.episode is not None:
        if settings.episode not in records:
            raise ValueError(f"{settings.file}: no episode {settings.episode}; it has 1 to {len(records)}")
        records = {settings.episode: records[settings.episode]}
    if settings.report is not None and len(records) > 1:
        raise ValueError(f"a report shows one episode, but there are {len(records)}: choose one with --episode")
    if settings.report is not None and not settings.report.absolute().parent.is_dir():
        raise ValueError(f"{settings.report}: there is no folder {settings.report.parent}")

    device = device_named(settings.device)
    replayed: dict[int, EpisodeRecord] = {}
    for lines in _batches(records):
        batch = [records[line] for line in lines]
        task = task_named(batch[0].task)
        try:
            scenario = task.scenario_of(batch[0], settings.market, device)
            again = task.check_recording().replay(batch, scenario, device)
        except (ValueError, OSError) as error:
            raise ValueError(f"{settings.file}: line {lines[0]}: {error}") from error
        replayed |= zip(lines, again, strict=True)

    console, differences = Console(), []
    for line, record in records.items():
        difference = recording_of(record).difference(record, replayed[line])
        outcome = "ok" if difference is None else difference
        title = recording_of(record).title(replayed[line])
        console.print(f"episode {line}: {title}: {outcome}", soft_wrap=True, markup=False, highlight=False)
        if difference is not None:
            differences.append(f"episode {line}: {difference}")
    if differences:
        raise ValueError(
            f"{settings.file}: {len(differences)} of {len(records)} episodes are not reproduced; {differences[0]}"
        )
    if settings.report is not None:
        ((line, record),) = records.items()
        record = replace(record, grade_parts=replayed[line].grade_parts)
        task, recording = task_named(record.task), recording_of(record)
        # The episode's own parameters have replaced those of the scenario.
        scenario = task.scenario_of(record, settings.market, device)
        env = recorded_start([record], scenario, device)
        (reference,) = recording.record(env, task.agents[task.domain.reference](), [0])
        write_report(settings.report, recording, record, reference, task.domain.reference, scenario)
        console.print(f"Report written to {settings.report}", soft_wrap=True)
    return {"file": str(settings.file), "episodes": [{"line": line, **_summary(records[line])} for line in records]}


def recording_of(record: EpisodeRecord) -> Recording[Any, Any]:
    return task_named(record.task).check_recording()


def read_jsonl(path: Path | str) -> list[EpisodeRecord]:
    """Read episodes of any task; the first line that is no record, or a file without any, is a ValueError."""
    records = []
    for number, values in enumerate(read_lines(path), 1):
        try:
            records.append(task_named(values["task"]).check_recording().read(values))
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from error
    return records


def _batches(records: Mapping[int, EpisodeRecord]) -> list[list[int]]:
    """Group the lines of records that can be replayed in one batch."""
    batches = defaultdict(list)
    for line, record in records.items():
        batches[json.dumps(record.shared)].append(line)
    return list(batches.values())


def _summary(record: EpisodeRecord) -> dict[str, Any]:
    names = ("task", "seed", "env_id", "episode", "total_return", "grades")
    return {name: getattr(record, name) for name in names} | recording_of(record).result(record)
