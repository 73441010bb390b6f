"""Mocks: replies recorded while tools are used, or drawn from a schema, and how far they are from the real ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any

from vecenv.core.foreign_json import read_json
from vecenv.text.tool_calls import FAILURE, FAULT, Step, ToolCall
from vecenv.tools.declaration import Arguments, Reply, Tool, ToolFault, rows_of, told_fault
from vecenv.tools.json_values import Schema, canonical, check_schema, drawn
from vecenv.tools.recording import Recording
from vecenv.tools.sourced import Source, World
from vecenv.tools.tool_set import Callers, ToolSet, cut


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
        return canonical(read_json(reply))
    except ValueError:
        return reply
