"""From text to a checked program: Python's grammar, read by `ast`, with types and units; nothing is ever evaluated.

Whatever is wrong is a `ProgramError` of one sentence with line and column.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from vecenv.programs.expressions import (
    ARITHMETIC,
    COMPARISONS,
    FUNCTIONS,
    LONGEST_WINDOW,
    WINDOWS,
    Apply,
    Expression,
    Name,
    Number,
    Parameter,
    Program,
    Truth,
    Vocabulary,
)
from vecenv.programs.limits import DEEPEST, MOST_CHARACTERS, MOST_LINES
from vecenv.programs.printing import line_text
from vecenv.programs.units import NONE, UNITS, Unit, common, product, quotient

LARGEST = float(np.finfo(np.float32).max)

_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_COMPARED = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
_OTHER = {ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}
_WINDOWED = {name: operation for operation, name in WINDOWS.items()}
_CALLED = [*FUNCTIONS, *(name for name in _WINDOWED if name not in FUNCTIONS), "rank", "param"]
_OTHERWISE = {
    "sma": "mean",
    "average": "mean",
    "avg": "mean",
    "stdev": "std",
    "shift": "lag",
    "ref": "lag",
    "diff": "delta",
}
"""Names of functions elsewhere."""

_WORDS = {
    "Attribute": "a dot",
    "Subscript": "an index, as lag(number, bars=n) reads the past,",
    "AugAssign": "a change of a name",
    "AnnAssign": "a name with a type",
    "If": "a statement: write name = one if condition else other",
    "For": "a loop",
    "While": "a loop",
    "FunctionDef": "a function",
    "Return": "a return",
    "Pow": "the operator **",
    "Mod": "the operator %",
    "FloorDiv": "the operator //",
    "BitAnd": "the operator &, which is written and,",
    "BitOr": "the operator |, which is written or,",
    "Invert": "the operator ~, which is written not,",
    "Expr": "an expression alone",
}
"""What is not in the language, in words."""

_SYMBOLS = {**ARITHMETIC, **COMPARISONS, "if": "if ... else"}


class ProgramError(ValueError):
    """What is wrong with a text, with its line and column, from 1."""

    def __init__(self, sentence: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {sentence}")
        self.line, self.column = line, column


@dataclass(frozen=True)
class _Value:
    """An expression with what is known of its values: ``unit`` of numbers, and whether they depend on the account."""

    line: Expression
    truth: bool = False
    unit: Unit | None = None
    account: bool = False

    @property
    def kind(self) -> str:
        return "true or false" if self.truth else "a number" if self.unit is None else str(self.unit)


def parsed(text: str, vocabulary: Vocabulary) -> Program:
    """Return the program that a text says, in which every line is checked; ProgramError if it says none."""
    statements = _statements(text)
    return _Reader(re.split("\r\n|\r|\n", text), vocabulary).program(statements)


def last_name(text: str) -> str:
    """Return the name that ends a text, empty if it ends otherwise; ProgramError if it cannot be read."""
    match _statements(text):
        case [*_, ast.Assign(targets=[ast.Name(id=name)])]:
            return name
    return ""


def _statements(text: str) -> list[ast.stmt]:
    if len(text) > MOST_CHARACTERS:
        raise ProgramError(f"a program has at most {MOST_CHARACTERS:,} characters, this one {len(text):,}", 1, 1)
    try:
        with warnings.catch_warnings():
            # Python's own opinions of odd texts.
            warnings.simplefilter("ignore")
            return ast.parse(text).body
    except SyntaxError as error:
        raise ProgramError(f"this is not Python's syntax: {error.msg}", error.lineno or 1, error.offset or 1) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        # Null bytes, halves of characters, numbers of thousands of digits, or thousands of brackets.
        raise ProgramError(f"this cannot be read: {str(error) or 'it is nested too deeply'}", 1, 1) from None


class _Reader:
    """Reads the lines of one text; ``known`` are the names of the lines before."""

    def __init__(self, lines: list[str], vocabulary: Vocabulary) -> None:
        self.lines, self.vocabulary = lines, vocabulary
        self.known: dict[str, _Value] = {
            name: _Value(Name(name), unit=feature.unit, account=feature.account)
            for name, feature in vocabulary.features.items()
        }
        self.defined: dict[str, int] = {}

    def program(self, statements: Sequence[ast.stmt]) -> Program:
        if len(statements) > MOST_LINES:
            self.refuse(statements[MOST_LINES], f"a program has at most {MOST_LINES} lines")
        lines: dict[str, Expression | Parameter] = {}
        for statement in statements:
            name, value = self.named(statement)
            if _function(value) == "param":
                lines[name] = parameter = self.parameter(value)
                self.known[name] = _Value(Name(name), unit=parameter.unit)
            else:
                found = self.value(value, 1)
                if name in self.vocabulary.outputs:
                    self.check_output(value, name, found)
                lines[name] = found.line
                self.known[name] = _Value(Name(name), found.truth, found.unit, found.account)
            self.defined[name] = statement.lineno
        outputs = list(self.vocabulary.outputs)
        if set(list(lines)[-len(outputs) :]) != set(outputs):
            ends = " and ".join(f"{name} = ..." for name in outputs)
            raise ProgramError(f"a program ends with {ends}", max(1, len(self.lines)), 1)
        return Program(lines, self.vocabulary, {name: self.known[name].kind for name in lines})

    def named(self, statement: ast.stmt) -> tuple[str, ast.expr]:
        """Return name and expression of a line."""
        if not isinstance(statement, ast.Assign):
            self.refuse(statement, f"a line is name = expression, not {_told(statement)}")
        if len(statement.targets) > 1 or not isinstance(statement.targets[0], ast.Name):
            self.refuse(statement, "a line gives one name to one expression")
        name = statement.targets[0].id
        if name in self.defined:
            self.refuse(statement, f"{name} has its value from line {self.defined[name]}; choose another name")
        if name in self.known or name in _CALLED:
            what = "a feature" if name in self.known else "a function"
            self.refuse(statement, f"{name} is {what}; choose another name")
        return name, statement.value

    def check_output(self, node: ast.expr, name: str, found: _Value) -> None:
        wanted = self.vocabulary.outputs[name]
        if found.truth:
            self.refuse(node, f"{name} is a number, and this is true or false")
        try:
            common(found.unit, wanted)
        except ValueError:
            plain = found.unit == NONE and str(wanted) in UNITS
            how = f'; a number has a unit as in size = param(70, "{wanted}"), size * ...' if plain else ""
            self.refuse(node, f"{name} is in {wanted}, and {self.text(node)} in {found.unit}{how}")

    def parameter(self, node: ast.expr) -> Parameter:
        assert isinstance(node, ast.Call)
        if node.keywords or not 1 <= len(node.args) <= 2:
            self.refuse(node, 'a parameter is param(number) or param(number, "unit")')
        value = self.value(node.args[0], 1)
        if not isinstance(value.line, Number):
            self.refuse(node.args[0], "the value of a parameter is a number")
        if len(node.args) == 1:
            return Parameter(value.line.value)
        unit = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
        if not isinstance(unit, str) or unit not in UNITS:
            near = nearest(unit, UNITS) if isinstance(unit, str) else ""
            self.refuse(node.args[1], f"this is no unit{near}; there are {', '.join(UNITS)}")
        return Parameter(value.line.value, UNITS[unit])

    def value(self, node: ast.expr, depth: int) -> _Value:
        """Return a checked expression."""
        if depth > DEEPEST:
            self.refuse(node, f"more than {DEEPEST} operations stand within each other; give a part a name of its own")
        if isinstance(node, ast.Constant):
            return self.constant(node)
        if isinstance(node, ast.Name):
            return self.name(node)
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Invert):
            return self.unary(node, depth)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self.combined(node, _BINARY[type(node.op)], self.numbers([node.left, node.right], depth))
        if isinstance(node, ast.BoolOp):
            return self.logical("and" if isinstance(node.op, ast.And) else "or", node.values, depth)
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARED for op in node.ops):
            return self.compared(node, depth)
        if isinstance(node, ast.IfExp):
            return self.chosen(node, depth)
        if isinstance(node, ast.Call):
            return self.call(node, depth)
        self.refuse(node, f"{_told(node)} is not in the language")

    def constant(self, node: ast.Constant) -> _Value:
        if isinstance(node.value, bool):
            return _Value(Truth(node.value), truth=True)
        if not isinstance(node.value, int | float):
            self.refuse(node, f"{_told(node)} is not in the language")
        if abs(node.value) > LARGEST:
            self.refuse(node, f"a number is at most {LARGEST:.4g}")
        return _Value(Number(float(np.float32(node.value))))

    def name(self, node: ast.Name) -> _Value:
        if node.id in self.known:
            return self.known[node.id]
        if node.id in self.vocabulary.outputs or node.id in _CALLED:
            what = "a function" if node.id in _CALLED else "given no value before this line"
            self.refuse(node, f"{node.id} is {what}")
        near = nearest(node.id, self.known) or f"; there are {', '.join(self.known)}"
        self.refuse(node, f"unknown name {node.id}{near}")

    def unary(self, node: ast.UnaryOp, depth: int) -> _Value:
        if isinstance(node.op, ast.Not):
            operand = self.truth(node.operand, depth + 1)
            return _Value(Apply("not", (operand.line,)), truth=True, account=operand.account)
        (operand,) = self.numbers([node.operand], depth)
        if isinstance(node.op, ast.UAdd):
            return operand
        if isinstance(operand.line, Number):
            return _Value(Number(-operand.line.value))
        return self.combined(node, "neg", [operand])

    def compared(self, node: ast.Compare, depth: int) -> _Value:
        """Return a comparison; a chain is its pairs, joined by ``and``."""
        values = self.numbers([node.left, *node.comparators], depth)
        pairs = []
        for place, op in enumerate(node.ops):
            left, right = values[place : place + 2]
            operation = _COMPARED[type(op)]
            self.same_unit([node.left, *node.comparators][place], _SYMBOLS[operation], [left, right])
            pairs.append(Apply(operation, (left.line, right.line)))
        return _Value(_folded("and", pairs), truth=True, account=any(value.account for value in values))

    def logical(self, operation: str, nodes: Sequence[ast.expr], depth: int) -> _Value:
        values = [self.truth(node, depth + 1) for node in nodes]
        line = _folded(operation, [value.line for value in values])
        return _Value(line, truth=True, account=any(value.account for value in values))

    def chosen(self, node: ast.IfExp, depth: int) -> _Value:
        condition = self.truth(node.test, depth + 1)
        values = [self.value(one, depth + 1) for one in (node.body, node.orelse)]
        if values[0].truth != values[1].truth:
            self.refuse(node, "both parts of if ... else are numbers, or both are true or false")
        unit = None if values[0].truth else self.same_unit(node, "if ... else", values)
        line = Apply("if", (condition.line, *(value.line for value in values)))
        return _Value(line, values[0].truth, unit, any(value.account for value in (condition, *values)))

    def call(self, node: ast.Call, depth: int) -> _Value:
        name = _function(node)
        if name is None:
            self.refuse(node, "a function is called by its name alone, as in mean(number, bars=n)")
        if name not in _CALLED:
            near = nearest(_OTHERWISE.get(name.lower(), name), _CALLED)
            self.refuse(node, f"unknown function {name}{near}; there are {', '.join(_CALLED)}")
        if name == "param":
            self.refuse(node, "a parameter has a line of its own: name = param(number)")
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            self.refuse(node, "stars are not in the language")
        operation = _WINDOWED.get(name) if node.keywords or name not in FUNCTIONS else None
        if operation is not None or name == "rank":
            return self.past(node, operation or name, depth)
        count = len(node.args)
        least = FUNCTIONS[name]
        if count != least and not (name in ("min", "max") and count > least):
            more = " or more" if name in ("min", "max") else ""
            self.refuse(node, f"{name} has {least}{more} argument{'s' if least > 1 else ''}, this has {count}")
        values = self.numbers(node.args, depth)
        found = values[0]
        if name not in ("min", "max"):
            return self.combined(node, name, values)
        for value in values[1:]:
            found = self.combined(node, name, [found, value])
        return found

    def past(self, node: ast.Call, operation: str, depth: int) -> _Value:
        """Return a function of the past, or the rank over symbols, of what does not depend on the account."""
        name = WINDOWS.get(operation, operation)
        words = [keyword.arg for keyword in node.keywords]
        windows = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
        form = "rank(number)" if operation == "rank" else f"{name}(number, bars=n)"
        if not node.args or words not in ([], ["bars"]) or len(windows) != (operation != "rank"):
            self.refuse(node, f"it is called {form}")
        (value,) = self.numbers(node.args[:1], depth)
        if value.account:
            self.refuse(node, f"{name} reads what is known ahead, and {self.text(node.args[0])} depends on the account")
        least = 2 if operation == "std" else 1
        window = self.window(windows[0], name, least) if windows else 0
        unit = NONE if operation == "rank" else value.unit
        return _Value(Apply(operation, (value.line,), window), unit=unit)

    def window(self, node: ast.expr, name: str, least: int) -> int:
        future = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        if future:
            self.refuse(node, f"the window of {name} is of past bars: a negative one would read the future")
        value = node.value if isinstance(node, ast.Constant) else None
        if type(value) is not int or not least <= value <= LONGEST_WINDOW:
            limits = f"from {least} to {LONGEST_WINDOW}"
            self.refuse(node, f"the window of {name} is a whole number {limits}, written as a number")
        return value

    def combined(self, node: ast.expr, operation: str, values: Sequence[_Value]) -> _Value:
        """Return an operation on numbers, with its unit."""
        units = [value.unit for value in values]
        if operation in ("mul", "div"):
            unit = (product if operation == "mul" else quotient)(*units)
        elif operation in ("sign", "plain"):
            unit = NONE
        elif len(values) > 1:
            unit = self.same_unit(node, _SYMBOLS.get(operation, operation), values)
        else:
            unit = units[0]
        line = Apply(operation, tuple(value.line for value in values))
        return _Value(line, unit=unit, account=any(value.account for value in values))

    def same_unit(self, node: ast.expr, symbol: str, values: Sequence[_Value]) -> Unit | None:
        unit = values[0].unit
        for value in values[1:]:
            try:
                unit = common(unit, value.unit)
            except ValueError:
                told = ", ".join(f"{_cut(line_text(value.line))} is in {value.unit}" for value in values if value.unit)
                self.refuse(node, f"{symbol} needs one unit, but {told}")
        return unit

    def numbers(self, nodes: Sequence[ast.expr], depth: int) -> list[_Value]:
        values = [self.value(node, depth + 1) for node in nodes]
        for node, value in zip(nodes, values, strict=True):
            if value.truth:
                self.refuse(node, f"{self.text(node)} is true or false, not a number: write 1 if ... else 0")
        return values

    def truth(self, node: ast.expr, depth: int) -> _Value:
        value = self.value(node, depth)
        if not value.truth:
            self.refuse(node, f"{self.text(node)} is a number, and a condition is needed: compare it")
        return value

    def text(self, node: ast.expr) -> str:
        """Return the part of the text that a node stands for, cut."""
        line = self.lines[node.lineno - 1].encode()
        last = node.end_col_offset if node.end_lineno == node.lineno else None
        return _cut(line[node.col_offset : last].decode(errors="replace"))

    def refuse(self, node: ast.expr | ast.stmt, sentence: str) -> NoReturn:
        line = self.lines[node.lineno - 1].encode()
        raise ProgramError(sentence, node.lineno, len(line[: node.col_offset].decode(errors="replace")) + 1)


def _folded(operation: str, lines: Sequence[Expression]) -> Expression:
    found = lines[0]
    for line in lines[1:]:
        found = Apply(operation, (found, line))
    return found


def _function(node: ast.expr) -> str | None:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def _told(node: ast.AST) -> str:
    """Return what a node is, in words."""
    if isinstance(node, ast.Compare):
        wrong = next(_OTHER[type(op)] for op in node.ops if type(op) in _OTHER)
        return f"the operator {wrong}, which is none of {' '.join(_SYMBOLS[name] for name in _COMPARED.values())},"
    if isinstance(node, ast.Constant):
        return "None" if node.value is None else f"a {type(node.value).__name__}"
    kind = type(node.op if isinstance(node, ast.BinOp | ast.UnaryOp) else node).__name__
    return _WORDS.get(kind, kind)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like another one, as the rest of a sentence; empty if none is."""
    # Slow to import, and only needed here.
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
