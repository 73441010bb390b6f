"""Exact search of Countdown on the host: how many solutions a puzzle has, and one of them.

A solution is a binary tree whose leaves are different given numbers, up to the order of the operands of sums and
products: 3 + 5 and 5 + 3 are one, (1 + 2) + 3 and 1 + (2 + 3) two, and equal numbers are told apart. With the values of
all trees over up to four numbers in tables, what a tree over more must be is asked of the larger of its halves: if the
smaller one is worth s, a sum v needs v - s, a difference v + s or s - v, a product v / s, a quotient v s or s / v.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache

from vecenv.tasks.games.countdown.law import ADD, DIVIDE, MULTIPLY, OPERATORS, SUBTRACT

Tree = int | tuple["Tree", int, "Tree"]
"""Number of a slot, or left tree, operator and right tree."""

_IN_TABLES = 4


class Search:
    """Trees over numbers, sets of which are bit masks of their places."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = tuple(Fraction(number) for number in numbers)
        self._tables: dict[int, Counter[Fraction]] = {}

    def table(self, chosen: int) -> Counter[Fraction]:
        """Return the number of trees over exactly the chosen numbers, by value."""
        if chosen not in self._tables:
            found: Counter[Fraction] = Counter()
            if chosen.bit_count() == 1:
                found[self.numbers[chosen.bit_length() - 1]] = 1
            for one, other in _halves(chosen):
                for (a, ways), (b, more) in (
                    (first, second) for first in self.table(one).items() for second in self.table(other).items()
                ):
                    for value in _results(a, b):
                        found[value] += ways * more
            self._tables[chosen] = found
        return self._tables[chosen]

    @cache  # noqa: B019  # lives as long as the search
    def count(self, chosen: int, value: Fraction) -> int:
        """Return the number of trees of a value over exactly the chosen numbers."""
        if chosen.bit_count() <= _IN_TABLES:
            return self.table(chosen)[value]
        found = 0
        for one, other in _halves(chosen):
            for small, ways in self.table(one).items():
                found += ways * sum(self.count(other, needed) for needed, _, _ in _needed(value, small))
                if not small and not value:
                    # Zero times whatever the other half is worth, and zero over it.
                    found += ways * (2 * self.all(other) - self.count(other, value))
        return found

    @cache  # noqa: B019
    def all(self, chosen: int) -> int:
        """Return the number of trees over exactly the chosen numbers."""
        if chosen.bit_count() <= _IN_TABLES:
            return self.table(chosen).total()
        zero, found = Fraction(0), 0
        for one, other in _halves(chosen):
            first, second = self.all(one), self.all(other)
            found += 6 * first * second - first * self.count(other, zero) - second * self.count(one, zero)
        return found

    def tree(self, chosen: int, value: Fraction) -> Tree:
        """Return a tree of a value over exactly the chosen numbers, of which there must be one."""
        if chosen.bit_count() == 1:
            return chosen.bit_length() - 1
        for one, other in _halves(chosen):
            for small in self.table(one):
                if not small and not value:
                    first, *more = (place for place in range(len(self.numbers)) if other >> place & 1)
                    anything: Tree = first
                    for place in more:
                        anything = anything, ADD, place
                    return self.tree(one, small), MULTIPLY, anything
                for needed, operator, small_first in _needed(value, small):
                    if self.count(other, needed):
                        halves = self.tree(one, small), self.tree(other, needed)
                        left, right = halves if small_first else halves[::-1]
                        return left, operator, right
        raise ValueError(f"no tree over {bin(chosen)} is worth {value}")


def _halves(chosen: int) -> Iterator[tuple[int, int]]:
    """Return the ways to split a set in two, once each, the smaller part first."""
    lowest, part = chosen & -chosen, (chosen - 1) & chosen
    while part:
        other = chosen ^ part
        if part & lowest:
            yield (part, other) if part.bit_count() <= other.bit_count() else (other, part)
        part = (part - 1) & chosen


def _results(a: Fraction, b: Fraction) -> Iterator[Fraction]:
    yield from (a + b, a - b, b - a, a * b)
    if b:
        yield a / b
    if a:
        yield b / a


def _needed(value: Fraction, small: Fraction) -> Iterator[tuple[Fraction, int, bool]]:
    """Return what the other half must be worth, with the operator, and whether the smaller half is on the left.

    Where both halves may be worth anything, in 0 x and 0 / x, it says nothing.
    """
    yield value - small, ADD, True
    yield value + small, SUBTRACT, False
    yield small - value, SUBTRACT, True
    if small:
        yield value / small, MULTIPLY, True
        yield value * small, DIVIDE, False
        if value:
            yield small / value, DIVIDE, True


def _sets(count: int, use_all: bool) -> list[int]:
    every = (1 << count) - 1
    return [every] if use_all else sorted(range(1, every + 1), key=int.bit_count)


@lru_cache(maxsize=4096)
def count_solutions(numbers: tuple[int, ...], target: int, use_all: bool = False) -> int:
    """Return the number of solutions, see this module; milliseconds for four numbers, a second for six."""
    search = Search(numbers)
    return sum(search.count(chosen, Fraction(target)) for chosen in _sets(len(numbers), use_all))


@lru_cache(maxsize=4096)
def solution(numbers: tuple[int, ...], target: int, use_all: bool = False) -> Tree | None:
    """Return a solution with as few numbers as possible; None if there is none."""
    search = Search(numbers)
    for chosen in _sets(len(numbers), use_all):
        if search.count(chosen, Fraction(target)):
            return search.tree(chosen, Fraction(target))
    return None


def written(tree: Tree, numbers: Sequence[object] | Mapping[int, object]) -> str:
    """Return a tree in infix notation, with brackets where they are needed, given what stands in each slot."""
    return _written(tree, numbers)[0]


def _written(tree: Tree, numbers: Sequence[object] | Mapping[int, object]) -> tuple[str, int]:
    """Return the text, and how tightly its outermost operator binds."""
    if isinstance(tree, int):
        return str(numbers[tree]), 3
    left, operator, right = tree
    binding = 2 if operator in (MULTIPLY, DIVIDE) else 1
    (one, tight_one), (other, tight_other) = _written(left, numbers), _written(right, numbers)
    one = one if tight_one >= binding else f"({one})"
    # What follows a minus or a division keeps its brackets.
    needed = binding + (operator in (SUBTRACT, DIVIDE))
    return f"{one} {OPERATORS[operator]} {other if tight_other >= needed else f'({other})'}", binding
