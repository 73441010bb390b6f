"""Parsing of tool calls in an agent's text; never raises.

Two formats are supported, set per run:

``json``   ``{"name": "price_history", "arguments": {"days": 5}}``, alone or within ``<tool_call>`` and
           ``</tool_call>``; ``tool`` may stand for ``name``, ``args`` or ``parameters`` for ``arguments``, which may be
           left out.
``react``  a line ``Action: price_history`` and after it, where there are arguments, ``Action Input: {"days": 5}``
           (Yao et al., "ReAct", arXiv 2210.03629, 2022). ``Final Answer:`` begins the answer. What comes first counts.

Any other text is an answer. Reasoning, by rule 2 of `vecenv.text.answer_lines`, is ignored with the calls in it. A
malformed call is a call with an empty name and the fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from vecenv.text.reasoning import without_reasoning

Form = Literal["json", "react"]

Step = Callable[[Sequence[int], Tensor], Any]
"""Returns the states of some rows after hypothetical actions. Positions of M rows, (M, *action) -> batch (M,)."""

FAULT = "Error: "
"""Prefix of the result of an invalid call."""

LONGEST_CALL = 4_096
"""Maximum characters of a call; a longer one is invalid."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NAMES, _ARGUMENTS = ("name", "tool"), ("arguments", "args", "parameters")
_STEP = re.compile(r"^[ \t]*(Action|Final Answer)[ \t]*:", re.MULTILINE)
_INPUT = re.compile(r"^[ \t]*Action Input[ \t]*:", re.MULTILINE)


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool; a malformed one has an empty name and the fault."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""


class Tools(Protocol):
    """Tools of a task for text agents."""

    def instructions(self, form: Form, most: int) -> str:
        """Return the instructions on the tools: the call format, and the maximum number of calls per day."""
        ...

    def results(self, state: Any, calls: Sequence[ToolCall], step: Step) -> list[str]:  # noqa: ANN401
        """Return the result text of each row's call; never raises. ``step`` makes a hypothetical step of some rows."""
        ...


def read_call(text: str, form: Form) -> ToolCall | None:
    """Return the tool call in a text, or None for an answer."""
    text = without_reasoning(text)
    if form == "react":
        step = _STEP.search(text)
        if step is None or step[1] == "Final Answer":
            return None
        rest = text[step.end() : step.end() + LONGEST_CALL + 1]
        following = _INPUT.search(rest)
        name, arguments = (rest, "") if following is None else (rest[: following.start()], rest[following.end() :])
        name = name.strip().partition("\n")[0].strip()
        return _checked(name, _first_object(arguments))
    block = _block(text)
    if block is None:
        return None
    value = _object(block)
    if isinstance(value, str):
        return ToolCall("", fault=value)
    named = next((value[key] for key in _NAMES if key in value), None)
    if not isinstance(named, str):
        return ToolCall("", fault="a call needs the name of a tool")
    return _checked(named.strip(), next((value[key] for key in _ARGUMENTS if key in value), {}))


def read_answer(text: str, form: Form) -> str:
    """Return the answer part of a text without a call; it may hold reasoning."""
    if form == "react":
        said = without_reasoning(text)
        step = _STEP.search(said)
        if step is not None and step[1] == "Final Answer":
            return said[step.end() :]
    return text


def _block(text: str) -> str | None:
    start = text.find(_OPEN)
    if start >= 0:
        end = text.find(_CLOSE, start)
        return text[start + len(_OPEN) : end if end >= 0 else None]
    stripped = text.strip()
    return stripped if stripped.startswith("{") else None


def _object(text: str) -> dict[str, Any] | str:
    if len(text) > LONGEST_CALL:
        return f"a call may have {LONGEST_CALL} characters"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "a call must be a JSON object"
    return value if isinstance(value, dict) else "a call must be a JSON object"


def _first_object(text: str) -> dict[str, Any] | str:
    """Return the leading JSON object of a text, an empty one for no text, or an error message."""
    text = text.strip()
    if not text:
        return {}
    if len(text) > LONGEST_CALL:
        return f"a call may have {LONGEST_CALL} characters"
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return "Action Input must be a JSON object"
    return value if isinstance(value, dict) else "Action Input must be a JSON object"


def _checked(name: str, arguments: object) -> ToolCall:
    if isinstance(arguments, str):
        return ToolCall("", fault=arguments)
    if not isinstance(arguments, dict):
        return ToolCall("", fault="arguments must be a JSON object")
    return ToolCall(name, arguments)
