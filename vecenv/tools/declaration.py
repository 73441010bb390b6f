"""Declarations of tools: name, family, arguments by type, cost and effects, and the check of a call against them.

The forms of OpenAI and MCP are made from a declaration (`vecenv.tools.schemas`), ReAct's and JSON's instructions by
`vecenv.tools.tool_set.ToolSet`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vecenv.text.tool_calls import FAULT, ToolCall

Kind = type | tuple[str, ...]
"""Type of an argument: str, int (64 bits), float (finite), bool, list, dict, or the texts to choose from."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,15}\.?|[0-9]{0,15}\.[0-9]{1,15})(?:[eE][+-]?[0-9]{1,3})?")
_TRUTH = {"true": True, "false": False}
_KINDS: dict[Kind, str] = {
    **{str: "a text", int: "a whole number", float: "a finite number", bool: "true or false"},
    **{list: "a list", dict: "an object"},
}
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)


class ToolFault(Exception):
    """What is wrong with a call, told to the agent; a function of rows returns it in the place of that row's reply."""


Reply = str | ToolFault

Arguments = Mapping[str, Any]
"""Of a call, as `Tool.checked` returns them: equal calls have equal ones, whatever was left to defaults."""

LONGEST_REPLY = 20_000
"""Maximum characters of a reply; of a longer one the beginning is told."""


def told_fault(fault: ToolFault) -> str:
    """Return the text that tells an agent of a fault."""
    return f"{FAULT}{fault}"


@dataclass(frozen=True)
class Tool:
    """Declaration of a tool; those of a family are enabled together, and ``usage`` tells agents in one line.

    Attributes:
        arguments: kinds by name.
        optional: defaults of arguments that need not be given, by name; None only of a text, a list or an object.
        seconds: what a call costs in the time of the agent's world.
        changes: what a call may change, in words; empty for a tool that only tells.
        acts: whether a call is the agent's answer, whose words the tool's function returns: it is read and carried out
            as if the agent had written them.

    Raises:
        ValueError: the name or an argument does not fit what agents may write, or a default its kind.
    """

    name: str
    family: str
    usage: str
    arguments: Mapping[str, Kind] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    changes: str = ""
    acts: bool = False

    def __post_init__(self) -> None:
        for name in (self.name, *self.arguments):
            if not _NAME.fullmatch(name):
                raise ValueError(f"tool {self.name!r}: {name!r} is no name of at most 64 letters, digits, _, . and -")
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"tool {self.name!r}: seconds must be at least 0, got {self.seconds}")
        for name, kind in self.arguments.items():
            chosen = isinstance(kind, tuple) and kind and all(type(one) is str for one in kind)
            if not chosen and not (isinstance(kind, type) and kind in _KINDS):
                raise ValueError(f"tool {self.name!r}: {name} has the kind {kind!r}, which no argument has")
        for name, default in self.optional.items():
            if name not in self.arguments:
                raise ValueError(f"tool {self.name!r}: {name} is optional, but no argument")
            kind = self.arguments[name]
            left = default is None and kind not in (int, float, bool)
            fits = default in kind if isinstance(kind, tuple) else type(default) is kind
            if not left and not fits:
                raise ValueError(f"tool {self.name!r}: the default of {name} is not {_told(kind)}")

    @cached_property
    def needed(self) -> tuple[str, ...]:
        return tuple(name for name in self.arguments if name not in self.optional)

    def checked(self, call: ToolCall) -> dict[str, Any]:
        """Return the arguments of a call, those that are not given by default; raises a `ToolFault`."""
        if not call.arguments.keys() <= self.arguments.keys():
            unknown = [name for name in call.arguments if name not in self.arguments]
            takes = f"it takes {', '.join(self.arguments)}" if self.arguments else "it takes none"
            raise ToolFault(f"{call.name} takes no {str(unknown[0])[:40]!r}; {takes}")
        for name in self.needed:
            if name not in call.arguments:
                raise ToolFault(f"{call.name} needs {name}")
        given = {name: _value(name, value, self.arguments[name]) for name, value in call.arguments.items()}
        return {**self.optional, **given}

    def columns(self, given: Sequence[Mapping[str, Any]], device: torch.device | None = None) -> dict[str, Any]:
        """Return the arguments of M calls by name.

        Numbers and truth values as tensors, (M,): int64, float64 or bool; everything else as lists of M.
        """
        types: dict[Kind, torch.dtype] = {int: torch.int64, float: torch.float64, bool: torch.bool}
        columns: dict[str, Any] = {}
        for name, kind in self.arguments.items():
            values = [arguments[name] for arguments in given]
            columns[name] = torch.tensor(values, dtype=types[kind], device=device) if kind in types else values
        return columns


def rows_of(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the arguments of each of some calls, from a column of each argument."""
    values = {name: column.tolist() if isinstance(column, Tensor) else column for name, column in columns.items()}
    return [{name: column[place] for name, column in values.items()} for place in range(count)]


def _told(kind: Kind) -> str:
    return " or ".join(kind) if isinstance(kind, tuple) else _KINDS[kind]


def _value(name: str, given: object, kind: Kind) -> Any:  # noqa: ANN401
    """Return a value as declared, or raise a `ToolFault`."""
    # Most arguments are what they should be.
    if type(given) is kind and kind not in (int, float):
        return given
    if isinstance(kind, tuple):
        said = given.strip().lower() if isinstance(given, str) else None
        value: object = next((one for one in kind if one.lower() == said), None)
        if value is None:
            raise ToolFault(f"{name} must be {_told(kind)}")
        return value
    value = given if type(given) is kind else _as_declared(given, kind)
    # Python's bool is a subclass of int.
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ToolFault(f"{name} must be {_told(kind)}")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ToolFault(f"{name} must be a whole number of 64 bits")
    return value


def _as_declared(value: object, kind: type) -> object:
    """Return a number or a truth value written as a text, 5.0 for 5 or 5 for 5.0, or a text written as a number."""
    if kind is bool and isinstance(value, str):
        return _TRUTH.get(value.strip().lower(), value)
    if kind is float and isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    if kind is float and type(value) is int:
        return float(value) if abs(value) < 1 << 1023 else math.inf
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is str and type(value) is int:
        return str(value)
    return int(value) if kind is int and isinstance(value, str) and _WHOLE.fullmatch(value.strip()) else value
