"""The calculator: a tool that any set of tools can have, and the arithmetic that it understands."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence

from vecenv.text.tool_calls import python_expression
from vecenv.tools.declaration import ToolFault
from vecenv.tools.tool_set import Callers, Reply, ToolSet, each, tool

LONGEST_EXPRESSION = 200
"""Maximum characters of an expression."""

_LARGEST = 1e100

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


class Calculator(ToolSet):
    """Tools with a calculator, which stands behind those of a subclass."""

    @tool("math", "the value of an expression; expression", {"expression": str})
    def calculator(self, callers: Callers, expression: Sequence[str]) -> list[Reply]:
        return each(_calculated, expression)


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
