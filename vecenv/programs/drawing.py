"""Programs drawn at random from the grammar, with types and units that fit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from vecenv.programs.expressions import (
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
    Vocabulary,
)
from vecenv.programs.units import NONE, Unit

_KEEPING = ("add", "sub", "min", "max", "if", "clip", "neg", "abs")
"""Operations that keep a unit."""


class Drawn:
    """Draws expressions; what is drawn for a unit may stand wherever numbers of that unit may.

    Args:
        draw: source of chance.
        vocabulary: features to read and outputs to give.
        past: share of operations that are functions of the past, of what does not depend on the account.
    """

    def __init__(self, draw: random.Random, vocabulary: Vocabulary, past: float = 0.1) -> None:
        self.draw, self.vocabulary, self.past = draw, vocabulary, past
        self.names: dict[str, tuple[Unit, bool]] = {}

    def program(self, num_lines: int, depth: int) -> Program:
        """Return a program of some lines before its outputs, each of at most some operations within each other."""
        self.names = {name: (feature.unit, feature.account) for name, feature in self.vocabulary.features.items()}
        lines: dict[str, Expression | Parameter] = {}
        for place in range(num_lines):
            name, unit = f"v{place + 1}", self.unit()
            if self.draw.random() < 0.1:
                lines[name], account = Parameter(self.constant().value, unit), False
            else:
                account = self.draw.random() < 0.5 or not self.named(unit, False)
                lines[name] = self.number(unit, depth, account, carried=True)
            self.names[name] = unit, account
        for name, unit in self.vocabulary.outputs.items():
            lines[name] = self.number(unit, depth, True)
        return Program(lines, self.vocabulary)

    def unit(self) -> Unit:
        return self.draw.choice([NONE, *(unit for unit, _ in self.names.values())])

    def named(self, unit: Unit, account: bool) -> list[str]:
        """Return the names of a unit, with those that depend on the account or without."""
        return [name for name, (own, of_account) in self.names.items() if own == unit and (account or not of_account)]

    def constant(self) -> Number:
        value = self.draw.choice((0.0, 1.0, 0.5, 2.0, self.draw.gauss(0, 1), self.draw.uniform(-100, 100)))
        return Number(float(np.float32(round(value, 3))))

    def number(self, unit: Unit, depth: int, account: bool, carried: bool = False) -> Expression:
        """Return a number of a unit; ``carried`` if its parts must have the unit, and not take that of a neighbour."""
        names = self.named(unit, account)
        carried = carried and bool(names)
        if depth == 0 or self.draw.random() < 0.1:
            return Name(self.draw.choice(names)) if names and (carried or self.draw.random() < 0.8) else self.constant()
        ahead = bool(self.named(unit, False))
        if self.draw.random() < self.past and (ahead or not carried):
            return self.of_past(unit, depth, carried)
        if unit == NONE and self.draw.random() < 0.4:
            return Apply(self.draw.choice(("sign", "plain")), (self.number(self.unit(), depth - 1, account),))
        if (names or unit == NONE) and self.draw.random() < 0.4:
            operands = self.number(unit, depth - 1, account, unit != NONE), self.number(NONE, depth - 1, account)
            return Apply(self.draw.choice(("mul", "div")), operands)
        operation = self.draw.choice(_KEEPING)
        count = {"clip": 3, "neg": 1, "abs": 1}.get(operation, 2)
        numbers = [self.number(unit, depth - 1, account, carried and not place) for place in range(count)]
        if operation == "neg" and isinstance(numbers[0], Number):
            return Number(-numbers[0].value)
        if operation == "if":
            numbers.insert(0, self.truth(depth - 1, account))
        return Apply(operation, tuple(numbers))

    def of_past(self, unit: Unit, depth: int, carried: bool) -> Expression:
        operation = self.draw.choice((*WINDOWS, "rank") if unit == NONE else tuple(WINDOWS))
        if operation == "rank":
            return Apply("rank", (self.number(self.unit(), depth - 1, False),))
        longest = self.draw.choice((3, 10, 30, LONGEST_WINDOW))
        return Apply(operation, (self.number(unit, depth - 1, False, carried),), self.draw.randint(2, longest))

    def truth(self, depth: int, account: bool) -> Expression:
        if depth <= 0 or self.draw.random() < 0.6:
            if self.draw.random() < 0.05:
                return Truth(self.draw.random() < 0.5)
            unit = self.unit()
            operands = tuple(self.number(unit, max(0, depth - 1), account) for _ in range(2))
            return Apply(self.draw.choice(tuple(COMPARISONS)), operands)
        operation = self.draw.choice(("and", "or", "not"))
        count = 1 if operation == "not" else 2
        return Apply(operation, tuple(self.truth(depth - 1, account) for _ in range(count)))


def random_programs(
    vocabulary: Vocabulary, count: int, seed: int, lines: Sequence[int] = (1, 2, 4), depth: int = 3, past: float = 0.1
) -> list[Program]:
    """Return programs drawn at random, with as many lines before the outputs as one of ``lines``; the same by seed."""
    draw = random.Random(seed)
    drawn = Drawn(draw, vocabulary, past)
    return [drawn.program(draw.choice(lines), depth) for _ in range(count)]
