"""What a family of tasks tells of its records: how they are made, read, replayed and shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, cast

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.system.settings import refuse_unknown, with_earlier
from vecenv.text.answer_lines import ANSWERS_VERSION
from vecenv.text.door import TextDoor
from vecenv.text.recorder import Episode, Player, Recorder, Step, record_episodes

_CONSEQUENCES = ("valid", "reward", "messages")
"""Fields of a step that are compared after those that explain them."""


class Recording(ABC, Generic[Step, Episode]):
    """Records of one family of tasks.

    Attributes:
        recorder: plays and records.
        step_name: of a step, such as day.
        unchecked: places of a record that a replay need not reproduce, such as ``versions.vecenv``.
    """

    recorder: ClassVar[type[Recorder[Any, Any]]]
    step_name: ClassVar[str]
    unchecked: ClassVar[tuple[str, ...]]

    def read(self, values: Mapping[str, Any]) -> Episode:
        return cast("Episode", self.recorder.episode.from_json(values))

    @abstractmethod
    def scenario(self, record: Episode, market: str | None, device: torch.device | str) -> Scenario:
        """Recreate the rules and the market of a record; ``market``, a file or generator, replaces the recorded one.

        Raises:
            ValueError: the rules are unknown or invalid, or the market cannot be made or is another one.
        """

    @abstractmethod
    def title(self, record: Episode) -> str:
        """Return a line that names an episode."""

    @abstractmethod
    def result(self, record: Episode) -> dict[str, Any]:
        """Return what is told of an episode in result files beside what identifies it, JSON-able."""

    @abstractmethod
    def origin(self, record: Episode) -> dict[str, Any]:
        """Return what identifies an episode beside seed and row, JSON-able."""

    @abstractmethod
    def told(self, step: Step, scenario: Scenario) -> list[tuple[str, str]]:
        """Return lines on what came of a step, and their styles, for the terminal."""

    @abstractmethod
    def outcome(self, record: Episode) -> dict[str, str]:
        """Return the columns of a table of agents."""

    @abstractmethod
    def table_rows(self, record: Episode) -> list[dict[str, Any]]:
        """Return a row of numbers for each step, for `write_parquet`."""

    @abstractmethod
    def report_page(self, record: Episode, reference: Episode, name: str, scenario: Scenario) -> str:
        """Return the HTML page of an episode beside the same one as played by another agent, called ``name``."""

    def record(
        self,
        env: VecEnv,
        agent: Player,
        ids: Tensor | Sequence[int],
        seed: int | None = None,
        market: Mapping[str, Any] | None = None,
    ) -> list[Episode]:
        return record_episodes(self.recorder, env, agent, ids, seed, market)

    def replay(
        self, records: Sequence[Episode], scenario: Scenario, device: torch.device | str = "cpu"
    ) -> list[Episode]:
        """Replay the recorded texts from the recorded starts, and record the episodes, in the same order.

        The records have `EpisodeRecord.shared` in common; recorded per-row parameters replace those of the scenario.
        Answers that older rules of reading did not understand stay invalid; those of unknown rules are a ValueError.
        """
        env = recorded_start(records, scenario, device)
        text = env.scenario.text
        assert text is not None
        text.answers_version = version = records[0].versions["answers"]
        if type(version) is not int or version not in range(1, ANSWERS_VERSION + 1):
            raise ValueError(f"answers of version {version!r} are unknown; there are 1 to {ANSWERS_VERSION}")
        recorder, door = self.recorder(env, range(len(records))), TextDoor(env)
        for step in range(len(records[0].steps)):
            texts = [record.steps[step].action for record in records]
            known = [version == ANSWERS_VERSION or record.steps[step].valid for record in records]
            read = [text if valid else None for text, valid in zip(texts, known, strict=True)]
            recorder.step(door.parse(read, range(len(records)))[0], texts)
        return recorder.episodes()

    def difference(self, recorded: Episode, replayed: Episode) -> str | None:
        """Return the first difference of two records, by step and then in the outcome, or None.

        All numbers are compared exactly, except for what `unchecked` names.
        """
        before, after, name = recorded.to_json(), replayed.to_json(), recorded.steps_field
        steps = before.pop(name), after.pop(name)
        for number, (old, new) in enumerate(zip(*steps, strict=False), 1):
            if (difference := _difference(old, new, self.unchecked)) is not None:
                return f"{self.step_name} {number}: {difference}"
        count = _difference(len(steps[0]), len(steps[1]), (), f"number of {self.step_name}s")
        return count or _difference(before, after, self.unchecked)


def _difference(recorded: Any, replayed: Any, unchecked: Sequence[str], place: str = "") -> str | None:  # noqa: ANN401
    if place in unchecked:
        return None
    # Settings that are younger than a record are as they were before them, see `recorded_config`.
    if isinstance(replayed, dict) and isinstance(recorded, dict) and place in ("config", "curriculum"):
        replayed = {name: value for name, value in replayed.items() if name in recorded}
    if isinstance(recorded, dict) and isinstance(replayed, dict) and recorded.keys() == replayed.keys():
        names = sorted(recorded, key=lambda name: name in _CONSEQUENCES)
        pairs = [(name, recorded[name], replayed[name]) for name in names]
    elif isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        pairs = [(str(index), *both) for index, both in enumerate(zip(recorded, replayed, strict=True))]
    else:
        return None if recorded == replayed else f"{place}: recorded {recorded!r}, replayed {replayed!r}"
    differences = (_difference(old, new, unchecked, f"{place}.{name}" if place else name) for name, old, new in pairs)
    return next((difference for difference in differences if difference is not None), None)


def recorded_config(default: Any, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the config of a record's task from JSON values; ValueError if a rule is unknown, missing or invalid."""
    known, values = [item.name for item in fields(default)], with_earlier(values, default)
    refuse_unknown("rules", values, known, "config: ")
    if lacking := [name for name in known if name not in values]:
        raise ValueError(f"config: {', '.join(lacking)} must be there, as the episode was played under all rules")
    try:
        return replace(default, **values)
    except ValueError as error:
        raise ValueError(f"config: {error}") from error


def recorded_start(records: Sequence[Episode], scenario: Scenario, device: torch.device | str) -> VecEnv:
    """Return an environment whose rows are at the starts of recorded episodes, of the same seed."""
    # Double precision holds parameters of any type.
    params = {}
    for name in records[0].params:
        try:
            params[name] = torch.tensor([record.params[name] for record in records], dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(f"params: {name} must be numbers of one shape: {error}") from error
    env_ids = torch.tensor([record.env_id for record in records])
    env = VecEnv(scenario, len(records), records[0].seed, device, compiled=False, params=params, env_ids=env_ids)
    episode = torch.tensor([record.episode for record in records], device=device)
    env.rows = env.engine.bound().start(env.seed_tensor, env.start_ids, episode)
    return env


def write_parquet(path: Path | str, recording: Recording[Any, Episode], records: Sequence[Episode]) -> None:
    """Write a table of one row per episode and step, one column per number; ValueError without an episode."""
    if not records:
        raise ValueError("there is no episode to write")
    # pandas is slow to import, and only this function needs it.
    import pandas as pd

    rows = []
    for line, record in enumerate(records, 1):
        whole = {"line": line, "task": record.task, "seed": record.seed, "env_id": record.env_id}
        whole |= {"episode": record.episode}
        last = {"total_return": record.total_return, "finished": record.finished}
        last |= {f"grade/{name}": grade for name, grade in record.grades.items()}
        rows += [whole | row | last for row in recording.table_rows(record)]
    pd.DataFrame(rows).to_parquet(path, index=False)


def write_report(
    path: Path | str,
    recording: Recording[Any, Episode],
    record: Episode,
    reference: Episode,
    name: str,
    scenario: Scenario,
) -> None:
    """Write the report of an episode as a self-contained HTML file; ValueError without steps."""
    if not record.steps:
        raise ValueError(f"no {recording.step_name} of the episode has been played, so there is nothing to show")
    # Lone surrogates in an agent's text cannot be encoded.
    page = recording.report_page(record, reference, name, scenario)
    Path(path).write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
