"""What a family of tasks declares of its records, and how they are made, read, replayed and shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, cast

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.system.figures import svg
from vecenv.system.report_page import conversation, page, shortened, values
from vecenv.system.settings import refuse_unknown, with_earlier
from vecenv.text.answer_lines import ANSWERS_VERSION
from vecenv.text.door import TextDoor
from vecenv.text.recorder import Episode, Player, RecordedRows, Recorder, Step
from vecenv.text.records import first_difference, many

Values = Mapping[str, Sequence[Any]]
"""B values of each field by name."""

Columns = Mapping[str, Callable[[Any, Any], Any] | None]
Figures = Mapping[str, Callable[[Any, Any, str, Any], Any]]


class Recording(ABC, Generic[Step, Episode]):
    """Records of one family of tasks.

    The family declares its records as dataclasses of steps and episodes, the columns of tables and the figures of
    reports, and tells here where their numbers come from.

    Attributes:
        episode: type of the records.
        scenario: type of the scenarios that are recorded.
        family: what these are, such as ``the trading tiers``.
        step_name: of a step, such as day.
        unchecked: places of a record that a replay need not reproduce, such as ``versions.vecenv``.
        columns: of a table of steps, in their order: functions of record and step, None for the step's field of that
            name, or for the number of the step. Values by key are columns ``NAME/KEY``.
        figures: of a report, by heading: functions of record, reference, what the reference is called, and scenario,
            that return a figure of matplotlib, or HTML. A heading that begins with an underscore is not shown.
        metadata: fields of a record that a report shows as they are.
    """

    episode: ClassVar[type[Any]]
    scenario: ClassVar[type[Scenario[Any]]]
    family: ClassVar[str]
    step_name: ClassVar[str]
    unchecked: ClassVar[tuple[str, ...]]
    columns: ClassVar[Columns]
    figures: ClassVar[Figures]
    metadata: ClassVar[tuple[str, ...]]

    def seen(self, env: VecEnv, ids: Tensor) -> Sequence[str]:
        """Return what agents of rows are shown before a step, as text. Shape: (B,)."""
        return TextDoor(env).render(ids)

    @abstractmethod
    def decided(self, env: VecEnv, rows: Rows, ids: Tensor, action: Tensor) -> Any:  # noqa: ANN401
        """Return what is to be known of the actions of rows before they are taken. Batch: (B,)."""

    @abstractmethod
    def step_columns(self, recorded: RecordedRows, decided: Any) -> Values:  # noqa: ANN401
        """Return the fields of a step that rows have completed; not messages and reward.

        One more, ``answer``, is the action as text, for agents that do not speak. ``decided`` is the result of
        `decided`.
        """

    @abstractmethod
    def episode_columns(self, recorded: RecordedRows, start: Any, steps: Sequence[Sequence[Step]]) -> Values:  # noqa: ANN401
        """Return the fields of records beside those of `EpisodeRecord` and the steps.

        ``start`` are the states at the start, batch (B,), and ``steps`` those of each row.
        """

    def market(self, env: VecEnv, origin: Mapping[str, Any]) -> dict[str, Any]:
        """Return what reproduces the market; nothing for a task that simulates its own."""
        return {}

    def config(self, record: Episode, default: Any, spoken: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Return the config of a record; ``default`` and ``spoken`` are those of its task.

        Raises:
            ValueError: a rule is unknown, missing or invalid.
        """
        return recorded_config(default, record.config)

    @abstractmethod
    def title(self, record: Episode) -> str:
        """Return a line that names an episode."""

    @abstractmethod
    def result(self, record: Episode) -> dict[str, Any]:
        """Return what result files say of an episode beside what identifies it, JSON-able."""

    @abstractmethod
    def origin(self, record: Episode) -> dict[str, Any]:
        """Return what identifies an episode beside seed and row, JSON-able."""

    @abstractmethod
    def step_lines(self, step: Step, scenario: Scenario) -> list[tuple[str, str]]:
        """Return lines on what came of a step, and their styles, for the terminal."""

    @abstractmethod
    def outcome(self, record: Episode) -> dict[str, str]:
        """Return the columns of a table of agents."""

    def cards(self, record: Episode, reference: Episode, other: str) -> list[tuple[str, str]]:
        """Return values at the top of a report, and what they are; ``other`` is what the reference is called."""
        own, others = self.outcome(record), self.outcome(reference)
        return [(value, f"{name}, {other} {others[name]}") for name, value in own.items()]

    def heading(self, record: Episode) -> str:
        """Return the title of a report."""
        return self.title(record)

    @abstractmethod
    def subtitle(self, record: Episode, length: str) -> Sequence[str]:
        """Return the parts of the line below it, of which ``length`` is one."""

    def mistakes(self, step: Step) -> Sequence[str]:
        """Return what was wrong with a step, beside an invalid answer."""
        return ()

    def headline(self, step: Step) -> str:
        """Return what names a step in a report: what the agent said."""
        return step.action

    @abstractmethod
    def summary(self, step: Step, record: Episode) -> Sequence[str]:
        """Return what came of a step, for a report, but its reward."""

    def read(self, values: Mapping[str, Any]) -> Episode:
        return cast("Episode", self.episode.from_json(values))

    def recorder(
        self, env: VecEnv, ids: Tensor | Sequence[int], market: Mapping[str, Any] | None = None
    ) -> Recorder[Step, Episode]:
        return Recorder(self, env, ids, market)

    def record(
        self,
        env: VecEnv,
        agent: Player,
        ids: Tensor | Sequence[int],
        seed: int | None = None,
        market: Mapping[str, Any] | None = None,
    ) -> list[Episode]:
        """Run an agent for one episode of every row, and record some of them; rows are left at the ends.

        With a seed the rows are reset to its first episodes, else they continue from their current state.

        Raises:
            IndexError: an id is not a row's number.
            ValueError: it is another family, or the agent does not act for every row.
        """
        if seed is not None:
            env.reset_first(seed)
        recorder = self.recorder(env, ids, market)
        chosen = torch.as_tensor(ids).reshape(-1).tolist()
        while not bool(env.rows.done.all()):
            action, said = agent.act(env), getattr(agent, "said", None)
            recorder.step(action, None if said is None else [said[row] for row in chosen])
        return recorder.episodes()

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
        return first_difference(recorded, replayed, self.step_name, self.unchecked)

    def table_rows(self, record: Episode) -> list[dict[str, Any]]:
        """Return a row of numbers for each step, for `write_parquet`."""
        rows = []
        for number, step in enumerate(record.steps, 1):
            row: dict[str, Any] = {}
            for name, function in self.columns.items():
                own = number if name == self.step_name else getattr(step, name, None)
                value: Any = own if function is None else function(record, step)
                by_key = isinstance(value, Mapping)
                row |= {f"{name}/{key}": part for key, part in value.items()} if by_key else {name: value}
            rows.append(row)
        return rows

    def report_page(self, record: Episode, reference: Episode, name: str, scenario: Scenario) -> str:
        """Return the HTML page of an episode beside the same one as played by another agent, called ``name``."""
        other, step_name = name.replace("_", " "), self.step_name
        drawn = {heading: draw(record, reference, other, scenario) for heading, draw in self.figures.items()}
        sections = {
            heading: told if isinstance(told, str) else f'<div class="wide">{svg(told)}</div>'
            for heading, told in drawn.items()
        }
        steps = enumerate(cast("Sequence[Step]", record.steps), 1)
        system = [{"role": "system", "content": record.instructions}]
        told = conversation("Instructions", [], system, "before the first step") if record.instructions else ""
        sections[f"{step_name.capitalize()}s"] = told + "".join(self._conversation(*step, record) for step in steps)
        known = "rules, market and seed" if "market" in self.metadata else "rules and seed"
        sections["Metadata"] = values(f"Versions, {known}", {name: getattr(record, name) for name in self.metadata})
        length = f"{many(len(record.steps), step_name)}{'' if record.finished else ', left before the end'}"
        line = " · ".join(self.subtitle(record, length))
        return page(self.heading(record), line, self.cards(record, reference, other), sections)

    def _conversation(self, number: int, step: Step, record: Episode) -> str:
        date = f", {step.date}" if hasattr(step, "date") else ""
        return conversation(
            f"{self.step_name.capitalize()} {number}{date}: {shortened(self.headline(step))}",
            [*([] if step.valid else ["invalid"]), *self.mistakes(step)],
            step.messages,
            " · ".join([*self.summary(step, record), f"reward {step.reward:+.3f}"]),
        )


def recorded_config(default: Any, values: Mapping[str, Any], field: str = "config") -> Any:  # noqa: ANN401
    """Return the config of a record's task from JSON values; ValueError if a rule is unknown, missing or invalid.

    ``field`` of the record has them.
    """
    known, values = [item.name for item in fields(default)], with_earlier(values, default)
    refuse_unknown("rules", values, known, f"{field}: ")
    if lacking := [name for name in known if name not in values]:
        raise ValueError(f"{field}: {', '.join(lacking)} must be there, as the episode was played under all rules")
    try:
        return replace(default, **values)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error


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
