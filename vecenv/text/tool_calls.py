"""From an agent's text to the tool that it calls, if it calls one; whatever the text holds, nothing raises.

Two forms are understood, whichever a run has chosen:

``json``   ``{"name": "price_history", "arguments": {"days": 5}}``, alone or within ``<tool_call>`` and
           ``</tool_call>``; ``tool`` may stand for ``name``, ``args`` or ``parameters`` for ``arguments``, which may be
           left out.
``react``  a line ``Action: price_history`` and after it, where there are arguments, ``Action Input: {"days": 5}``
           (Yao et al., "ReAct", arXiv 2210.03629, 2022). ``Final Answer:`` begins the answer. What comes first counts.

Any other text is an answer. What is reasoning by rule 2 of ``tasks/tiers/text/parse.py`` is passed over: a call that
stands in it is none. A call that cannot be read is a call too, of no tool, with the fault in the place of it.
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
"""Returns the states that some rows would have after actions. Places of M rows, (M, *action) -> batch (M,)."""

FAULT = "Error: "
"""What a tool's text begins with where the call was at fault."""

LONGEST_CALL = 4_096
"""Characters of a call that are read; a longer one is at fault."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NAMES, _ARGUMENTS = ("name", "tool"), ("arguments", "args", "parameters")
_STEP = re.compile(r"^[ \t]*(Action|Final Answer)[ \t]*:", re.MULTILINE)
_INPUT = re.compile(r"^[ \t]*Action Input[ \t]*:", re.MULTILINE)


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    Attributes:
        name: of the tool, empty where the call could not be read.
        arguments: by name.
        fault: why the call could not be read, empty where it could.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""


class Tools(Protocol):
    """What a task offers to agents that write text."""

    def instructions(self, form: Form, most: int) -> str:
        """Return what an agent is told of the tools: how they are called in a form, and how often at most a day."""
        ...

    def results(self, state: Any, calls: Sequence[ToolCall], step: Step) -> list[str]:  # noqa: ANN401
        """Return what each call says to the agent of its row; nothing raises.

        Args:
            state: of the rows. Batch: (B,).
            calls: one a row. B of them.
            step: what actions would do in some of the rows.
        """
        ...


def read_call(text: str, form: Form) -> ToolCall | None:
    """Return the call that a text makes, or None where it is an answer."""
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
    """Return the part of a text without a call that is the answer; reasoning may stand in it."""
    if form == "react":
        said = without_reasoning(text)
        step = _STEP.search(said)
        if step is not None and step[1] == "Final Answer":
            return said[step.end() :]
    return text


def _block(text: str) -> str | None:
    """Return what is to be read as a call, None where there is none."""
    start = text.find(_OPEN)
    if start >= 0:
        end = text.find(_CLOSE, start)
        return text[start + len(_OPEN) : end if end >= 0 else None]
    stripped = text.strip()
    return stripped if stripped.startswith("{") else None


def _object(text: str) -> dict[str, Any] | str:
    """Return a JSON object, or what is wrong with it."""
    if len(text) > LONGEST_CALL:
        return f"a call may have {LONGEST_CALL} characters"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "a call must be a JSON object"
    return value if isinstance(value, dict) else "a call must be a JSON object"


def _first_object(text: str) -> dict[str, Any] | str:
    """Return the JSON object that a text begins with, an empty one for no text, or what is wrong with it."""
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
