"""Recordings of tools: replies by canonical arguments, in a file of JSON lines, and the nearest to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from vecenv.core.foreign_json import read_json
from vecenv.text.tool_calls import ToolCall
from vecenv.tools.declaration import LONGEST_REPLY, Arguments, Reply, Tool, ToolFault
from vecenv.tools.json_values import canonical

Miss = Literal["error", "nearest"]

LONGEST_LINE = 8 * LONGEST_REPLY
"""Maximum characters of a line of a recording."""


class Recording:
    """Replies by canonical arguments.

    Args:
        tools: declarations of the real tools, by name.
        replies: lines of a recording; see `read`.
        miss: what a call that is not recorded gets: an error, or the reply of the nearest call of the same tool. Of
            two arguments numbers differ by ``|a − b| / (|a| + |b|)`` and texts by the share of their pairs of
            neighbouring letters that the other has not, in [0, 1]; the nearest call has the smallest sum, the first
            recorded of several.

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
            told = read_json(line)
            name, reply, is_fault = told["tool"], told["reply"], told["fault"]
            call = self.tools[name].checked(ToolCall(name, told["arguments"]))
        except (ValueError, KeyError, TypeError, AttributeError, ToolFault) as error:
            raise ValueError(f"{place}: it is no reply of {', '.join(self.tools)}: {error}") from None
        if not isinstance(reply, str) or not isinstance(is_fault, bool):
            raise ValueError(f"{place}: reply must be a text and fault true or false")
        self.note(name, call, ToolFault(reply) if is_fault else reply)


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
