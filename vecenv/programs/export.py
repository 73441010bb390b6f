"""A program as a Python module that needs NumPy alone, with the same numbers."""

from __future__ import annotations

from vecenv.programs.expressions import COMPARISONS, Expression, Name, Number, Parameter, Program, Truth
from vecenv.programs.printing import line_text, number_text

_TEMPLATE = '''\
"""A strategy:

{text}"""

import numpy as np

F = np.float32


def divided(left, right):
    return np.where(right == 0, F(0), left / np.where(right == 0, F(1), right))


def smaller(left, right):
    return np.minimum(left, right) + F(0)


def larger(left, right):
    return np.maximum(left, right) + F(0)


def past(number, bars, count):
    """Return what was known so many bars ago, (T, K)."""
    number = np.broadcast_to(number, count)
    before = np.full((min(bars, len(number)), number.shape[1]), np.nan, number.dtype)
    return np.concatenate([before, number[: len(number) - len(before)]])


def delta(number, bars, count):
    return number - past(number, bars, count)


def windows(number, bars, count):
    return [past(number, ago, count) for ago in range(bars - 1, -1, -1)]


def mean_of(values):
    total = np.zeros(values[0].shape)
    for value in values:
        total = total + value.astype(np.float64)
    return total / len(values)


def mean(number, bars, count):
    return mean_of(windows(number, bars, count)).astype(F)


def std(number, bars, count):
    values = windows(number, bars, count)
    middle, squares = mean_of(values), np.zeros(values[0].shape)
    for value in values:
        squares = squares + (value - middle) * (value - middle)
    return np.sqrt(squares / (len(values) - 1)).astype(F)


def highest(number, bars, count):
    return np.maximum.reduce(windows(number, bars, count)) + F(0)


def lowest(number, bars, count):
    return np.minimum.reduce(windows(number, bars, count)) + F(0)


def rank(number, bars, count):
    number = np.broadcast_to(number, count)
    below = (number[:, None, :] < number[:, :, None]).sum(-1).astype(F)
    equal = (number[:, None, :] == number[:, :, None]).sum(-1).astype(F)
    known = (~np.isnan(number)).sum(-1, keepdims=True).astype(F)
    return np.where(np.isnan(number), number, (below + (equal + F(1)) * F(0.5)) / np.maximum(known, F(1)))


def strategy(features, account):
    """Return the outputs for the last bar, (K,).

    Args:
        features: by name float32 arrays (T, K) up to now: {features}.
        account: by name float32 arrays (K,) of now: {account}.
    """
    count = np.broadcast_shapes(*(value.shape for value in (*features.values(), *account.values())), (1, 1))
    with np.errstate(all="ignore"):
{lines}
    return {{{outputs}}}
'''

_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", **COMPARISONS, "and": "&", "or": "|"}
_CALLED = {"div": "divided", "min": "smaller", "max": "larger", "if": "np.where", "abs": "np.abs", "sign": "np.sign"}


def exported(program: Program) -> str:
    """Return the text of a module whose function ``strategy`` is a program."""
    unused, features = set(program.unused()), program.vocabulary.features
    lines = [f"n_{name} = {_text(line, program)}" for name, line in program.lines.items() if name not in unused]
    named = {kind: [name for name, one in features.items() if one.account == kind] for kind in (False, True)}
    return _TEMPLATE.format(
        text="".join(f"{name} = {line_text(line)}\n" for name, line in program.lines.items()),
        features=", ".join(named[False]),
        account=", ".join(named[True]),
        lines="\n".join(f"        {line}" for line in lines),
        outputs=", ".join(f'"{name}": np.broadcast_to(n_{name}, count)[-1]' for name in program.vocabulary.outputs),
    )


def _text(line: Expression | Parameter, program: Program) -> str:
    """Return an expression in NumPy's terms."""
    if isinstance(line, Number | Parameter):
        return f"F({number_text(line.value)})"
    if isinstance(line, Truth):
        return f"np.bool_({line.value})"
    if isinstance(line, Name):
        if line.name in program.lines:
            return f"n_{line.name}"
        return f'{"account" if program.vocabulary.features[line.name].account else "features"}["{line.name}"]'
    operation, operands = line.operation, [_text(operand, program) for operand in line.operands]
    if operation in _SYMBOLS:
        return f"({operands[0]} {_SYMBOLS[operation]} {operands[1]})"
    if operation == "clip":
        return f"smaller(larger({operands[0]}, {operands[1]}), {operands[2]})"
    if line.window or operation == "rank":
        name = "past" if operation == "lag" else operation
        return f"{name}({operands[0]}, {line.window}, count)"
    if operation in ("neg", "not"):
        return f"({'-' if operation == 'neg' else '~'}{operands[0]})"
    if operation == "plain":
        return operands[0]
    return f"{_CALLED[operation]}({', '.join(operands)})"
