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
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vecenv.text.door import ChosenState
from vecenv.text.tool_calls import CallName, Form, Said, Step, ToolCall
from vecenv.tools.declaration import LONGEST_REPLY, Kind, Reply, Tool, ToolFault, rows_of, told_fault
from vecenv.tools.failing import OUTCOMES, REFUSED, Failures, failure_rates
from vecenv.tools.offers import Offers, named
from vecenv.tools.recording import Recording
from vecenv.tools.words import ALL, FAILS, MOCK

Value = TypeVar("Value")
State = TypeVar("State")
Function = TypeVar("Function", bound=Callable[..., "Sequence[Reply]"])


@dataclass(frozen=True)
class Callers(Generic[State]):
    """The M rows that call a tool, in the order of its columns.

    Attributes:
        state: of these rows, batch (M,); of a task without tensors, their numbers.
        step: returns the states of some of them after hypothetical actions. Positions of L rows, (L, *action) -> (L,).
        names: of their calls; None outside of a dialogue.
    """

    state: State
    step: Step
    names: Sequence[CallName | None]

    @classmethod
    def of(
        cls,
        state: Any,  # noqa: ANN401
        places: Sequence[int],
        step: Step,
        names: Sequence[CallName | None],
    ) -> Callers[Any]:
        """Choose rows of a state by their positions."""

        def own(positions: Sequence[int], action: Tensor) -> Any:  # noqa: ANN401
            return step([places[position] for position in positions], action)

        if list(places) == list(range(len(state))):
            return cls(state, step, names)
        if isinstance(state, Sequence):
            return cls([state[place] for place in places], own, names)  # type: ignore[arg-type]
        chosen = torch.tensor(places, device=state.device)
        # Of the tensors of a state those are chosen that a tool reads.
        lazy = isinstance(state, Tensor | ChosenState)
        own_state: Any = state[chosen] if lazy else ChosenState(state, chosen)
        return cls(own_state, own, names)


def tool(
    family: str,
    usage: str,
    arguments: Mapping[str, Kind] | None = None,
    optional: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
    changes: str = "",
    acts: bool = False,
) -> Callable[[Function], Function]:
    """Declare a method of a `ToolSet` as a tool of its name; see `Tool` for what is declared."""

    def declare(function: Function) -> Function:
        declared = Tool(function.__name__, family, usage, arguments or {}, optional or {}, seconds, changes, acts)
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


class ToolSet:
    """Tools of a task, whose functions are the methods that are declared by `tool`.

    Args:
        offered: tools, families, or all, and further words of `vecenv.tools.offers`.

    Attributes:
        tools: declarations by name, those of a subclass before those of its bases.
        example: tool of the example in the instructions, if it is offered, else the first.
        turn: what an agent answers, such as a day.
        outcomes: names and units of what `counted` tells.
        beside: sets of the families for any task that are offered, by tool.
        offered: tools that may be offered.

    Raises:
        ValueError: there is no such tool, two have one name, or a word is none; of a class, a tool has the name of
            what a set has itself.
    """

    tools: Mapping[str, Tool] = {}
    example: str = ""
    turn: str = "turn"
    outcomes: Mapping[str, str]
    beside: Mapping[str, ToolSet]
    offered: tuple[str, ...]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known: dict[str, Tool] = {}
        for base in cls.__mro__:
            for name, value in vars(base).items():
                if isinstance(declared := getattr(value, "tool", None), Tool):
                    if name in dir(ToolSet) or name in ToolSet.__annotations__:
                        raise ValueError(f"a tool cannot be called {name!r}, which every set of tools has itself")
                    known.setdefault(name, declared)
        cls.tools = known

    def __init__(self, offered: Sequence[str]) -> None:
        self.beside = general_families(self.tools, offered)
        for name, others in self.beside.items():
            if name in self.tools:
                raise ValueError(f"two tools are called {name!r}")
            self.tools = {**self.tools, name: others.tools[name]}
        self._offers = Offers(self.tools, offered)
        self.offered = self._offers.tools
        failing = any(name.startswith(FAILS) for name in offered)
        self._failures = Failures(self.tools, failure_rates(self.tools, offered)) if failing else None
        self._mock = mock_of(self.tools, offered)
        self.outcomes = {
            **({"tools_offered": "count"} if self._offers.drawn else {}),
            **(OUTCOMES if self._failures else {}),
        }

    def replies(self, name: str, callers: Callers[Any], columns: Mapping[str, Any]) -> Sequence[Reply]:
        """Return the replies of a tool to the rows that call it, given a column of each argument by name."""
        if name in self.beside:
            return self.beside[name].replies(name, callers, columns)
        replies: Sequence[Reply] = getattr(self, name)(callers, **columns)
        return replies

    def forget(self, row: int) -> None:
        """Drop what is kept of a row's episode, whose next one has made its first call, of whatever tool."""
        for others in self.beside.values():
            others.forget(row)

    def offers(self, names: Sequence[CallName]) -> list[tuple[str, ...]]:
        """Return the tools that episodes are offered."""
        return self._offers.of(names)

    def instructions_of(self, form: Form, most: int, names: Sequence[CallName]) -> list[str]:
        """Return the instructions of episodes, which may be offered different tools."""
        offers = self._offers.of(names)
        told = {offer: self.instructions(form, most, offer) for offer in dict.fromkeys(offers)}
        return [told[offer] for offer in offers]

    def instructions(self, form: Form, most: int, offered: Sequence[str] = ()) -> str:
        """Return the instructions on some tools, by default on all that may be offered."""
        names = offered or self.offered
        example = self.example if self.example in names else names[0]
        arguments = ", ".join(f'"{name}": …' for name in self.tools[example].arguments)
        if form == "json":
            how = f'{{"name": "{example}", "arguments": {{{arguments}}}}}'
            answer = "Anything else is your answer."
        else:
            how = f"Action: {example}\nAction Input: {{{arguments}}}"
            answer = "Your answer follows Final Answer:"
        opening = f"Before you answer you may call tools, one at a time, at most {most} a {self.turn}, like this:"
        lines = [f"  {name}: {self.tools[name].usage}" for name in names]
        return "\n".join([opening, how, *lines, *self.acting_told(names), answer])

    def acting_told(self, names: Sequence[str]) -> list[str]:
        """Return a line that says which of some tools are answers, if any is."""
        acting = [name for name in names if self.tools[name].acts]
        return [f"A call of {' or '.join(acting)} is your answer."] if acting else []

    def results(self, state: Any, calls: Sequence[ToolCall], step: Step) -> list[str]:  # noqa: ANN401
        """Return the reply to each row's call, or what is wrong with it: one call of each tool that is called.

        Of a tool that acts the reply is the answer that a call stands for, `Said`.
        """
        told = [""] * len(calls)
        valid: dict[int, dict[str, Any]] = {}
        for place, (call, offer) in enumerate(zip(calls, self._offers.of([call.at for call in calls]), strict=True)):
            if call.at is not None and not call.at.number:
                self.forget(call.at.row)
            if self._failures:
                self._failures.account(named(call.at))
            try:
                valid[place] = self._arguments(call, offer)
            except ToolFault as fault:
                told[place] = told_fault(fault)
        fails: dict[int, tuple[str, float]] = {}
        if self._failures and valid:
            fails = dict(zip(valid, self._failures.drawn([calls[place] for place in valid]), strict=True))
        asked: dict[str, list[int]] = {}
        for place in valid:
            if self._failures and fails[place][0] in REFUSED:
                told[place] = self._failures.refused(calls[place], fails[place][0])
            else:
                asked.setdefault(calls[place].name, []).append(place)
        for name, places in asked.items():
            callers = Callers.of(state, places, step, [calls[place].at for place in places])
            columns = self.tools[name].columns([valid[place] for place in places], getattr(state, "device", None))
            acts = self.tools[name].acts
            if self._mock and self._mock.known[name]:
                replies: Sequence[Reply] = self._mock.replies(name, rows_of(columns, len(places)))
            else:
                replies = self.replies(name, callers, columns)
            for place, reply in zip(places, replies, strict=True):
                told[place] = cut(told_fault(reply) if isinstance(reply, ToolFault) else reply)
                if isinstance(reply, ToolFault):
                    continue
                if self._failures:
                    kind, much = fails[place]
                    # What the world shows of an answer is not altered.
                    kind = "" if acts and kind != "latency" else kind
                    told[place] = self._failures.told(calls[place], kind, much, told[place])
                told[place] = Said(told[place]) if acts else told[place]
        return told

    def counted(self, name: CallName) -> Mapping[str, float]:
        """Return the outcomes of the tools in a row's episode so far."""
        offered = {"tools_offered": float(len(self._offers.of([name])[0]))} if self._offers.drawn else {}
        return offered | (self._failures.counted(name) if self._failures else {})

    def _arguments(self, call: ToolCall, offered: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of a call as they are declared, or raise a `ToolFault`."""
        if call.fault:
            raise ToolFault(call.fault)
        if call.name not in offered:
            raise ToolFault(f"there is no tool {call.name[:40]!r}; there are {', '.join(offered)}")
        return self.tools[call.name].checked(call)


def general_families(own: Mapping[str, Tool], names: Sequence[str]) -> dict[str, ToolSet]:
    """Return sets of the families for any task that a setting names, by tool.

    They are entry points of packages, ``vecenv.tools``: classes of tools by the name of their family.
    """
    families = {declared.family for declared in own.values()}
    words = {name.removeprefix("family:") for name in names if name not in own} - families - {ALL}
    words = {word for word in words if ":" not in word}
    found: dict[str, ToolSet] = {}
    # To look for entry points takes milliseconds.
    for entry in entry_points(group="vecenv.tools") if words else ():
        if entry.name in words:
            beside: ToolSet = entry.load()((ALL,))
            for name in beside.tools:
                if name in found:
                    raise ValueError(f"two tools are called {name!r}")
                found[name] = beside
    return found


def mock_of(tools: Mapping[str, Tool], names: Sequence[str]) -> Recording | None:
    """Return the recording that a setting names, if any: of calls that it lacks it has the nearest.

    Raises:
        ValueError: there are two, or the file cannot be read or is none of replies of the tools.
    """
    files = [name.removeprefix(MOCK) for name in names if name.startswith(MOCK)]
    if len(files) > 1:
        raise ValueError(f"tools have one mock, but there are {', '.join(files)}")
    try:
        return Recording.read(tools, Path(files[0]), miss="nearest") if files else None
    except OSError as error:
        raise ValueError(f"{files[0]} cannot be read: {error.strerror}") from error


def cut(reply: str) -> str:
    """Return a reply, of a too long one its beginning and how long it is."""
    # What was cut before, such as in a recording, is as it is.
    if len(reply) <= LONGEST_REPLY or (reply.endswith(" characters)") and len(reply) < LONGEST_REPLY + 64):
        return reply
    return f"{reply[:LONGEST_REPLY]}… (the first {LONGEST_REPLY:,} of {len(reply):,} characters)"
