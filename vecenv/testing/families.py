"""Checks of what a family of tasks shows in words (`check_text`) and writes to files (`check_records`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from html import escape
from pathlib import Path
from random import Random
from re import search
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import leaf_names, leaves, with_leaves
from vecenv.market.tape import MarketTape
from vecenv.registry import Task, make, make_spoken, task_named
from vecenv.testing.faults import ROWS, TaskFault, require, run_checks
from vecenv.text.door import TextDoor
from vecenv.text.recorder import Player
from vecenv.text.recording import Recording, write_parquet
from vecenv.text.records import EpisodeRecord, read_lines, write_jsonl

MALFORMED = (
    "",
    " \n\t",
    "a" * 20_000,
    "\x00\ud800\u202e🜲",
    "{" * 3_000,
    '{"name": null}',
    "BUY 1e999; SELL -1; BUY nan",
    "<think>" * 500,
    "999999999999999999999999999999999999",
    None,
    3.5,
    b"bytes",
    ["a", "list"],
)
"""Answers of which no task can make anything; none of them may raise."""

_PIECES = ("", " ", ";", "\n", ",", ".", "-", "%", "0", "9", "e", ":", "@", "AT", "<answer>", "</answer>", "<think>")
_NOT_REPRODUCED = ("messages", "config", "curriculum", "params", "market", "seed", "env_id", "episode", "task")
"""Fields of a record that its replay is made from."""


def check_text(
    task: Task | str,
    steps: int = 4,
    beside: Collection[str] = (),
    later: Callable[[VecEnv], VecEnv] | None = None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Check the text interface of a task: what is shown, and what answers do.

    Args:
        task: its record, or its name.
        steps: steps of each check; more find more faults.
        beside: fields of the state that texts may show although no number of the observation tells of them, such as
            the day whose news are read. Other fields may only be shown as the observation has them.
        later: returns an environment of the same rules on a market that differs after the latest day of an
            environment's rows; by default of a `MarketTape`.
        **options: further arguments of `vecenv.make`, such as a small market.

    Raises:
        TaskFault: the first violated rule.
        ValueError: the task has no text.
    """
    record = task_named(task)
    record.check_text()

    def made(**more: Any) -> VecEnv:  # noqa: ANN401
        return make_spoken(record, **{"num_envs": ROWS, "seed": 5} | options | more)

    future = later or (lambda env: _later(env, made))
    checks = (lambda: _check_shown(made, steps, beside, future), lambda: check_answers(made(), steps))
    run_checks(record.name, [("text", check) for check in checks])


def _shown(env: VecEnv) -> list[list[str]]:
    """Return the texts of all rows: of the step, the instructions, and the grammar."""
    door, ids = TextDoor(env), range(env.num_envs)
    told = [door.render(ids), door.instructions(ids), door.text.grammar(door.state(ids))]
    for name, written in zip(("render", "instructions", "grammar"), told, strict=True):
        lines = len(written) == env.num_envs and all(isinstance(text, str) and text for text in written)
        require(lines, f"{name} must return a text for each row")
    return told


def _answer(env: VecEnv, draw: Random) -> list[str]:
    door = TextDoor(env)
    said = [door.text.random_answer(draw) for _ in range(env.num_envs)]
    env.advance(env.checked_action(door.parse(said, range(env.num_envs))[0]))
    return said


def _check_shown(
    make: Callable[..., VecEnv], steps: int, beside: Collection[str], later: Callable[[VecEnv], VecEnv]
) -> None:
    env, twin, draws = make(), make(), (Random(3), Random(3))
    order = [row for row in range(ROWS) if row // env.scenario.num_agents != 0] or list(range(ROWS))
    part = make(num_envs=len(order), env_ids=torch.tensor(order))
    for step in range(steps):
        before = [leaf.clone() for leaf in leaves(env.rows)]
        told = _shown(env)
        require(_shown(twin) == told, f"step {step}: the same episodes are told in other words")
        require(
            _shown(part) == [[texts[row] for row in order] for texts in told], f"step {step}: rows depend on others"
        )
        _check_hidden(env, beside, step)
        changed = later(env)
        if changed is not env:
            changed.rows = env.rows
            require(_shown(changed) == told, f"step {step}: a text tells of what comes later")
        require(all(map(torch.equal, before, leaves(env.rows))), "what is shown changes the rows")
        said = _answer(env, draws[0])
        require(said == _answer(twin, draws[1]), "random_answer draws from more than its argument")
        part.advance(part.checked_action(TextDoor(part).parse([said[row] for row in order], range(len(order)))[0]))
        # Every other world begins anew after the first step, so that rows differ in what all have at first in common.
        over = env.rows.done if step else torch.arange(ROWS) // env.scenario.num_agents % 2 == 0
        for one, ended in ((env, over), (twin, over), (part, over[order])):
            one.restart(ended)


def _check_hidden(env: VecEnv, beside: Collection[str], step: int) -> None:
    """Give each row one tensor of another row's state: where the observation is the same, so is the text."""
    rows, ids, text = env.rows, torch.arange(env.num_envs), TextDoor(env).text
    seen = env.observe_rows(rows, ids)
    told = text.render(seen, rows.state)
    kept = leaves(rows)
    for place, name in enumerate(leaf_names(rows)):
        field = name.split(".")[1] if name.startswith("state.") else name
        if field in beside or not name.startswith("state."):
            continue
        other = with_leaves(rows, [leaf.roll(1, 0) if number == place else leaf for number, leaf in enumerate(kept)])
        same = (env.observe_rows(other, ids) == seen).all(-1).tolist()
        for row, (old, new) in enumerate(zip(told, text.render(seen, other.state), strict=True)):
            require(old == new or not same[row], f"step {step}: a text shows {name}, which is not observed")


def _later(env: VecEnv, make: Callable[..., VecEnv]) -> VecEnv:
    """Return an environment on a tape whose days after the latest of the rows stand in reverse order."""
    tape = getattr(env.scenario, "tape", None)
    if not isinstance(tape, MarketTape):
        return env
    after = int(env.state.day.max()) + 1
    if after + 1 >= tape.num_days:
        raise TaskFault(f"the market of {tape.num_days} days ends with the episode: choose a longer one")

    def turned(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:, :after], tensor[:, after:].flip(1)], dim=1)

    by_day = (tape.num_paths, tape.num_days)
    changed: dict[str, Any] = {
        item.name: turned(value)
        for item in fields(tape)
        if isinstance(value := getattr(tape, item.name), Tensor) and tuple(value.shape[:2]) == by_day
    }
    panels = None if tape.panels is None else tape.panels.changed(turned)
    return make(market=replace(tape, **changed, panels=panels), market_options=None)


def fuzzed(draw: Random, answer: str) -> str:
    """Return an answer with a few random faults."""
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(len(answer) + 1)
        end = start + draw.choice((0, 0, 1, 1, 2, 9))
        piece = draw.choice((*_PIECES, answer[start:end] * 2, answer[start:end].swapcase()))
        answer = answer[:start] + piece + answer[end:]
    return answer


def check_answers(env: VecEnv, steps: int) -> None:
    """Check that answers are read or invalid, each alone; see `check_text`."""
    door, ids, draw = TextDoor(env), range(ROWS), Random(4)
    readable: list[str] = [*door.text.examples()]
    for _ in range(12):
        readable.append(door.text.random_answer(draw))
    require(len(set(readable[-12:])) != 1 or not readable[-1], f"random_answer always gives {readable[-1]!r}")
    readable = [answer for answer in readable if answer]
    texts: list[object] = [*MALFORMED, *readable]
    texts += [fuzzed(draw, draw.choice(readable or ["HOLD"])) for _ in range(24 * steps)]
    invalid: Tensor | None = None
    for number, text in enumerate(texts):
        # Beside others, of which some are valid.
        batch = [texts[(number + 7 * row) % len(texts)] for row in range(1, ROWS)]
        row = number % ROWS
        batch.insert(row, text)
        try:
            action, valid = door.parse(batch, ids)
            alone, alone_valid = door.parse([text], [row])
        except Exception as error:
            raise TaskFault(f"parse raises {type(error).__name__} on {repr(text)[:40]} or beside it") from error
        right = valid.shape == (ROWS,) and valid.dtype == torch.bool
        require(right, "parse must tell of each text whether it is valid")
        same = torch.equal(action[row], alone[0]) and bool(valid[row] == alone_valid[0])
        require(same, f"{repr(text)[:40]} is read otherwise beside other texts")
        known = text in readable if isinstance(text, str) else False
        require(bool(valid[row]) or not known, f"{text!r} of random_answer or examples cannot be read")
        require(not (bool(valid[row]) and not isinstance(text, str)), f"{repr(text)[:40]} is no text, but valid")
        if not bool(valid[row]):
            invalid = alone[0] if invalid is None else invalid
            require(torch.equal(invalid, alone[0]), f"the action of an invalid text depends on it: {repr(text)[:40]}")
        if number % ROWS == 0:
            reward = env.advance(env.checked_action(action))
            require(bool(reward.isfinite().all()), f"an answer such as {repr(text)[:40]} makes rewards no numbers")
            _shown(env)
            env.restart(env.rows.done)
    require(invalid is not None, "no text is invalid")


def check_records(
    task: Task | str,
    market: Mapping[str, Any] | None = None,
    steps: int = 4,
    texts: Sequence[object] = ("no such answer", "<script>alert('&')</script> \u2028 \ud800", None),
    **options: Any,  # noqa: ANN401
) -> None:
    """Check the records of a task's episodes: a file of them tells what happened, replays it, and cannot be altered.

    Args:
        task: its record, or its name.
        market: name and `MarketOptions` of the market, which a replay makes again; None for a task without one.
        steps: after which a record is left, even if the episode goes on.
        texts: invalid answers, given beside random ones.
        **options: further arguments of `vecenv.make`: short episodes keep the check fast.

    Raises:
        TaskFault: the first violated rule.
        ValueError: the task has no text, or its episodes are not recorded.
    """
    record = task_named(task)
    recording = record.check_recording()
    if market is not None:
        named = {name: value for name, value in market.items() if name != "market"}
        options = {"market": market["market"], "market_options": named} | options
    run = _Recorded(recording, make_spoken(record, ROWS, seed=5, **options), steps, texts, market)
    agent = record.agents[record.reference if "random" not in record.agents else "random"]
    run_checks(
        record.name,
        [
            ("records", run.check_truth),
            ("replay", run.check_replay),
            ("actions", lambda: run.check_actions(make(record, 2, seed=5, **{"compile": False} | options), agent())),
            ("tampering", run.check_figures),
            ("tampering", run.check_causes),
            ("files", run.check_files),
            ("pages", run.check_pages),
        ],
    )


class _Recorded:
    """Records of two rows that answer at random, while the others do something else."""

    def __init__(
        self,
        recording: Recording[Any, Any],
        env: VecEnv,
        steps: int,
        texts: Sequence[object],
        market: Mapping[str, Any] | None,
    ) -> None:
        self.recording, self.env, self.texts, self.market = recording, env, texts, market
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
                for name, expected in (
                    ("messages", told),
                    ("valid", bool(valid[row])),
                    ("reward", float(reward[row])),
                ):
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
        raise TaskFault("a row is recorded although it has moved already")

    def _replayed(self, values: Sequence[Mapping[str, Any]]) -> list[EpisodeRecord]:
        read = [self.recording.read(line) for line in values]
        return self.recording.replay(read, self.recording.scenario(read[0], None, "cpu"), "cpu")

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
        for path, value in _places(line):
            place = ".".join(map(str, path[2:] if path[0] == steps else path))
            if place in self.recording.unchecked or any(
                place.startswith(f"{skipped}.") for skipped in self.recording.unchecked
            ):
                continue
            if (path[2] if path[0] == steps else path[0]) in _NOT_REPRODUCED:
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
            try:
                read = self.recording.read(altered)
                (again,) = self._replayed([altered])
                told = self.recording.difference(read, again)
            except ValueError as error:
                told = str(error)
            except Exception as error:
                raise TaskFault(f"{name}: {type(error).__name__}: {error}") from error
            require(bool(told), f"{name}: nobody notices")

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
                    raise TaskFault(f"a file is read whose fault is {words!r}")
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
            require(all(line for line, _ in recording.told(step, scenario)), "a step is told by an empty line")
        page = recording.report_page(record, reference, "hold_still", scenario)
        outside = search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\((?!#)|<link|<iframe|<script""", page)
        require(outside is None, f"a report needs more than itself: {outside}")
        require(page.count("<details>") == len(record.steps) + 1, "a report must show every step and the metadata")
        require("hold still" in page, "a report does not name what the episode is compared with")
        for step in record.steps:
            for message in step.messages:
                require(escape(message["content"]) in page, "a report lacks a text")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:  # noqa: ANN401
    """Return the path and value of every number, text and null in JSON values; lists are paths by place."""
    if isinstance(value, dict | list) and value:
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, (*path, name))
    elif not isinstance(value, dict | list):
        yield path, value


def _other(value: Any) -> Any:  # noqa: ANN401
    """Return another JSON value; a number differs as little as it can."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, float):
        return torch.nextafter(torch.tensor(value).double(), torch.tensor(torch.inf).double()).item()
    return value + 1 if isinstance(value, int) else f"{value}x"


def _put(values: Any, path: Sequence[Any], value: object) -> None:  # noqa: ANN401
    for name in path[:-1]:
        values = values[name]
    values[path[-1]] = value
