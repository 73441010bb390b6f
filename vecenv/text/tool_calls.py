"""Parsing of tool calls in an agent's text; never raises.

Two formats are told to agents, set per run:

* ``json``: ``{"name": "price_history", "arguments": {"days": 5}}``
* ``react``: a line ``Action: price_history`` and after it, where there are arguments, ``Action Input: {"days": 5}``
  (Yao et al., "ReAct", arXiv 2210.03629, 2022). ``Final Answer:`` begins the answer. What comes first counts.

Whichever it is, a call is read in all of these forms, since models keep the one that they were trained on:

1.  **Marked.** Behind ``<tool_call>`` (Hermes, Qwen), ``<|tool_call|>`` (Granite, Phi), ``[TOOL_CALLS]`` (Mistral) or
    ``<|python_tag|>`` (Llama): an object, a list of them, ``name{...}`` or ``name(argument=value)``. Behind
    ``<function=name>`` (Llama, Qwen coders): an object, or ``<parameter=argument>value</parameter>``. The spellings of
    GLM, DeepSeek, Kimi, gpt-oss, LFM2, Cohere, Gemma, and ``<invoke name="name">`` (MiniMax and others) become these.
2.  **ReAct**, with ``json`` only if there is an ``Action Input``.
3.  **Alone**, also behind other words or in a code fence: an object or a list of objects, or a line
    ``name(argument=value)``.

An object has the name under ``name``, ``tool``, ``action`` or ``function``, and the arguments under ``arguments``,
``args``, ``parameters``, ``input`` or ``action_input``, as an object or as its JSON text, or not at all. OpenAI's
``function`` and ``tool_calls`` are opened. Any other text is an answer. Reasoning and the marks of turns
(`vecenv.text.dress`) are ignored with the calls in them. A malformed call is a call with an empty name and the fault.
The first call of a text is read; what else is in it, the call tells.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from vecenv.core.foreign_json import check_depth
from vecenv.text.dress import look_alikes, without_marks
from vecenv.text.reasoning import without_reasoning

if TYPE_CHECKING:
    from torch import Tensor

Form = Literal["json", "react"]

Step: TypeAlias = "Callable[[Sequence[int], Tensor], Any]"
"""Returns the states of some rows after hypothetical actions. Positions of M rows, (M, *action) -> batch (M,)."""

FAULT = "Error: "
"""Prefix of the result of an invalid call."""

FAILURE = "Failure: "
"""Prefix of the result of a valid call whose tool failed, which is no fault of the agent."""

LONGEST_CALL = 4_096
"""Maximum characters of a call; a longer one is invalid."""

_NAMES = ("name", "tool", "tool_name", "action", "function")
_ARGUMENTS = ("arguments", "args", "parameters", "input", "action_input")
_FLAGS = re.ASCII | re.IGNORECASE | re.MULTILINE
_STEP = re.compile(r"^[ \t>*#-]*+(Action|Final Answer)[ \t*]*+:", _FLAGS)
_INPUT = re.compile(r"^[ \t>*#-]*+Action Input[ \t*]*+:", _FLAGS)
_MARK = re.compile(r"<tool_calls?>|<\|tool_calls?\|>|\[TOOL_CALLS\]|<\|python_tag\|>|<function=([\w.-]{1,64})>", _FLAGS)
_CLOSED = re.compile(r"</tool_calls?>|<\|/tool_calls?\|>|</function>", _FLAGS)
_PARAMETER = re.compile(r"<parameter=([\w.-]{1,64})>([^<]*+)</parameter>", _FLAGS)
_OBJECT = re.compile(r"(?:\[\s*+)?\{\s*+\"")
_KNOWN = re.compile(rf'\[?\s*\{{\s*"(?:{"|".join(_NAMES)}|function_call|tool_calls)"')
_NAMED = re.compile(r"([a-z_][\w.]*+)\s*+(?:\[ARGS\]\s*+)?(?=\{)", _FLAGS)
_PYTHON = re.compile(r"^[ \t>*`-]*+(\[?[a-z_]\w*+\(.*\)\]?)[ \t`.]*$", re.ASCII | re.MULTILINE)
_WARNED = re.compile(r"\\|[0-9][a-z]", _FLAGS)
_FENCE = re.compile(r"\A\s*+```\w*+", _FLAGS)
_BARE_KEY = re.compile(r"\"[^\"]*+\"|\b([a-z_]\w*+)(?=\s*+:)", _FLAGS)
_BAR, _GAP = "[|\uff5c]", "[_\u2581]"
_SPELLINGS = tuple(
    (re.compile(spelling.replace("%", _BAR).replace("~", _GAP), _FLAGS), known)
    for spelling, known in (
        (r"<(/?)%DSML%", r"<\1"),
        (r"<(?:minimax:tool_call|function_calls|%tool~calls~(?:section~)?begin%)>", "<tool_calls>"),
        (
            r"</(?:minimax:tool_call|function_calls|invoke)>|<%tool~calls?~(?:section~)?end%>|<%END_ACTION%>|<%call%>"
            r"|<tool_call%>|<end_function_call>",
            "</tool_call>",
        ),
        (r"<%(?:tool_call_start|START_ACTION)%>", "<tool_call>"),
        (
            r"<%tool~call~begin%>(?:\s*+function<%tool~sep%>)?\s*+(?:functions\.)?([\w.-]{1,64})(?::\d++)?",
            r"<function=\1>",
        ),
        (
            r"(?:<%channel%>\w{1,16}\s++)?to=functions\.([\w.-]{1,64})[^<]{0,16}+(?:<%constrain%>\s*+json\s*+)?<%message%>",
            r"<function=\1>",
        ),
        (r"<%tool~sep%>|<%tool_call_argument_begin%>", ""),
        (r"<invoke name=\"([\w.-]{1,64})\">", r"<function=\1>"),
        (r"<parameter name=\"([\w.-]{1,64})\"(?: string=\"\w{1,5}\")?>", r"<parameter=\1>"),
        (r"<arg_key>\s*+([\w.-]{1,64})\s*+</arg_key>\s*+<arg_value>", r"<parameter=\1>"),
        (r"</arg_value>", "</parameter>"),
        (r"<%\"%>|<escape>", '"'),
        (
            r"<(?:%tool_call|start_function_call)>\s*+call:([\w.-]{1,64}+\{[^<]*+)",
            lambda call: "<tool_call>" + _BARE_KEY.sub(lambda key: f'"{key[1]}"' if key[1] else key[0], call[1]),
        ),
        (r"<tool_call>\s*+([a-z_][\w.-]{0,63}+)\s*+(?=<parameter=|</tool_call>)", r"<function=\1>"),
    )
)
"""What families write for the marks of a call, and the known mark of each."""
_BETWEEN = re.compile(r"[\s,;]*+")
_FINAL = "FINAL ANSWER"

NO_CALL = "a call must be a JSON object"
_TWICE = "a key stands twice in a call"
_TOO_LONG = f"a call may have {LONGEST_CALL} characters"


class Said(str):
    """The result of a call that is an answer: the answer, in the words of the task."""


class CallName(NamedTuple):
    """Which call of which episode it is: rows of a group have episodes of one name, whatever the row."""

    row: int
    seed: int
    env_id: int
    episode: int
    number: int = 0


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool; a malformed one has an empty name and the fault.

    Attributes:
        further: number of other calls in the text.
        beside: what the text has beside its calls.
        at: which call of which episode it is; None outside of a dialogue.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    further: int = 0
    beside: str = field(default="", compare=False, repr=False)
    at: CallName | None = field(default=None, compare=False, repr=False)


class Tools(Protocol):
    """Tools of a task for text agents.

    Attributes:
        outcomes: names and units of what `counted` tells of an episode beside the outcomes of the task.
    """

    outcomes: Mapping[str, str]

    def instructions_of(self, form: Form, most: int, names: Sequence[CallName]) -> list[str]:
        """Return the instructions of episodes: the tools, the call format, and the maximum number of calls per day."""
        ...

    def counted(self, name: CallName) -> Mapping[str, float]:
        """Return outcomes of the tools in a row's episode so far, by name."""
        ...

    def results(self, state: Any, calls: Sequence[ToolCall], step: Step) -> list[str]:  # noqa: ANN401
        """Return the result text of each row's call, or the answer that it is (`Said`); never raises.

        ``step`` makes a hypothetical step of some rows.
        """
        ...


def read_call(text: str, form: Form) -> ToolCall | None:
    """Return the first tool call in a text, or None for an answer."""
    text = without_reasoning(without_marks(text))
    if "<" in text:
        for spelling, known in _SPELLINGS:
            text = spelling.sub(known, text)
    call = None
    for said in dict.fromkeys((text, look_alikes(text))):
        call = _first(said, form)
        if call is not None and not call.fault:
            break
    return call


def read_answer(text: str, form: Form) -> str:
    """Return the answer part of a text without a call; it may hold reasoning."""
    if form == "react":
        said = without_reasoning(text)
        step = _STEP.search(said)
        if step is not None and step[1].upper() == _FINAL:
            return said[step.end() :]
    return text


def _first(text: str, form: Form) -> ToolCall | None:
    for calls, beside in (find(text, form) for find in (_marked, _react, _alone)):
        if calls:
            return replace(calls[0], further=len(calls) - 1, beside=beside.strip())
    return None


def _marked(text: str, _: Form) -> tuple[list[ToolCall], str]:
    """Return the calls behind marks, and what stands beside them."""
    marks = list(_MARK.finditer(text))
    if not marks:
        return [], text
    calls: list[ToolCall] = []
    beside = [text[: marks[0].start()]]
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(text)], strict=True):
        block, *after = _CLOSED.split(text[mark.end() : end], maxsplit=1)
        beside += [_CLOSED.sub("", part) for part in after]
        if mark[1]:
            calls.append(_function(mark[1], block.strip()))
        elif block.strip():
            known = [] if _PYTHON.match(block) else _objects(_FENCE.sub("", block, count=1).strip())[0]
            calls += known or _python(block) or [ToolCall("", fault=NO_CALL)]
    return calls or [ToolCall("", fault=NO_CALL)], " ".join(beside)


def _react(text: str, form: Form) -> tuple[list[ToolCall], str]:
    """Return the first call in steps of ReAct, as often as there are some, and the final answer beside them."""
    steps = list(_STEP.finditer(text))
    if not steps or steps[0][1].upper() == _FINAL:
        return [], text
    first, *others = steps
    said = text[first.end() : others[0].start() if others else None]
    following = _INPUT.search(said)
    if following is None and form != "react":
        return [], text
    final = next((place for place, step in enumerate(others) if step[1].upper() == _FINAL), None)
    beside = "" if final is None else text[others[final].end() :]
    name, given = (said, "") if following is None else (said[: following.start()], said[following.end() :])
    name = name[: LONGEST_CALL + 1].strip().partition("\n")[0].strip(" \t*`\"'.")
    given = _FENCE.sub("", given.lstrip(" \t\n*"), count=1).strip()
    known = _python(name) if following is None else []
    arguments = _decoded(given)[0] if given else {}
    call = known[0] if known else _checked(name, arguments, "Action Input must be a JSON object")
    return [call] * (1 + len(others[:final])), beside


def _alone(text: str, form: Form) -> tuple[list[ToolCall], str]:
    """Return the calls in objects without a mark, or in lines of Python, and what stands beside them."""
    begun = _OBJECT.search(text)
    whole = form == "json" and text.lstrip().startswith("{")
    if begun or whole:
        start = begun.start() if begun else 0
        calls, end = _objects(text[start:].lstrip())
        named = [call for call in calls if not call.fault] or whole or _KNOWN.match(text, start)
        if named:
            return calls or [ToolCall("", fault=NO_CALL)], f"{text[:start]}\n{text[start + end :]}"
    for line in _PYTHON.finditer(text):
        if calls := _python(line[1]):
            return calls, f"{text[: line.start()]}\n{text[line.end() :]}"
    return [], text


def _objects(text: str) -> tuple[list[ToolCall], int]:
    """Return the calls in the objects and lists that a text begins with, and where they end."""
    named = _NAMED.match(text)
    if named is not None:
        arguments, end = _decoded(text, named.end())
        return [_checked(named[1], arguments)], end
    calls: list[ToolCall] = []
    end = 0
    while text[end : end + 1] in ("{", "["):
        value, end = _decoded(text, end)
        if isinstance(value, str):
            return calls or [ToolCall("", fault=value)], end
        calls += _of(value)
        end = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]
    return calls, end


def _of(value: object) -> list[ToolCall]:
    """Return the calls in a JSON value."""
    if isinstance(value, list):
        return [call for part in value for call in _of(part)]
    if not isinstance(value, dict):
        return [ToolCall("", fault=NO_CALL)]
    for wrapper in ("tool_calls", "function_call", "function"):
        if isinstance(value.get(wrapper), dict | list):
            return _of(value[wrapper])
    names, given = ([value[key] for key in keys if key in value] for keys in (_NAMES, _ARGUMENTS))
    if not names or not all(isinstance(name, str) for name in names):
        return [ToolCall("", fault="a call needs the name of a tool")]
    if any(name != names[0] for name in names) or any(arguments != given[0] for arguments in given):
        return [ToolCall("", fault="a call names two tools, or two lots of arguments")]
    return [_checked(names[0].strip(), given[0] if given else {})]


def _function(name: str, block: str) -> ToolCall:
    """Return the call of a block ``<function=name>``."""
    given = [(key, value.strip()) for key, value in _PARAMETER.findall(block)]
    if given or not block:
        return _distinct(name, given)
    return _checked(name, _decoded(_FENCE.sub("", block, count=1).strip())[0])


def _python(text: str) -> list[ToolCall]:
    """Return the calls of a line ``name(argument=value)``, or of a list of such; none for anything else."""
    if len(text) > LONGEST_CALL:
        return []
    try:
        node = python_expression(text.strip(" \t\n`"))
        nodes = node.elts if isinstance(node, ast.List) else [node]
        return [_python_call(call) for call in nodes if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _python_call(call: ast.Call) -> ToolCall:
    assert isinstance(call.func, ast.Name)
    if call.args or not all(each.arg for each in call.keywords):
        return ToolCall("", fault="arguments must have their names, as in name(argument=value)")
    return _distinct(call.func.id, [(str(each.arg), ast.literal_eval(each.value)) for each in call.keywords])


def python_expression(text: str) -> ast.expr:
    """Return the tree of an expression; raises as `ast.parse` does, but prints none of its warnings."""
    # Only where there may be some: afterwards every other warning counts as new.
    with warnings.catch_warnings(action="ignore") if _WARNED.search(text) else nullcontext():
        return ast.parse(text, mode="eval").body


def _decoded(text: str, start: int = 0) -> tuple[Any, int]:
    """Return the JSON object, list, or object in a JSON text at a place and where it ends, or what is wrong."""
    try:
        check_depth(text, start)
        value, end = _DECODER.raw_decode(text, start)
        if isinstance(value, str):
            check_depth(value)
            value = _DECODER.decode(value)
    except _TwiceError:
        return _TWICE, len(text)
    except ValueError:
        return _TOO_LONG if len(text) - start > LONGEST_CALL else NO_CALL, len(text)
    return (value, end) if end - start <= LONGEST_CALL else (_TOO_LONG, end)


def _checked(name: str, arguments: object, otherwise: str = "arguments must be a JSON object") -> ToolCall:
    """Return a call whose arguments are an object, its JSON text, or what is wrong with them."""
    if isinstance(arguments, str):
        arguments = _decoded(arguments)[0] if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return ToolCall("", fault=arguments if arguments == _TOO_LONG else otherwise)
    return ToolCall(name, arguments)


def _distinct(name: str, arguments: list[tuple[str, Any]]) -> ToolCall:
    """Return a call with arguments that must differ in name."""
    try:
        return ToolCall(name, _once(arguments))
    except _TwiceError:
        return ToolCall("", fault=_TWICE)


class _TwiceError(ValueError):
    """An object has a key twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    told = dict(pairs)
    if len(told) < len(pairs):
        raise _TwiceError
    return told


_DECODER = json.JSONDecoder(object_pairs_hook=_once)
