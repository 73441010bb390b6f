"""Tools of a task for text agents: their declarations, instructions and checked arguments, and the calculator."""

from __future__ import annotations

import ast
import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from vecenv.text.tool_calls import FAULT, Form, Step, ToolCall, python_expression

Row = TypeVar("Row")

ALL = "all"
"""Stands for all tools of a task."""

LONGEST_EXPRESSION = 200
"""Maximum characters of an expression."""

_LARGEST = 1e100
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,15}\.?|[0-9]{0,15}\.[0-9]{1,15})(?:[eE][+-]?[0-9]{1,3})?")
_TRUTH = {"true": True, "false": False}
_KINDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
_OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    **{"abs": abs, "min": min, "max": max, "round": lambda value, digits=0.0: round(value, int(digits))},
    **{"sqrt": math.sqrt, "log": math.log, "exp": math.exp},
}


class ToolFault(Exception):
    """Error of a tool call, reported to the agent."""


@dataclass(frozen=True)
class Tool:
    """Declaration of a tool; those of a family are enabled together, and ``usage`` tells agents in one line.

    ``arguments`` have the type of each by name: ``str``, ``int``, ``float`` (finite) or ``bool``.
    """

    family: str
    usage: str
    arguments: Mapping[str, type]
    needed: tuple[str, ...] = ()


CALCULATOR = Tool("math", "the value of an expression; expression", {"expression": str}, ("expression",))
"""The calculator, whose function every `ToolSet` has."""


def offered_tools(tools: Mapping[str, Tool], names: Sequence[str]) -> tuple[str, ...]:
    """Resolve names of tools and families, or all, to tools; ValueError if one is unknown."""
    families = {tool.family for tool in tools.values()}
    unknown = [name for name in names if name not in tools and name not in families and name != ALL]
    if unknown:
        raise ValueError(
            f"unknown tools {', '.join(unknown)}; there are {', '.join(tools)}, the families "
            f"{', '.join(sorted(families))}, and {ALL}"
        )
    return tuple(name for name, tool in tools.items() if ALL in names or name in names or tool.family in names)


class ToolSet(ABC, Generic[Row]):
    """Tools of a task, each a function of a row and of the call's arguments.

    Args:
        offered: tools, families, or all.

    Attributes:
        tools: declarations by name.
        example: tool of the example in the instructions, if it is offered.
        turn: what an agent answers, such as a day.

    Raises:
        ValueError: there is no such tool.
    """

    tools: ClassVar[Mapping[str, Tool]]
    example: ClassVar[str]
    turn: ClassVar[str]

    def __init__(self, offered: Sequence[str]) -> None:
        self.offered = offered_tools(self.tools, offered)

    @abstractmethod
    def rows(self, state: Any) -> Sequence[Row]:  # noqa: ANN401
        """Return what the functions need of each row."""

    @property
    @abstractmethod
    def functions(self) -> Mapping[str, Callable[..., str]]:
        """Functions by name, which take a row and the arguments by name, and may raise a `ToolFault`."""

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
        return [self.result(row, call) for row, call in zip(self.rows(state), calls, strict=True)]

    def result(self, row: Row, call: ToolCall) -> str:
        try:
            arguments = self.arguments(call)
            if call.name == "calculator":
                return _calculated(**arguments)
            return self.functions[call.name](row, **arguments)
        except ToolFault as fault:
            return told_fault(fault)

    def arguments(self, call: ToolCall) -> dict[str, Any]:
        """Validate and return the arguments of a call, or raise a `ToolFault`."""
        if call.fault:
            raise ToolFault(call.fault)
        if call.name not in self.offered:
            raise ToolFault(f"there is no tool {call.name[:40]!r}; there are {', '.join(self.offered)}")
        tool = self.tools[call.name]
        unknown = [name for name in call.arguments if name not in tool.arguments]
        if unknown:
            takes = f"it takes {', '.join(tool.arguments)}" if tool.arguments else "it takes none"
            raise ToolFault(f"{call.name} takes no {str(unknown[0])[:40]!r}; {takes}")
        lacking = [name for name in tool.needed if name not in call.arguments]
        if lacking:
            raise ToolFault(f"{call.name} needs {lacking[0]}")
        given = {name: _as_declared(value, tool.arguments[name]) for name, value in call.arguments.items()}
        for name, value in given.items():
            # Python's bool is a subclass of int.
            kind = tool.arguments[name]
            if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
                raise ToolFault(f"{name} must be {_KINDS[kind]}")
        return given


def _as_declared(value: object, kind: type) -> object:
    """Return a number or a truth value written as a text, 5.0 for 5 or 5 for 5.0, or a text written as a number."""
    if kind is bool and isinstance(value, str):
        return _TRUTH.get(value.strip().lower(), value)
    if kind is float and (type(value) is int or (isinstance(value, str) and _NUMBER.fullmatch(value.strip()))):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is str and type(value) is int:
        return str(value)
    return int(value) if kind is int and isinstance(value, str) and _WHOLE.fullmatch(value.strip()) else value


def told_fault(fault: ToolFault) -> str:
    """Return the text that tells an agent of a fault."""
    return f"{FAULT}{fault}"


def _calculated(expression: str) -> str:
    try:
        return f"{calculate(expression):.10g}"
    except ValueError as error:
        raise ToolFault(str(error)) from error


class _NotUnderstoodError(ValueError):
    """An expression holds non-arithmetic syntax."""


def calculate(expression: str) -> float:
    """Return the value of an expression of numbers, ``+ - * / // % **``, brackets, and a few functions.

    The functions are abs, min, max, round, sqrt, log and exp.

    Raises:
        ValueError: the expression is not such, too long, or has no finite value.
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise ValueError(f"an expression may have {LONGEST_EXPRESSION} characters")
    try:
        value = _value(python_expression(expression.strip()))
    except _NotUnderstoodError:
        raise
    except (SyntaxError, ValueError, ArithmeticError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression.strip()!r} has no value") from error
    if not math.isfinite(value) or abs(value) > _LARGEST:
        raise ValueError(f"{expression.strip()!r} has no finite value")
    return value


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return float(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return float(_OPERATORS[type(node.op)](_value(node.operand)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args and not node.keywords:
        function = _FUNCTIONS.get(node.func.id)
        if function is not None:
            return float(function(*map(_value, node.args)))
    raise _NotUnderstoodError(f"only numbers, + - * / // % **, brackets and {', '.join(_FUNCTIONS)} are understood")
