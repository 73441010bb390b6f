"""Play recorded episodes again and check that every number is the recorded one."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from tyro import conf

from vecenv.core.device import device_named
from vecenv.registry import task_named
from vecenv.text.recording import Recording, recorded_start, write_report
from vecenv.text.records import EpisodeRecord, read_lines

_CONSEQUENCES = ("valid", "reward", "messages")
"""Fields of a step that are compared after those that explain them."""


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of ``vecenv replay``."""

    file: conf.Positional[Path]
    """JSONL file of recorded episodes."""
    episode: int | None = None
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
        recording = recording_of(batch[0])
        try:
            scenario = recording.scenario(batch[0], settings.market, device)
        except ValueError as error:
            raise ValueError(f"{settings.file}: episode {lines[0]}: {error}") from error
        replayed |= zip(lines, recording.replay(batch, scenario, device), strict=True)

    console, differences = Console(), []
    for line, record in records.items():
        difference = first_difference(record, replayed[line])
        outcome = "ok" if difference is None else difference
        title = recording_of(record).title(record)
        console.print(f"episode {line}: {title}: {outcome}", soft_wrap=True, markup=False, highlight=False)
        if difference is not None:
            differences.append(f"episode {line}: {difference}")
    if differences:
        raise ValueError(
            f"{settings.file}: {len(differences)} of {len(records)} episodes are not reproduced; {differences[0]}"
        )
    if settings.report is not None:
        (record,) = records.values()
        task, recording = task_named(record.task), recording_of(record)
        env = recorded_start([record], scenario, device)
        (reference,) = recording.record(env, task.agents[task.reference](), [0])
        write_report(settings.report, recording, record, reference, task.reference, scenario)
        console.print(f"Report written to {settings.report}", soft_wrap=True)
    return {"file": str(settings.file), "episodes": [{"line": line, **_summary(records[line])} for line in records]}


def recording_of(record: EpisodeRecord) -> Recording[Any, Any]:
    """Return the recording of a record's task."""
    return task_named(record.task).check_recording()


def read_jsonl(path: Path | str) -> list[EpisodeRecord]:
    """Read episodes of any task.

    Raises:
        ValueError: naming the first line that is not a record, or saying that there is none.
    """
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


def first_difference(recorded: EpisodeRecord, replayed: EpisodeRecord) -> str | None:
    """Return the first difference of two records, by step and then in the outcome, or None.

    All numbers are compared exactly, except for what `Recording.unchecked` names.
    """
    recording = recording_of(recorded)
    before, after, name = recorded.to_json(), replayed.to_json(), recorded.steps_field
    steps = before.pop(name), after.pop(name)
    for number, (old, new) in enumerate(zip(*steps, strict=False), 1):
        if (difference := _difference(old, new, recording.unchecked)) is not None:
            return f"{recording.step_name} {number}: {difference}"
    count = _difference(len(steps[0]), len(steps[1]), (), f"number of {recording.step_name}s")
    return count or _difference(before, after, recording.unchecked)


def _difference(recorded: Any, replayed: Any, unchecked: Sequence[str], place: str = "") -> str | None:  # noqa: ANN401
    """Return the first difference of two JSON values, with its position."""
    if place in unchecked:
        return None
    if isinstance(recorded, dict) and isinstance(replayed, dict) and recorded.keys() == replayed.keys():
        names = sorted(recorded, key=lambda name: name in _CONSEQUENCES)
        pairs = [(name, recorded[name], replayed[name]) for name in names]
    elif isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        pairs = [(str(index), *both) for index, both in enumerate(zip(recorded, replayed, strict=True))]
    else:
        return None if recorded == replayed else f"{place}: recorded {recorded!r}, replayed {replayed!r}"
    differences = (_difference(old, new, unchecked, f"{place}.{name}" if place else name) for name, old, new in pairs)
    return next((difference for difference in differences if difference is not None), None)


def _summary(record: EpisodeRecord) -> dict[str, Any]:
    """Return the summary of an episode for the result file."""
    names = ("task", "seed", "env_id", "episode", "total_return", "grades")
    return {name: getattr(record, name) for name in names} | recording_of(record).result(record)
