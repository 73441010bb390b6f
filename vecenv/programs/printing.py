"""Programs as text in normal form, which parses to the same program."""

from __future__ import annotations

import numpy as np

from vecenv.programs.expressions import (
    ARITHMETIC,
    COMPARISONS,
    LONGEST_WINDOW,
    WINDOWS,
    Apply,
    Expression,
    Name,
    Number,
    Parameter,
    Program,
    Truth,
    names_in,
    parts_of,
)

_IF, _OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN, _ATOM = range(9)
"""How tightly operators bind, as in Python."""


def printed(program: Program) -> str:
    """Return the normal form of a program, a line for each name."""
    return "".join(f"{name} = {line_text(line)}\n" for name, line in program.lines.items())


def hints(program: Program) -> list[str]:
    """Return sentences on what is valid but may be meant otherwise: a maximum or minimum with what looks like a window.

    Elsewhere ``max(close, 20)`` is the highest of 20 bars; here it is the larger of two numbers of one unit.
    """
    account = {name for name, feature in program.vocabulary.features.items() if feature.account}
    found = {}
    for name, line in program.lines.items():
        if names_in(line) & account:
            account.add(name)
        for part in parts_of(line):
            match part:
                case Apply("min" | "max" as kind, (operand, Number(bars))) if (
                    bars == int(bars)
                    and 2 <= bars <= LONGEST_WINDOW
                    and names_in(operand)
                    and not names_in(operand) & account
                ):
                    text, word = line_text(part), "larger" if kind == "max" else "smaller"
                    of_bars = f"{kind}({line_text(operand)}, bars={bars:g})"
                    found[text] = f"{text} is the {word} one of two numbers; of the last {bars:g} bars it is {of_bars}"
    return list(found.values())


def line_text(line: Expression | Parameter) -> str:
    """Return what stands right of a line's name."""
    if isinstance(line, Parameter):
        unit = "" if line.unit is None else f', "{line.unit}"'
        return f"param({number_text(line.value)}{unit})"
    return _bound(line)[0]


def number_text(value: float) -> str:
    """Return the shortest decimal that is read as the same float32."""
    whole = int(value) if abs(value) < 2**24 else 0.5
    return str(whole) if value == whole and not (value == 0 and np.signbit(value)) else str(np.float32(value))


def _bound(line: Expression) -> tuple[str, int]:
    """Return the text of an expression and how tightly its outermost operator binds."""
    if isinstance(line, Number):
        return number_text(line.value), _SIGN if np.signbit(line.value) else _ATOM
    if isinstance(line, Truth):
        return str(line.value), _ATOM
    if isinstance(line, Name):
        return line.name, _ATOM
    operation, operands = line.operation, line.operands
    if operation in COMPARISONS:
        left, right = (_within(one, _SUM) for one in operands)
        return f"{left} {COMPARISONS[operation]} {right}", _COMPARISON
    if operation in ARITHMETIC:
        level = _SUM if operation in ("add", "sub") else _PRODUCT
        return f"{_within(operands[0], level)} {ARITHMETIC[operation]} {_within(operands[1], level + 1)}", level
    if operation in ("and", "or"):
        level = _AND if operation == "and" else _OR
        return f"{_within(operands[0], level)} {operation} {_within(operands[1], level + 1)}", level
    if operation == "not":
        return f"not {_within(operands[0], _NOT)}", _NOT
    if operation == "neg":
        return f"-{_within(operands[0], _SIGN)}", _SIGN
    if operation == "if":
        condition, chosen, other = operands
        return f"{_within(chosen, _OR)} if {_within(condition, _OR)} else {_within(other, _IF)}", _IF
    return _call(line), _ATOM


def _call(line: Apply) -> str:
    arguments = [_bound(operand)[0] for operand in line.operands]
    if line.operation in WINDOWS:
        arguments.append(f"bars={line.window}")
    return f"{WINDOWS.get(line.operation, line.operation)}({', '.join(arguments)})"


def _within(line: Expression, least: int) -> str:
    text, level = _bound(line)
    return text if level >= least else f"({text})"
