"""A check of what a family of tasks writes to files (`check_records`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from html import escape
from pathlib import Path
from random import Random
from re import search
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vecenv.core.env import VecEnv
from vecenv.registry import Task, make, make_spoken, task_named
from vecenv.testing.faults import ROWS, ConformanceFault, require, run_checks
from vecenv.text.door import TextDoor
from vecenv.text.recorder import Player
from vecenv.text.recording import write_parquet
from vecenv.text.records import EpisodeRecord, read_lines, write_jsonl

_NOT_REPRODUCED = ("messages", "config", "curriculum", "params", "market", "seed", "env_id", "episode", "task")
"""Fields of a record that its replay is made from."""

_VALUES: tuple[Any, ...] = (None, True, -1, 10**400, 1e308, "x", [], {})
"""One of each type, and numbers too large for it."""


def check_records(
    task: Task | str,
    market: Mapping[str, Any] | None = None,
    steps: int = 4,
    texts: Sequence[object] = ("no such answer", "<script>alert('&')</script> \u2028 \ud800", None),
    tampered: int | None = 25,
    **options: Any,
) -> None:
    """Check the records of a task's episodes: a file of them tells what happened, replays it, and cannot be altered.

    Args:
        task: its record, or its name.
        market: name and `MarketOptions` of the market, which a replay makes again; None for a task without one.
        steps: after which a record is left, even if the episode goes on.
        texts: invalid answers, given beside random ones.
        tampered: how many values of another type are tried, drawn at random; None: all.
        **options: further arguments of `vecenv.make`: short episodes keep the check fast.

    Raises:
        ConformanceFault: the first violated rule.
        ValueError: the task has no text, or its episodes are not recorded.
    """
    record = task_named(task)
    record.check_recording()
    if market is not None:
        named = {name: value for name, value in market.items() if name != "market"}
        options = {"market": market["market"], "market_options": named} | options
    run = _Recorded(record, make_spoken(record, ROWS, seed=5, **options), steps, texts, market, tampered)
    agent = record.agents[record.domain.reference if "random" not in record.agents else "random"]
    run_checks(
        record.name,
        [
            ("records", run.check_truth),
            ("replay", run.check_replay),
            ("actions", lambda: run.check_actions(make(record, 2, seed=5, **{"compile": False} | options), agent())),
            ("tampering", run.check_figures),
            ("tampering", run.check_causes),
            ("types", run.check_types),
            ("files", run.check_files),
            ("pages", run.check_pages),
        ],
    )


class _Recorded:
    """Records of two rows that answer at random, while the others do something else."""

    def __init__(
        self,
        task: Task,
        env: VecEnv,
        steps: int,
        texts: Sequence[object],
        market: Mapping[str, Any] | None,
        tampered: int | None,
    ) -> None:
        self.task, self.recording, self.env = task, task.check_recording(), env
        self.texts, self.market = texts, market
        self.tampered, self.known = tampered, dict[str, EpisodeRecord]()
        self.ids = [1, ROWS - 2]
        self.faults: list[str] = []
        self.records: list[EpisodeRecord] = []
        self._play(steps)

    def _play(self, steps: int) -> None:
        env, door, draw, ids = self.env, TextDoor(self.env), Random(6), self.ids
        recorder = self.recording.recorder(env, ids, self.market)
        step, wrong = 0, list(self.texts)
        while step < steps and not bool(env.rows.done.all()):
            said: list[object] = [door.text.random_answer(draw) for _ in range(ROWS)]
            if wrong:
                said[ids[step % 2]] = wrong.pop()
            seen, running = door.render(ids), (~env.rows.done[ids]).tolist()
            action, valid = door.parse(said, range(ROWS))
            reward = recorder.step(action, [said[row] for row in ids])
            for place, row in enumerate(ids):
                if not running[place]:
                    continue
                made = recorder.steps[place][-1]
                answer = said[row] if isinstance(said[row], str) else ""
                told = [{"role": "user", "content": seen[place]}, {"role": "assistant", "content": answer}]
                for name, expected in (("messages", told), ("valid", bool(valid[row])), ("reward", float(reward[row]))):
                    if getattr(made, name) != expected:
                        self.faults.append(f"{name} of step {step} of row {row} is not what happened")
            step += 1
        self.records = recorder.episodes()

    def check_truth(self) -> None:
        """Every recorded text, reward and grade is that of the environment."""
        require(not self.faults, next(iter(self.faults), ""))
        grades = {name: value.tolist() for name, value in self.env.grades().items()}
        require(len(self.records) == len(self.ids), "there must be a record for each recorded row")
        for row, record in zip(self.ids, self.records, strict=True):
            require(record.grades == {name: value[row] for name, value in grades.items()}, "grades are not the row's")
            ended = bool(self.env.rows.done[row])
            require(record.finished == ended and record.env_id == row, "finished or env_id is not the row's")
            require(len(record.steps) == int(self.env.rows.elapsed[row]), "steps are not those of the episode")
            require(any(not step.valid for step in record.steps), "an invalid answer is recorded as a valid one")
        changes = self.env.checked_action(TextDoor(self.env).parse([""] * ROWS, range(ROWS))[0])
        fresh = type(self.env)(self.env.scenario, ROWS, 5, self.env.device, compiled=False)
        recorder = self.recording.recorder(fresh, [0], self.market)
        recorder.step(changes)
        try:
            self.recording.recorder(fresh, [1], self.market)
        except ValueError:
            return
        raise ConformanceFault("a row is recorded although it has moved already")

    def _replayed(self, values: Sequence[Mapping[str, Any]]) -> list[EpisodeRecord]:
        read = [self.recording.read(line) for line in values]
        return self.recording.replay(read, self.task.scenario_of(read[0]))

    def _lines(self) -> list[dict[str, Any]]:
        return [record.to_json() for record in self.records]

    def check_replay(self) -> None:
        """Records come back from a file as they were, and a replay of them finds every number again."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "episodes.jsonl"
            write_jsonl(path, self.records)
            lines = read_lines(path)
        require(lines == self._lines(), "a file of records is not read as it was written")
        batches: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            batches.setdefault(json.dumps(self.recording.read(line).shared), []).append(line)
        self.replayed: list[EpisodeRecord] = []
        for batch in batches.values():
            for line, again in zip(batch, self._replayed(batch), strict=True):
                difference = self.recording.difference(self.recording.read(line), again)
                require(difference is None, f"a replay differs: {difference}")
                self.replayed.append(again)

    def check_actions(self, env: VecEnv, agent: Player) -> None:
        """Actions of an agent that does not speak are written as texts, which do the same."""
        (made,) = self.recording.record(env, agent, [1], 5, self.market)
        (again,) = self._replayed([made.to_json()])
        difference = self.recording.difference(made, again)
        require(difference is None, f"texts that are written for actions do something else: {difference}")
        said = {step.action for step in made.steps}
        require(len(said) > 1 or len(made.steps) == 1, f"every action is written as {said}")

    def check_figures(self) -> None:
        """Whatever figure of a record is altered, the comparison with a replay names its place."""
        (again, *_), name = self.replayed, self.recording.step_name
        line = again.to_json()
        steps = again.steps_field
        for path, value in _nodes(line):
            if isinstance(value, dict | list):
                continue
            inner = path[2:] if path[0] == steps else path
            place = ".".join(map(str, inner))
            if self._skipped(inner) or inner[0] in _NOT_REPRODUCED:
                continue
            altered = deepcopy(line)
            _put(altered, path, _other(value))
            expected = f"{name} {path[1] + 1}: {place}: recorded" if path[0] == steps else f"{place}: recorded"
            told = self.recording.difference(self.recording.read(altered), again) or "nothing"
            require(told.startswith(expected), f"{expected} something else is told as {told!r}")

    def check_causes(self) -> None:
        """What a replay is made from cannot be altered either: it comes to other numbers, or is refused."""
        line = self._lines()[0]
        steps = self.records[0].steps_field
        last = len(line[steps]) - 1
        place = next(number for number, one in enumerate(line[steps]) if one["valid"])
        changes: dict[str, Callable[[dict[str, Any]], object]] = {
            "an answer that became nonsense": lambda told: told[steps][place]["messages"][1].update(content="nonsense"),
            "an observation": lambda told: told[steps][last]["messages"][0].update(content="something else"),
            "the seed": lambda told: told.update(seed=told["seed"] + 1),
            "the row": lambda told: told.update(env_id=told["env_id"] + 1),
            "the episode": lambda told: told.update(episode=told["episode"] + 1),
            "a dropped first step": lambda told: told[steps].pop(0),
            "a dropped last step": lambda told: told[steps].pop(),
            "a doubled step": lambda told: told[steps].insert(1, deepcopy(told[steps][0])),
            "a step after the end": lambda told: told[steps].append(deepcopy(told[steps][-1])),
            "steps in another order": lambda told: told[steps].reverse(),
            "an unknown rule": lambda told: told["config"].update(no_such_rule=1),
            "an unknown field": lambda told: told.update(no_such_field=1),
            "a missing figure": lambda told: told[steps][0].pop("reward"),
            "a missing text": lambda told: told[steps][0].update(messages=[]),
            "a missing grade": lambda told: told.pop("grades"),
            "another version of the task": lambda told: told["versions"].update(task="0.0"),
        }
        if self.market is not None:
            changes["another market"] = lambda told: told["market"].update(fingerprint="0")
            changes["a market without a name"] = lambda told: told["market"].pop("origin")
        for name, change in changes.items():
            altered = deepcopy(line)
            change(altered)
            require(self._told(name, altered) is not None, f"{name}: nobody notices")

    def check_types(self) -> None:
        """A value of another type, wherever it stands, is refused or differs from a replay, and is named."""
        line, steps = self._lines()[0], self.records[0].steps_field
        cases = [
            (path, value, other)
            for path, value in _nodes(line)
            for other in _VALUES
            if type(other) is not type(value) and other != value and (path[0] != steps or path[1:2] in ((), (0,)))
        ]
        for path, value, other in cases if self.tampered is None else Random(7).sample(cases, self.tampered):
            altered = deepcopy(line)
            _put(altered, path, other)
            name = f"{'.'.join(map(str, path))}: {str(other)[:9]!r}"
            told, named = self._told(name, altered), [part for part in path if isinstance(part, str)][-1]
            if told is not None:
                sound = (named in told and "\n" not in told) or ": recorded " in told
                require(sound, f"{name}: {told!r} does not name the field")
            else:
                # A number may be a valid rule that has no effect on the episode.
                valid = type(other) in (int, float) and (value is None or type(value) in (int, float))
                require(valid or self._skipped(path), f"{name}: nobody notices")
                self.recording.report_page(self.recording.read(altered), self.records[0], "x", self.env.scenario)

    def _skipped(self, path: Sequence[Any]) -> bool:
        """Tell whether a place is one that a replay need not reproduce."""
        place = ".".join(map(str, path))
        return any(f"{place}.".startswith(f"{skipped}.") for skipped in self.recording.unchecked)

    def _told(self, name: str, line: Mapping[str, Any]) -> str | None:
        """Return how an altered line is refused or differs from its replay, or None."""
        steps = self.records[0].steps_field
        try:
            read = self.recording.read(line)
            # What a step came to is not read by a replay.
            causes = [[step["messages"], step["valid"]] for step in line[steps]]
            key = json.dumps({**line, steps: causes})
            if key not in self.known:
                (self.known[key],) = self._replayed([line])
            return self.recording.difference(read, self.known[key])
        except ValueError as error:
            return str(error)
        except Exception as error:
            raise ConformanceFault(f"{name}: {type(error).__name__}: {error}") from error

    def check_files(self) -> None:
        """A file that is cut off, empty or of something else is refused with the number of its line."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "episodes.jsonl"
            write_jsonl(path, self.records)
            whole = path.read_text()
            for text, words in (
                (whole[:-20], "line 2"),
                ("BUY\n" + whole, "line 1"),
                (whole + '{"seed": 1}\n', "line 3: not the record of an episode"),
                ("", "there is no episode"),
            ):
                path.write_text(text)
                try:
                    read_lines(path)
                except ValueError as error:
                    require(words in str(error), f"{error} does not say {words!r}")
                else:
                    raise ConformanceFault(f"a file is read whose fault is {words!r}")
            table = Path(folder) / "episodes.parquet"
            write_parquet(table, self.recording, self.records)
            self._check_table(table)

    def _check_table(self, path: Path) -> None:
        import pandas as pd

        table, steps = pd.read_parquet(path), [step for record in self.records for step in record.steps]
        require(len(table) == len(steps), "a table must have a row for each episode and step")
        for name in ("reward", "valid"):
            told = table[name].tolist() == [getattr(step, name) for step in steps]
            require(told, f"the table's {name} is not the records'")

    def check_pages(self) -> None:
        """What is shown of a record: titles, outcomes, lines of each step, and a page that needs nothing else."""
        recording, scenario, (record, reference) = self.recording, self.env.scenario, self.records
        columns = recording.outcome(record)
        require(bool(recording.title(record)) and all(columns.values()), "title or outcome is empty")
        json.dumps([recording.result(record), recording.origin(record)])
        for step in record.steps:
            require(all(line for line, _ in recording.step_lines(step, scenario)), "a step is told by an empty line")
        page = recording.report_page(record, reference, "hold_still", scenario)
        outside = search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\((?!#)|<link|<iframe|<script""", page)
        require(outside is None, f"a report needs more than itself: {outside}")
        require(page.count("<details>") == len(record.steps) + 2, "a report must show instructions, steps and metadata")
        require(escape(record.instructions) in page, "a report lacks the instructions")
        require("hold still" in page, "a report does not name what the episode is compared with")
        for step in record.steps:
            for message in step.messages:
                require(escape(message["content"]) in page, "a report lacks a text")


def _nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Return the path and value of everything in JSON values; lists are paths by place."""
    if path:
        yield path, value
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _nodes(inner, (*path, name))


def _other(value: Any) -> Any:
    """Return another JSON value; a number differs as little as it can."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, float):
        return torch.nextafter(torch.tensor(value).double(), torch.tensor(torch.inf).double()).item()
    return value + 1 if isinstance(value, int) else f"{value}x"


def _put(values: Any, path: Sequence[Any], value: object) -> None:
    for name in path[:-1]:
        values = values[name]
    values[path[-1]] = value
