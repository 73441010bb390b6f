"""Programs as trees: what the parser makes of a text, and what printing, graphs and exports read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from vecenv.programs.units import Unit
from vecenv.system.settings import refuse_unknown

COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
FUNCTIONS = {"min": 2, "max": 2, "abs": 1, "sign": 1, "clip": 3, "plain": 1}
"""Functions of one moment, with the number of their arguments."""

WINDOWS = {"mean": "mean", "std": "std", "highest": "max", "lowest": "min", "lag": "lag", "delta": "delta"}
"""Functions of the past, with their names in a text, where ``bars=`` tells a rolling maximum from that of two numbers.

``rank``, over the symbols of one bar, has no window.
"""

LONGEST_WINDOW = 250


@dataclass(frozen=True, slots=True)
class Number:
    """A constant, a float32's value."""

    value: float


@dataclass(frozen=True, slots=True)
class Truth:
    """True or False."""

    value: bool


@dataclass(frozen=True, slots=True)
class Name:
    """A feature, or an earlier line."""

    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation on expressions: a key of the tables above, ``neg``, ``and``, ``or``, ``not``, ``if`` or ``rank``.

    ``if`` has the condition first; ``window`` is in bars, of functions of the past.
    """

    operation: str
    operands: tuple[Expression, ...]
    window: int = 0


Expression = Number | Truth | Name | Apply


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named number that a search may change; without a unit it takes that of its neighbour."""

    value: float
    unit: Unit | None = None


@dataclass(frozen=True)
class Feature:
    """What a name of a task means.

    Attributes:
        unit: of its values.
        account: it depends on what the strategy did before, so that it is known only step by step.
    """

    unit: Unit
    account: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """What a task tells a program, and what it asks of one: features and actions by name."""

    features: Mapping[str, Feature]
    outputs: Mapping[str, Unit]


@dataclass(frozen=True)
class Program:
    """Lines of a checked program, in their order; the last ones are the outputs of the vocabulary.

    ``kinds`` are the units of the lines that were read from a text, or what else they are, in words.
    """

    lines: Mapping[str, Expression | Parameter]
    vocabulary: Vocabulary
    kinds: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def parameters(self) -> dict[str, float]:
        return {name: line.value for name, line in self.lines.items() if isinstance(line, Parameter)}

    def with_parameters(self, values: Mapping[str, float]) -> Program:
        """Return the program with other values; ValueError of a name that is not a parameter's."""
        refuse_unknown("parameters", values, list(self.parameters))
        lines = dict(self.lines)
        for name, value in values.items():
            own = lines[name]
            assert isinstance(own, Parameter)
            lines[name] = replace(own, value=float(value))
        return replace(self, lines=lines)

    def unused(self) -> list[str]:
        """Return the lines that no output depends on."""
        needed = set(self.vocabulary.outputs)
        for name, line in reversed(list(self.lines.items())):
            if name in needed:
                needed |= names_in(line)
        return [name for name in self.lines if name not in needed]


def names_in(line: Expression | Parameter) -> set[str]:
    """Return the names that a line reads."""
    return {part.name for part in parts_of(line) if isinstance(part, Name)}


def parts_of(line: Expression | Parameter) -> Iterator[Expression]:
    """Return an expression and all that it is made of; nothing of a parameter."""
    if isinstance(line, Parameter):
        return
    yield line
    if isinstance(line, Apply):
        for operand in line.operands:
            yield from parts_of(operand)
