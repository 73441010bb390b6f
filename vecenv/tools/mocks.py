"""Mocks: replies of tools without the tools, from a recording or a schema, and how far they are from the real ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Literal

from vecenv.text.tool_calls import FAILURE, FAULT, Step, ToolCall
from vecenv.tools.declaration import Tool, ToolFault, told_fault
from vecenv.tools.json_values import Schema, canonical, check_schema, drawn
from vecenv.tools.sourced import Arguments, Source, World, rows_of
from vecenv.tools.tool_set import LONGEST_REPLY, Callers, Reply, ToolSet, cut

Miss = Literal["error", "nearest"]

LONGEST_LINE = 8 * LONGEST_REPLY
"""Maximum characters of a line of a recording."""


class Recording:
    """Replies by canonical arguments.

    Args:
        tools: declarations of the real tools, by name.
        replies: lines of a recording; see `read`.
        miss: what a call that is not recorded gets: an error, or the reply of the nearest call of the same tool. Of
            two arguments numbers differ by |a − b| / (|a| + |b|) and texts by the share of their pairs of neighbouring
            letters that the other has not, in [0, 1]; the nearest call has the smallest sum, the first recorded of
            several.

    Attributes:
        ambiguous: calls that were recorded with different replies, by canonical text: their tools tell of more than
            the arguments. The first reply stands.
        missed: number of calls that were not recorded, by tool.
    """

    def __init__(self, tools: Mapping[str, Tool], miss: Miss = "error") -> None:
        self.tools, self.miss = dict(tools), miss
        self.known: dict[str, dict[str, tuple[Arguments, Reply]]] = {name: {} for name in tools}
        self.ambiguous: set[str] = set()
        self.missed: Counter[str] = Counter()

    def note(self, name: str, call: Arguments, reply: Reply) -> None:
        """Record a reply of a tool."""
        key = canonical(call)
        _, known = self.known[name].setdefault(key, (dict(call), reply))
        if str(known) != str(reply):
            self.ambiguous.add(f"{name}{key}")

    def replies(self, name: str, calls: Sequence[Arguments]) -> list[Reply]:
        return [self._reply(name, call) for call in calls]

    def _reply(self, name: str, call: Arguments) -> Reply:
        known = self.known[name]
        found = known.get(canonical(call))
        if found is None:
            self.missed[name] += 1
            if self.miss == "error" or not known:
                return ToolFault(f"no reply of {name} to these arguments is recorded")
            found = min(known.values(), key=lambda one: distance(one[0], call))
        return found[1]

    def write(self, file: Path) -> None:
        """Write a line of JSON for each reply."""
        self._put(file, "w", [(name, *each) for name, known in self.known.items() for each in known.values()])

    def append(self, file: Path, name: str, calls: Sequence[Arguments]) -> None:
        """Write a line for each of some calls of a tool that are recorded, behind those of the file."""
        self._put(file, "a", [(name, *self.known[name][canonical(call)]) for call in calls])

    @staticmethod
    def _put(file: Path, mode: str, replies: Sequence[tuple[str, Arguments, Reply]]) -> None:
        # Lone surrogates in an agent's text cannot be encoded otherwise.
        with file.open(mode, encoding="utf-8", errors="surrogatepass") as lines:
            for name, call, reply in replies:
                is_fault = isinstance(reply, ToolFault)
                told = {"tool": name, "arguments": call, "reply": str(reply), "fault": is_fault}
                lines.write(canonical(told) + "\n")

    @classmethod
    def read(cls, tools: Mapping[str, Tool], file: Path, miss: Miss = "error") -> Recording:
        """Return what was written.

        Raises:
            ValueError: a line is no reply of one of the tools, or there is none; with the line.
            OSError: the file cannot be read.
        """
        recording = cls(tools, miss)
        with file.open(encoding="utf-8", errors="surrogatepass") as lines:
            for number, line in enumerate(lines, 1):
                recording._read(line, f"{file}, line {number}")
        if not any(recording.known.values()):
            raise ValueError(f"{file} has no reply")
        return recording

    def _read(self, line: str, place: str) -> None:
        if len(line) > LONGEST_LINE:
            raise ValueError(f"{place}: a line may have {LONGEST_LINE:,} characters")
        try:
            told = json.loads(line)
            name, reply, is_fault = told["tool"], told["reply"], told["fault"]
            call = self.tools[name].checked(ToolCall(name, told["arguments"]))
        except (ValueError, KeyError, TypeError, AttributeError, ToolFault, RecursionError) as error:
            raise ValueError(f"{place}: it is no reply of {', '.join(self.tools)}: {error}") from None
        if not isinstance(reply, str) or not isinstance(is_fault, bool):
            raise ValueError(f"{place}: reply must be a text and fault true or false")
        self.note(name, call, ToolFault(reply) if is_fault else reply)


class RecordedTools(ToolSet):
    """A set of tools whose replies are recorded while it is used.

    Args:
        tools: whose replies are recorded.
        recording: where to.
        offered: words of a setting; by default those tools.
    """

    def __init__(self, tools: ToolSet, recording: Recording, offered: Sequence[str] = ()) -> None:
        self.real, self.recording, self.tools = tools, recording, tools.tools
        self.example, self.turn = tools.example, tools.turn
        super().__init__(offered or tools.offered)

    def replies(self, name: str, callers: Callers[Any], columns: Mapping[str, Any]) -> Sequence[Reply]:
        given = self.real.replies(name, callers, columns)
        replies: list[Reply] = [cut(one) if isinstance(one, str) else ToolFault(cut(str(one))) for one in given]
        for call, reply in zip(rows_of(columns, len(replies)), replies, strict=True):
            # A tool that failed has not replied, and one that acts does not reply.
            if not str(reply).startswith(FAILURE) and not self.tools[name].acts:
                self.recording.note(name, call, reply)
        return replies

    def forget(self, row: int) -> None:
        self.real.forget(row)


def recorded(world: World, recording: Recording) -> World:
    """Return a world the replies of whose tools are recorded while it is played."""
    own = world.tools

    def tools(names: Sequence[str]) -> RecordedTools:
        found = own(names)
        assert isinstance(found, ToolSet)
        return RecordedTools(found, recording, names)

    world.tools = tools  # type: ignore[method-assign]
    return world


def distance(one: Arguments, other: Arguments) -> float:
    """Return how far two calls of a tool are from each other: the sum over arguments, each in [0, 1]."""
    return sum(_distance(one[name], other[name]) for name in one)


def _distance(one: object, other: object) -> float:
    if one == other:
        return 0.0
    if isinstance(one, int | float) and isinstance(other, int | float):
        # Of numbers whose sum is not finite, too.
        largest = max(abs(one), abs(other))
        return abs(one / largest - other / largest) / (abs(one / largest) + abs(other / largest))
    if isinstance(one, str) and isinstance(other, str):
        own, others = _pairs(one), _pairs(other)
        return 1.0 - 2.0 * (own & others).total() / (own.total() + others.total())
    return 1.0


@lru_cache(1 << 12)
def _pairs(text: str) -> Counter[str]:
    """Return the pairs of neighbouring letters of a text, its ends included."""
    return Counter(map(str.__add__, f"\0{text}", f"{text}\0"))


class Generated:
    """Replies drawn from schemas: a JSON text, the same for equal calls and keys.

    Args:
        tools: declarations by name.
        schemas: of the reply of each tool.
        key: of the draws.

    Raises:
        ValueError: a tool has no schema, or one that is not understood.
    """

    def __init__(self, tools: Mapping[str, Tool], schemas: Mapping[str, Schema], key: int = 0) -> None:
        check_schemas(tools, schemas)
        self.tools, self.schemas, self.key = dict(tools), dict(schemas), key

    def replies(self, name: str, calls: Sequence[Arguments]) -> list[Reply]:
        return [self._reply(name, call) for call in calls]

    def _reply(self, name: str, call: Arguments) -> str:
        key = sha256(f"{self.key} {name} {canonical(call)}".encode(errors="surrogatepass")).digest()
        return canonical(drawn(self.schemas[name], Random(int.from_bytes(key))))


def check_schemas(tools: Mapping[str, Tool], schemas: Mapping[str, Schema]) -> None:
    """Raise ValueError unless each tool has the schema of its reply."""
    for name in tools:
        if name not in schemas:
            raise ValueError(f"tool {name!r} has no schema of its reply")
        check_schema(schemas[name], f"the schema of {name}")


@dataclass(frozen=True)
class Disagreement:
    """How far the replies of a mock are from those of the real tools, on a sample of calls.

    Attributes:
        calls: number of calls, by tool.
        different: those with another reply; JSON is compared as values.
        faults: those where one of the two is a fault, and the other is not.
        examples: first call, real reply and mocked reply that differ, by tool.
    """

    calls: Counter[str]
    different: Counter[str]
    faults: Counter[str]
    examples: dict[str, tuple[str, str, str]]

    @property
    def share(self) -> float:
        """Share of the calls with another reply."""
        return sum(self.different.values()) / max(1, sum(self.calls.values()))

    def __str__(self) -> str:
        lines = [f"{self.share:.1%} of {sum(self.calls.values())} calls have another reply than the real tool gives"]
        for name, count in self.calls.items():
            told = f"  {name}: {self.different[name]} of {count}, {self.faults[name]} of them a fault of one alone"
            if name in self.examples:
                call, real, mocked = (text if len(text) <= 60 else f"{text[:60]}…" for text in self.examples[name])
                told += f"; {call}: {real!r}, mocked {mocked!r}"
            lines.append(told)
        return "\n".join(lines)


def disagreement(
    real: ToolSet,
    mock: Source,
    calls: Sequence[ToolCall],
    state: Any,  # noqa: ANN401
    step: Step,
) -> Disagreement:
    """Measure a mock on a sample.

    Args:
        real: the real tools.
        mock: of all or some of them; calls of others are left out.
        calls: one of each row of ``state``.
        state: of the rows that call, as `ToolSet.results` takes it.
        step: makes hypothetical steps of them.
    """
    found = Disagreement(Counter(), Counter(), Counter(), {})
    for call, reply in zip(calls, real.results(state, calls, step), strict=True):
        if call.name not in mock.tools:
            continue
        try:
            (given,) = mock.replies(call.name, [real.tools[call.name].checked(call)])
        except ToolFault as fault:
            given = fault
        mocked = told_fault(given) if isinstance(given, ToolFault) else cut(given)
        found.calls[call.name] += 1
        if _value(reply) != _value(mocked):
            found.different[call.name] += 1
            found.faults[call.name] += reply.startswith(FAULT) != isinstance(given, ToolFault)
            found.examples.setdefault(call.name, (canonical(dict(call.arguments)), reply, mocked))
    return found


def _value(reply: str) -> object:
    try:
        return canonical(json.loads(reply))
    except (ValueError, RecursionError):
        return reply
