"""Sets of tools, each a function of rows: a thousand agents' calls of a tool are one call of its function.

A tool is declared where its function stands. The function is given those rows that call it and a column of each
argument, and returns a reply, or a `ToolFault`, for each row::

    class Depths(ToolSet):
        @tool("sea", "depth below the ship; metres, added to it, 0 by default", {"metres": float}, {"metres": 0.0})
        def depth(self, callers, metres):
            below = callers.state.sounding + metres
            return [f"{depth:.1f} m" if depth > 0 else ToolFault("the ship is aground") for depth in below.tolist()]

A task offers its set by ``tools(names)`` of its `Interaction` or `TextInterface`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from vecenv.text.tool_calls import Form, Step, ToolCall
from vecenv.tools.declaration import Kind, Tool, ToolFault, told_fault

Value = TypeVar("Value")
State = TypeVar("State")
Function = TypeVar("Function", bound=Callable[..., "Sequence[Reply]"])

Reply = str | ToolFault

ALL = "all"
"""Stands for all tools of a task."""

LONGEST_REPLY = 20_000
"""Maximum characters of a reply; of a longer one the beginning is told."""


@dataclass(frozen=True)
class Callers(Generic[State]):
    """The M rows that call a tool, in the order of its columns.

    Attributes:
        state: of these rows, batch (M,); of a task without tensors, their numbers.
        step: returns the states of some of them after hypothetical actions. Positions of L rows, (L, *action) -> (L,).
    """

    state: State
    step: Step

    @classmethod
    def of(cls, state: Any, places: Sequence[int], step: Step) -> Callers[Any]:  # noqa: ANN401
        """Choose rows of a state by their positions."""

        def own(positions: Sequence[int], action: Tensor) -> Any:  # noqa: ANN401
            return step([places[position] for position in positions], action)

        if list(places) == list(range(len(state))):
            return cls(state, step)
        if isinstance(state, Sequence):
            return cls([state[place] for place in places], own)  # type: ignore[arg-type]
        return cls(state[torch.tensor(places, device=state.device)], own)


def tool(
    family: str,
    usage: str,
    arguments: Mapping[str, Kind] | None = None,
    optional: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
    changes: str = "",
) -> Callable[[Function], Function]:
    """Declare a method of a `ToolSet` as a tool of its name; see `Tool` for what is declared."""

    def declare(function: Function) -> Function:
        declared = Tool(function.__name__, family, usage, arguments or {}, optional or {}, seconds, changes)
        function.__dict__["tool"] = declared
        return function

    return declare


def each(function: Callable[..., Value], *columns: Sequence[Any] | Tensor) -> list[Value | ToolFault]:
    """Return what a function of one row returns for each row of columns, or the `ToolFault` that it raises there."""
    told: list[Value | ToolFault] = []
    for row in zip(*(c.tolist() if isinstance(c, Tensor) else c for c in columns), strict=True):
        try:
            told.append(function(*row))
        except ToolFault as fault:
            told.append(fault)
    return told


def sound(
    values: Sequence[Value | ToolFault], function: Callable[[list[int], list[Value]], Sequence[Reply]]
) -> list[Reply]:
    """Return replies of a function of the rows without a fault, given their positions and values, and the faults."""
    replies: list[Any] = list(values)
    places = [place for place, value in enumerate(values) if not isinstance(value, ToolFault)]
    if places:
        for place, reply in zip(places, function(places, [replies[place] for place in places]), strict=True):
            replies[place] = reply
    return replies


def offered_tools(tools: Mapping[str, Tool], names: Sequence[str]) -> tuple[str, ...]:
    """Resolve names of tools and families, or all, to tools; ValueError if one is unknown."""
    families = {declared.family for declared in tools.values()}
    unknown = [name for name in names if name not in tools and name not in families and name != ALL]
    if unknown:
        raise ValueError(
            f"unknown tools {', '.join(unknown)}; there are {', '.join(tools)}, the families "
            f"{', '.join(sorted(families))}, and {ALL}"
        )
    return tuple(name for name, declared in tools.items() if ALL in names or name in names or declared.family in names)


class ToolSet:
    """Tools of a task, whose functions are the methods that are declared by `tool`.

    Args:
        offered: tools, families, or all.

    Attributes:
        tools: declarations by name, those of a subclass before those of its bases.
        example: tool of the example in the instructions, if it is offered, else the first.
        turn: what an agent answers, such as a day.

    Raises:
        ValueError: there is no such tool.
    """

    tools: Mapping[str, Tool] = {}
    example: ClassVar[str] = ""
    turn: ClassVar[str] = "turn"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known: dict[str, Tool] = {}
        for base in cls.__mro__:
            for name, value in vars(base).items():
                if isinstance(declared := getattr(value, "tool", None), Tool):
                    known.setdefault(name, declared)
        cls.tools = known

    def __init__(self, offered: Sequence[str]) -> None:
        self.offered = offered_tools(self.tools, offered)

    def replies(self, name: str, callers: Callers[Any], columns: Mapping[str, Any]) -> Sequence[Reply]:
        """Return the replies of a tool to the rows that call it, given a column of each argument by name."""
        replies: Sequence[Reply] = getattr(self, name)(callers, **columns)
        return replies

    def instructions(self, form: Form, most: int) -> str:
        example = self.example if self.example in self.offered else self.offered[0]
        arguments = ", ".join(f'"{name}": …' for name in self.tools[example].arguments)
        if form == "json":
            how = f'{{"name": "{example}", "arguments": {{{arguments}}}}}'
            answer = "Anything else is your answer."
        else:
            how = f"Action: {example}\nAction Input: {{{arguments}}}"
            answer = "Your answer follows Final Answer:"
        opening = f"Before you answer you may call tools, one at a time, at most {most} a {self.turn}, like this:"
        lines = [f"  {name}: {self.tools[name].usage}" for name in self.offered]
        return "\n".join([opening, how, *lines, answer])

    def results(self, state: Any, calls: Sequence[ToolCall], step: Step) -> list[str]:  # noqa: ANN401
        """Return the reply to each row's call, or what is wrong with it: one call of each tool that is called."""
        told = [""] * len(calls)
        asked: dict[str, dict[int, dict[str, Any]]] = {}
        for place, call in enumerate(calls):
            try:
                asked.setdefault(call.name, {})[place] = self.arguments(call)
            except ToolFault as fault:
                told[place] = told_fault(fault)
        for name, given in asked.items():
            if not given:
                continue
            callers = Callers.of(state, list(given), step)
            columns = self.tools[name].columns(list(given.values()), getattr(state, "device", None))
            for place, reply in zip(given, self.replies(name, callers, columns), strict=True):
                told[place] = told_fault(reply) if isinstance(reply, ToolFault) else cut(reply)
        return told

    def arguments(self, call: ToolCall) -> dict[str, Any]:
        """Return the arguments of a call as they are declared, or raise a `ToolFault`."""
        if call.fault:
            raise ToolFault(call.fault)
        if call.name not in self.offered:
            raise ToolFault(f"there is no tool {call.name[:40]!r}; there are {', '.join(self.offered)}")
        return self.tools[call.name].checked(call)


def cut(reply: str) -> str:
    """Return a reply, of a too long one its beginning and how long it is."""
    if len(reply) <= LONGEST_REPLY:
        return reply
    return f"{reply[:LONGEST_REPLY]}… (the first {LONGEST_REPLY:,} of {len(reply):,} characters)"
