"""Play recorded episodes again and check that every number is the recorded one."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tyro import conf

from vecenv.core.device import device_named
from vecenv.core.env import VecEnv
from vecenv.market.load import MarketOptions, load_market
from vecenv.registry import Task, task_named
from vecenv.tasks.tiers.agents import BuyAndHold
from vecenv.tasks.tiers.recorder import EpisodeRecorder, record_episodes
from vecenv.tasks.tiers.records import RecordedEpisode, read_jsonl
from vecenv.tasks.tiers.report import write_report
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.text.door import TextDoor

_UNCHECKED = ("market.origin", "market.source", "versions.vecenv", "config.action", "curriculum.action")
"""Fields not compared: the market's origin, the package's version, and the action space."""


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of ``vecenv replay``."""

    file: conf.Positional[Path]
    """JSONL file of recorded episodes."""
    episode: int | None = None
    """Line number of a single episode to replay, from 1; all by default."""
    market: str | None = None
    """File or generator to use instead of the recorded one; it must be the same market."""
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
    replayed: dict[int, RecordedEpisode] = {}
    for lines in _batches(records):
        batch = [records[line] for line in lines]
        try:
            scenario = recorded_scenario(batch[0], settings.market, device)
        except ValueError as error:
            raise ValueError(f"{settings.file}: episode {lines[0]}: {error}") from error
        replayed |= zip(lines, replay(batch, scenario), strict=True)

    console, differences = Console(), []
    for line, record in records.items():
        difference = first_difference(record, replayed[line])
        outcome = "ok" if difference is None else difference
        console.print(f"episode {line}: {_title(record)}: {outcome}", soft_wrap=True, markup=False, highlight=False)
        if difference is not None:
            differences.append(f"episode {line}: {difference}")
    if differences:
        raise ValueError(
            f"{settings.file}: {len(differences)} of {len(records)} episodes are not reproduced; {differences[0]}"
        )
    if settings.report is not None:
        (record,) = records.values()
        (reference,) = record_episodes(_environment([record], scenario), BuyAndHold(), [0])
        write_report(settings.report, record, reference, scenario.tape)
        console.print(f"Report written to {settings.report}", soft_wrap=True)
    return {"file": str(settings.file), "episodes": [{"line": line, **_summary(records[line])} for line in records]}


def replay(records: Sequence[RecordedEpisode], scenario: TierTrading) -> list[RecordedEpisode]:
    """Replay the recorded texts from the recorded starts, and record the episodes.

    Args:
        records: of one seed and one number of days, whose config is that of the scenario.
        scenario: the recorded config on the recorded market. Recorded per-row parameters replace its parameters.

    Returns:
        New records in the same order.
    """
    env = _environment(records, scenario)
    recorder = EpisodeRecorder(env, range(len(records)))
    for day in range(len(records[0].days)):
        texts = [record.days[day].action for record in records]
        actions, _ = TextDoor(env).parse(texts, range(len(records)))
        recorder.step(actions, texts)
    return recorder.episodes()


def recorded_scenario(
    record: RecordedEpisode, market: str | None = None, device: torch.device | str = "cpu"
) -> TierTrading:
    """Recreate the config and the market of a record.

    Args:
        record: of an episode.
        market: file or generator, the recorded one by default.
        device: device of the tensors.

    Raises:
        ValueError: the task is unknown, the config is invalid, or the market cannot be made or is another one.
    """
    task = task_named(record.task)
    if task.recorder is None:
        raise ValueError(f"episodes of {record.task!r} are not recorded")
    config = _config(task, record.curriculum or record.config)
    try:
        origin = {**record.market["origin"], **({} if market is None else {"market": market})}
        options = replace(
            MarketOptions().updated({name: value for name, value in origin.items() if name != "market"}),
            symbols=record.market["loaded_symbols"],
            features=config.features,
            context=config.context,
            tick_size=record.market["tick_size"],
        )
        tape = load_market(origin["market"], options, device).between(*record.market["dates"])
        if span := record.market.get("paths"):
            tape = tape.paths(*span)
        recorded = record.market["fingerprint"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the record does not name its market: {error}") from error
    scenario = task.build(tape, config)
    assert isinstance(scenario, TierTrading)
    if (fingerprint := scenario.tape.fingerprint()) != recorded:
        raise ValueError(
            f"{origin['market']} is another market: its fingerprint is {fingerprint}, the recorded one's is "
            f"{recorded}, of {record.market.get('source')!r}; name the right one with --market"
        )
    return scenario


def _config(task: Task, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the config of a task from JSON values."""
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        # Texts are parsed into orders in any recorded action space.
        return task.spoken(replace(task.config(), **plain))
    except TypeError as error:
        raise ValueError(f"unknown rules: {error}") from error


def _batches(records: Mapping[int, RecordedEpisode]) -> list[list[int]]:
    """Group the lines of records that can be replayed in one batch."""
    batches = defaultdict(list)
    for line, record in records.items():
        shared = (record.task, record.config, record.curriculum, record.market, record.seed, sorted(record.params))
        batches[json.dumps([*shared, len(record.days)])].append(line)
    return list(batches.values())


def _environment(records: Sequence[RecordedEpisode], scenario: TierTrading) -> VecEnv:
    """Return an environment whose rows are at the starts of the recorded episodes."""
    # Double precision holds parameters of any type.
    params = {
        name: torch.tensor([record.params[name] for record in records], dtype=torch.float64)
        for name in records[0].params
    }
    env_ids = torch.tensor([record.env_id for record in records])
    device = scenario.tape.device
    env = VecEnv(scenario, len(records), records[0].seed, device, compiled=False, params=params, env_ids=env_ids)
    episode = torch.tensor([record.episode for record in records], device=device)
    env.rows = env.engine.bound().start(env.seed_tensor, env.start_ids, episode)
    return env


def first_difference(recorded: RecordedEpisode, replayed: RecordedEpisode) -> str | None:
    """Return the first difference of two records, by day and then in the outcome, or None.

    All numbers are compared exactly, except for the market's origin, the package's version, and the action space.
    """
    before, after = recorded.to_json(), replayed.to_json()
    days = before.pop("days"), after.pop("days")
    for number, (old, new) in enumerate(zip(*days, strict=False), 1):
        if (difference := _difference(old, new)) is not None:
            return f"day {number}: {difference}"
    return _difference(len(days[0]), len(days[1]), "number of days") or _difference(before, after)


def _difference(recorded: Any, replayed: Any, place: str = "") -> str | None:  # noqa: ANN401
    """Return the first difference of two JSON values, with its position."""
    if place in _UNCHECKED:
        return None
    if isinstance(recorded, dict) and isinstance(replayed, dict) and recorded.keys() == replayed.keys():
        pairs = [(name, recorded[name], replayed[name]) for name in recorded]
    elif isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        pairs = [(str(index), *both) for index, both in enumerate(zip(recorded, replayed, strict=True))]
    else:
        return None if recorded == replayed else f"{place}: recorded {recorded!r}, replayed {replayed!r}"
    differences = (_difference(old, new, f"{place}.{name}" if place else name) for name, old, new in pairs)
    return next((difference for difference in differences if difference is not None), None)


def _title(record: RecordedEpisode) -> str:
    """Return the title of an episode."""
    traded = ", ".join(record.symbols) if len(record.symbols) <= 3 else f"{len(record.symbols)} symbols"
    return f"{record.task}, {traded}, {record.dates[0]} to {record.dates[1]}, {len(record.days)} days"


def _summary(record: RecordedEpisode) -> dict[str, Any]:
    """Return the summary of an episode for the result file."""
    names = ("task", "seed", "env_id", "episode", "dates", "total_return", "grades")
    return {name: getattr(record, name) for name in names}
