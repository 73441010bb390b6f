"""Chains of tools in words: what is wanted, offered and known, and calls and answers read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vecenv.tasks.games.tool_chain.config import NOUNS
from vecenv.tasks.games.tool_chain.scenario import ANSWER, NOTHING, ToolChain
from vecenv.tasks.games.tool_chain.tools import ChainTools, called, thing
from vecenv.text.answer_lines import AnswerFault, AnswerLanguage, shown
from vecenv.text.interface import TextInterface
from vecenv.text.tool_calls import read_call

Said = tuple[int, int]
"""Choice and argument."""

_CALL = re.compile(r"([A-Z]{1,20})_OF\s*[(:]?\s*([A-Z]{1,20})-([0-9]{1,3})\s*\)?")
_THING = re.compile(r"(?:ANSWER\s+)?([A-Z]{1,20})-([0-9]{1,3})")


WANTED = "Wanted: "
"""How a page begins."""


class CallLanguage(AnswerLanguage[Said]):
    """Reads a call of one of a row's tools, or the thing that is the answer.

    Args:
        takes: kind that each tool takes, by the kind that it gives; -1 where there is none.
        target: kind of the answer.
    """

    def __init__(self, takes: Sequence[int], target: int) -> None:
        self.takes, self.target = takes, target

    def read(self, text: object) -> Said:
        try:
            return super().read(text)
        except AnswerFault:
            # Models call tools in the notation that they were trained on.
            call = read_call(text, "json") if isinstance(text, str) else None
            if call is None or call.fault:
                raise
            if len(call.arguments) != 1:
                raise AnswerFault("a tool takes one argument, such as customer-7") from None
            return super().read(f"{call.name}({next(iter(call.arguments.values()))})")

    def of_lines(self, lines: Sequence[str]) -> Said:
        if len(lines) > 1:
            raise AnswerFault("one line is wanted, with one call or the answer")
        if found := _CALL.fullmatch(lines[0]):
            gives = self._kind(found[1])
            if self.takes[gives] < 0:
                raise AnswerFault(f"there is no tool {called(gives)}")
            if self._kind(found[2]) != self.takes[gives]:
                raise AnswerFault(f"{called(gives)} takes a thing such as {thing(self.takes[gives], 7)}")
            return gives, int(found[3])
        if found := _THING.fullmatch(lines[0]):
            if self._kind(found[1]) != self.target:
                raise AnswerFault(f"the answer is a thing such as {thing(self.target, 7)}")
            return ANSWER, int(found[2])
        raise AnswerFault(f"{shown(lines[0])} is no call such as order_of(customer-7), and no answer such as order-7")

    @staticmethod
    def _kind(word: str) -> int:
        if (name := word.lower()) not in NOUNS:
            raise AnswerFault(f"there is no kind {name!r}; there are {', '.join(NOUNS)}")
        return NOUNS.index(name)

    def tensor(self, parsed: Sequence[Said | None]) -> tuple[Tensor, Tensor]:
        rows = [said or (NOTHING, 0) for said in parsed]
        valid = [said is not None for said in parsed]
        return torch.tensor(rows, dtype=torch.int64).reshape(-1, 2), torch.tensor(valid, dtype=torch.bool)


class ToolChainText(TextInterface):
    """Text of chains of tools; where agents have those of `ChainTools`, no answer is a call."""

    def __init__(self, scenario: ToolChain) -> None:
        self.scenario, self.tells = scenario, False

    def tools(self, names: Sequence[str]) -> ChainTools:
        tools = ChainTools(self.scenario, names)
        self.tells = True
        return tools

    def languages(self, state: Any) -> list[CallLanguage]:  # noqa: ANN401
        takes = torch.full_like(state.takes, -1) if self.tells else state.takes
        return [CallLanguage(*row) for row in zip(takes.tolist(), state.target.tolist(), strict=True)]

    def parse(self, texts: Sequence[object], state: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        read = [language.parse(text) for language, text in zip(self.languages(state), texts, strict=True)]
        return CallLanguage((), 0).tensor(read)

    def acted(self, state: Any) -> Tensor:  # noqa: ANN401
        return state.effective

    def render(self, observations: Tensor, state: Any) -> list[str]:  # noqa: ANN401
        left = (self.scenario.budget(state) - state.steps).clamp(min=0)
        columns = (state.takes, state.known, state.start, state.target, left)
        return [_page(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def instructions(self, state: Any) -> list[str]:  # noqa: ANN401
        call = "" if self.tells else "a call, such as order_of(customer-7), or "
        return [
            "Find what is wanted by calling tools. Each takes a thing of one kind and returns one of another. Write "
            f"one line: {call}the answer, such as city-7, which ends the episode."
        ] * len(state)


def _page(takes: list[int], known: list[int], start: int, target: int, left: int) -> str:
    tools = ", ".join(f"{called(kind)}({NOUNS[taken]})" for kind, taken in enumerate(takes) if taken >= 0)
    told = [thing(kind, value) for kind, value in enumerate(known) if value >= 0 and kind != start]
    lines = [f"{WANTED}the {NOUNS[target]} of {thing(start, known[start])}", f"Tools: {tools}"]
    return "\n".join([*lines, f"Found: {', '.join(told) or 'nothing yet'}", f"Calls left: {left}"])
