"""The tools of chains as a set: calls that tell and are no steps, which can fail, be drawn, recorded and mocked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vecenv.tasks.games.tool_chain.config import KINDS, NOUNS
from vecenv.tasks.games.tool_chain.scenario import Chain, ToolChain, reply
from vecenv.text.tool_calls import FAILURE
from vecenv.tools.declaration import Tool, ToolFault
from vecenv.tools.tool_set import Callers, Reply, ToolSet, each, sound

FAMILIES = (
    "trade",
    "trade",
    "transport",
    "transport",
    "transport",
    "transport",
    "transport",
    "trade",
    "trade",
    "trade",
)
"""Family of the tool that gives each kind."""


def thing(kind: int, value: int) -> str:
    """Return the name of a thing."""
    return f"{NOUNS[kind]}-{value}"


def called(kind: int) -> str:
    """Return the name of the tool that gives a kind."""
    return f"{NOUNS[kind]}_of"


def read_thing(text: str) -> tuple[int, int] | None:
    """Return the kind and the number of a thing; None of a text that names none."""
    noun, _, number = text.partition("-")
    known = noun in NOUNS and number.isdecimal() and number.isascii() and len(number) <= 3
    return (NOUNS.index(noun), int(number)) if known else None


class ChainTools(ToolSet):
    """A tool of each kind, of which an episode has those that its world has, and as many calls as it allows."""

    def __init__(self, scenario: ToolChain, offered: Sequence[str]) -> None:
        self.scenario = scenario
        self.tools = {
            called(kind): Tool(called(kind), FAMILIES[kind], f"the {NOUNS[kind]} of a thing; of", {"of": str})
            for kind in range(KINDS)
        }
        super().__init__(offered)

    def replies(self, name: str, callers: Callers[Chain], columns: Mapping[str, Any]) -> Sequence[Reply]:
        if name in self.beside:
            return super().replies(name, callers, columns)
        state, gives = callers.state, NOUNS.index(name.removesuffix("_of"))
        made = [0 if at is None else at.number for at in callers.names]
        left = (self.scenario.budget(state) - torch.tensor(made, device=state.level.device)).tolist()

        def argument(takes: int, of: str) -> int:
            if takes < 0:
                raise ToolFault(f"there is no tool {name} here")
            found = read_thing(of.strip().lower())
            if found is None or found[0] != takes:
                raise ToolFault(f"{name} takes a thing such as {thing(takes, 7)}")
            return found[1]

        def told(places: list[int], values: list[int]) -> list[str]:
            things = reply(state.salt[places], torch.tensor(gives), torch.tensor(values))
            return [
                thing(gives, value) if left[place] > 0 else f"{FAILURE}no call is left"
                for place, value in zip(places, things.tolist(), strict=True)
            ]

        return sound(each(argument, state.takes[:, gives], columns["of"]), told)
