"""A check of tools that agents call (`check_tools`): whatever is called, alone or among others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from vecenv.testing.faults import ConformanceFault, require
from vecenv.testing.texts import MALFORMED, fuzzed
from vecenv.text.dialogue import Dialogue
from vecenv.text.interaction import Episode, Interaction
from vecenv.text.tool_calls import FAULT, CallName, ToolCall
from vecenv.tools.declaration import Kind, Tool
from vecenv.tools.tool_set import ToolSet

_VALUES: dict[Kind, tuple[Any, ...]] = {
    int: (0, 1, -1, 7, 2**63, -(2**63), 10**400, "12", 5.0),
    float: (0.0, 0.5, -1e300, 3, "1e9", float("nan"), float("inf")),
    bool: (True, False, "true", 1),
    str: ("", "a", "1+1", "é🜲\ud800", "x" * 5_000, 12),
    list: ([], [1, "a"], [[[]]]),
    dict: ({}, {"a": 1}, {"a": {"b": None}}),
}


_CALLS = 8
"""Calls of a row between two answers."""


def random_call(tools: Mapping[str, Tool], draw: Random, texts: Sequence[str] = ()) -> ToolCall:
    """Return a call of one of the tools: of some texts and others, also of wrong kinds, or without some."""
    name = draw.choice([*tools] * 8 + ["", "no_such_tool", "a" * 300])
    declared = tools.get(name)
    arguments: dict[str, Any] = {}
    for key, kind in () if declared is None else declared.arguments.items():
        if key in declared.needed or draw.random() < 0.7:  # type: ignore[union-attr]
            values = (
                kind
                if isinstance(kind, tuple)
                else texts
                if kind is str and texts and draw.random() < 0.7
                else _VALUES[kind]
            )
            arguments[key] = draw.choice(values) if draw.random() < 0.9 else draw.choice(MALFORMED)
            if isinstance(arguments[key], str) and draw.random() < 0.3:
                arguments[key] = fuzzed(draw, arguments[key])
    if draw.random() < 0.05:
        arguments[draw.choice(["", "until", *arguments])] = draw.choice(MALFORMED)
    if draw.random() < 0.05:
        arguments.pop(next(iter(arguments), ""), None)
    return ToolCall(name, arguments)


def check_tools(
    make: Callable[[int], Interaction],
    names: Sequence[str] = ("all",),
    calls: int = 200,
    texts: Sequence[str] = (),
    seed: int = 0,
) -> int:
    """Check the tools of a world: a call is answered by a text, the same alone, among others, and in any order.

    Args:
        make: makes the world with a number of rows.
        names: of the tools, and further words of the setting.
        calls: how many are made in the world of many rows, at least.
        texts: that are arguments of the tools.
        seed: of the calls and answers.

    Returns:
        How many of them were valid.

    Raises:
        ConformanceFault: the first violated rule.
    """
    rows, draw = 8, Random(seed)
    episodes = [Episode(5 + row // 2, row % 2) for row in range(rows)]
    dialogues = [Dialogue(make(number)) for number in (rows, 1)]
    world, alone = (dialogue.interaction for dialogue in dialogues)
    many, one, valid, over = world.tools(names), alone.tools(names), 0, True
    require(isinstance(many, ToolSet), "tools must be a ToolSet")
    assert isinstance(many, ToolSet)
    for number in range(-(-calls // rows)):
        if over:
            for dialogue in dialogues:
                dialogue.begin(range(dialogue.interaction.num_rows), episodes[: dialogue.interaction.num_rows])
        drawn = [random_call(many.tools, draw, texts) for _ in range(rows)]
        names_of = [CallName(row, *episode, 0, number) for row, episode in enumerate(episodes)]
        asked = [replace(call, at=name) for call, name in zip(drawn, names_of, strict=True)]
        try:
            told = list(world.call(many, range(rows), asked))  # type: ignore[arg-type]
            own = list(alone.call(one, [0], asked[:1]))  # type: ignore[arg-type]
        except Exception as error:
            raise ConformanceFault(f"one of {repr(drawn)[:300]} raises {type(error).__name__}: {error}") from error
        require(len(told) == rows and all(isinstance(text, str) for text in told), "a call is not answered by a text")
        require(own == told[:1], f"{repr(drawn[0])[:200]} is answered otherwise alone: {own[0][:80]!r}")
        valid += sum(not text.startswith(FAULT) for text in told)
        # What changes something, or remembers what it said, may answer otherwise when asked twice.
        if not many.outcomes and not any(declared.changes for declared in many.tools.values()):
            order = draw.sample(range(rows), rows)
            again = list(world.call(many, order, [asked[row] for row in order]))  # type: ignore[arg-type]
            require(again == [told[row] for row in order], "calls are answered otherwise in another order of rows")
        over = False
        if number % _CALLS:
            continue
        said = [world.random_answer(draw) for _ in range(rows)]
        turns = [*dialogues[0].answer(range(rows), said), *dialogues[1].answer([0], said[:1])]
        over = any(turn.done for turn in turns)
    return valid
