"""What every record of an episode holds, whatever the task, how it is read and written, and how two are compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from vecenv.core.foreign_json import read_json
from vecenv.system.settings import Seed, Within, check_fields, refuse_unknown

_FINITE = Within(limit=sys.float_info.max)
_Kind = TypeVar("_Kind")

_CONSEQUENCES = ("valid", "reward", "messages")
"""Fields of a step that are compared after those that explain them."""


FIRST: dict[Literal["train", "validation", "test"], int] = {"train": 0, "validation": 2**30, "test": 2**31}
"""First numbers of the rows or episodes of each split without a market."""


def place_in_split(what: str, number: int) -> str:
    """Return the number of a row or an episode in words, such as ``row 3`` or ``test row 0``, counted in its split."""
    split = max((name for name in FIRST if FIRST[name] <= number), key=FIRST.__getitem__)
    return f"{what} {number}" if split == "train" else f"{split} {what} {number - FIRST[split]}"


def many(count: int, what: str) -> str:
    """Return a number of things in words, such as ``1 step`` or ``2 steps``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


class Record:
    """Base of the records of episodes: dataclasses of JSON values with the versions of what made them, and steps."""

    versions: dict[str, Any]

    steps_field: ClassVar[str]
    """Name of the field with the steps."""
    step_type: ClassVar[type[Any]]
    """Of the steps; its method ``check`` raises ValueError of one that is none."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return a record from JSON values; ValueError if they are not one, or a field is not of its type."""
        place = ""
        try:
            given, versions, steps = values.get(cls.steps_field), values.get("versions"), []
            if not isinstance(given, list) or not all(isinstance(step, dict) for step in given):
                raise ValueError(f"{cls.steps_field} must be a list of objects")
            for number, step in enumerate(given, 1):
                place = f"{cls.steps_field} {number}: "
                steps.append(_made(cls.step_type, step))
                steps[-1].check()
            place = ""
            versions = {"answers": 1, **versions} if isinstance(versions, dict) else versions
            return _made(cls, {**values, cls.steps_field: steps, "versions": versions})
        except ValueError as error:
            raise ValueError(f"not the record of an episode: {place}{error}") from error

    @property
    def steps(self) -> Sequence[Any]:
        return getattr(self, self.steps_field)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; ValueError if a number is not finite."""
        values = asdict(self)  # type: ignore[call-overload]
        try:
            return json.loads(json.dumps(values, allow_nan=False))
        except ValueError:
            # What reads it names the number.
            self.from_json(values)
            raise


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One step: observation and action as chat messages, whether the action obeyed the format, and the reward."""

    messages: list[dict[str, str]]
    valid: bool | float
    reward: float

    @property
    def action(self) -> str:
        return self.messages[-1]["content"]

    def check(self) -> None:
        if "content" not in (self.messages or [{}])[-1]:
            raise ValueError("messages must end with the content of an answer")


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord(Record):
    """One episode.

    Attributes:
        versions: of the package, the task, what grades it, and the rules by which answers are read (`ANSWERS_VERSION`).
        task: name of the task.
        config: rules of the task, with their action space.
        params: per-row parameters, by name.
        market: what reproduces the market; empty for a task that simulates its own.
        seed: identifies the episode together with the next two.
        env_id: identity of the row in the random draws of the start.
        episode: number of the episode of that row.
        finished: whether the episode has ended.
        total_return: value at the end over the one at the start, less 1.
        grades: by grader.
        instructions: what agents are told before the first step; empty in records that are older than the field.
        grade_parts: what the grade is made of, by name, for reports alone.
    """

    versions: dict[str, Any]
    task: str
    config: dict[str, Any]
    params: dict[str, Any]
    market: dict[str, Any]
    seed: Seed
    env_id: Annotated[int, Within(0, 2**32, below=True)]
    episode: Annotated[int, Within(0, 2**32, below=True)]
    finished: bool
    total_return: float
    grades: dict[str, float]
    instructions: str = ""
    grade_parts: dict[str, float] = field(default_factory=dict)

    @property
    def row(self) -> str:
        return place_in_split("row", self.env_id)

    @property
    def shared(self) -> list[Any]:
        """What episodes must have in common to be replayed in one batch, JSON-able."""
        own = [self.task, self.config, self.market, self.seed, sorted(self.params), len(self.steps)]
        return [*own, self.versions["answers"]]

    def to_json(self) -> dict[str, Any]:
        values = super().to_json()
        del values["grade_parts"]
        return values


def _made(kind: type[_Kind], values: Mapping[str, Any]) -> _Kind:
    """Return a record of a kind; ValueError if a field is unknown, missing or not of its type."""
    items = fields(kind)  # type: ignore[arg-type]  # a dataclass
    refuse_unknown("fields", values, [item.name for item in items])
    needed = [item.name for item in items if item.default is item.default_factory is MISSING]
    if lacking := [name for name in needed if name not in values]:
        raise ValueError(f"{', '.join(lacking)} must be there")
    made = kind(**values)
    check_fields(made, _FINITE)
    return made


def first_difference(recorded: Record, replayed: Record, step_name: str, unchecked: Sequence[str]) -> str | None:
    """Return the first difference of two records, by step and then in the rest, or None.

    All numbers are compared exactly, except for what ``unchecked`` names.
    """
    before, after, name = recorded.to_json(), replayed.to_json(), recorded.steps_field
    steps = before.pop(name), after.pop(name)
    for number, (old, new) in enumerate(zip(*steps, strict=False), 1):
        if (difference := _difference(old, new, unchecked)) is not None:
            return f"{step_name} {number}: {difference}"
    count = _difference(len(steps[0]), len(steps[1]), (), f"number of {step_name}s")
    return count or _difference(before, after, unchecked)


def _difference(recorded: Any, replayed: Any, unchecked: Sequence[str], place: str = "") -> str | None:  # noqa: ANN401
    if place in unchecked:
        return None
    if place == "instructions" and not recorded:
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


def write_jsonl(path: Path | str, records: Sequence[Record]) -> None:
    """Write one line per episode."""
    lines = [json.dumps(record.to_json()) + "\n" for record in records]
    Path(path).write_text("".join(lines))


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def read_lines(path: Path | str) -> list[dict[str, Any]]:
    """Read the JSON values of what `write_jsonl` wrote.

    Raises:
        ValueError: naming the first line that is not the record of an episode, or saying that there is none.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file") from error
    values = []
    for number, line in enumerate(lines, 1):
        try:
            value = read_json(line, parse_constant=_no_number)
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from error
        if not isinstance(value, dict) or not isinstance(value.get("task"), str):
            raise ValueError(f"{path}: line {number}: not the record of an episode: it names no task")
        values.append(value)
    if not values:
        raise ValueError(f"{path}: there is no episode in it")
    return values
