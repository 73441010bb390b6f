"""Searches among programs: the best of random ones, and a genetic search whose population is one batch.

A searcher is given ``worth``, which returns what programs are worth on the first so many of the common paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from vecenv.programs.drawing import Drawn
from vecenv.programs.expressions import (
    COMPARISONS,
    Apply,
    Expression,
    Name,
    Number,
    Parameter,
    Program,
    Truth,
    Vocabulary,
    parts_of,
)
from vecenv.programs.parsing import ProgramError, parsed
from vecenv.programs.printing import line_text, printed
from vecenv.programs.units import NONE

Worth = Callable[[Sequence[Program], int], Sequence[float]]

PAST = 0.3
"""Share of functions of the past among the operations of random programs."""

LARGEST_TREE = 40
"""Operations, names and numbers of a program of the genetic search at most."""

ATTEMPTS = 8
"""Children that may be refused by the language, mostly for their units, before a random program takes their place."""


def drawn_programs(vocabulary: Vocabulary, count: int, seed: int, most_lines: int) -> list[Program]:
    """Return random programs of a few short lines; the same by seed.

    Outputs that may be plain are, in three of four programs: shares of wealth are made of little but the account's.
    """
    draw, lines = Random(seed), [number for number in (0, 0, 1, 2) if number < most_lines]
    free = {name: unit if any(unit.dimension) else NONE for name, unit in vocabulary.outputs.items()}
    plain = Drawn(draw, replace(vocabulary, outputs=free), past=PAST)
    own = Drawn(draw, vocabulary, past=PAST)
    drawn = [draw.choice((plain, plain, plain, own)).program(draw.choice(lines), depth=2) for _ in range(count)]
    return [Program(program.lines, vocabulary) for program in drawn]


def best_of(programs: Sequence[Program], worth: Worth, paths: int) -> Program:
    """Return the best of programs on all paths, found by halving: few paths for all, more for the better ones.

    A sixteenth goes on from a sixteenth of the paths to a quarter, and an eighth of it to all; of two rules whose
    yearly Sharpe ratios are 0.5 and 0.3, 16 common paths find the better one in 94% of the cases.
    """
    left = list(programs)
    for part, kept in ((16, 16), (4, 8)):
        most = max(1, paths // part)
        if most < paths and len(left) > 16:
            left = _ranked(left, worth(left, most))[: max(16, len(left) // kept)]
    return _ranked(left, worth(left, paths))[0]


def _ranked(programs: Sequence[Program], values: Sequence[float]) -> list[Program]:
    places = sorted(range(len(programs)), key=lambda place: (-values[place], place))
    return [programs[place] for place in places]


def genetic(
    vocabulary: Vocabulary, worth: Worth, paths: int, seed: int, population: int = 256, generations: int = 16
) -> Program:
    """Return the best program of a search by mutation and crossover of trees.

    Each generation is graded as one batch on an eighth of the paths; the last one's best 16 on all. Parents win
    tournaments of four; the best sixteenth stays. So at most ``population`` times ``generations`` programs are graded.
    """
    draw, most = Random(seed), max(1, paths // 8)
    trees = [expanded(program) for program in drawn_programs(vocabulary, population, seed, 3)]
    programs = [program for program in (checked(tree, vocabulary) for tree in trees) if program is not None]
    known: dict[str, float] = {}
    for generation in range(generations):
        texts = {printed(program): program for program in programs}
        fresh = {text: program for text, program in texts.items() if text not in known}
        if fresh:
            known |= dict(zip(fresh, worth(list(fresh.values()), most), strict=True))
        ranked = _ranked(list(texts.values()), [known[text] for text in texts])
        if generation == generations - 1:
            break
        programs = ranked[: max(1, population // 16)]
        while len(programs) < population:
            one, other = (ranked[min(draw.randrange(len(ranked)) for _ in range(4))] for _ in range(2))
            programs.append(_child(one, other, vocabulary, draw))
    best = ranked[:16]
    return _ranked(best, worth(best, paths))[0]


def _child(one: Program, other: Program, vocabulary: Vocabulary, draw: Random) -> Program:
    for _ in range(ATTEMPTS):
        kind = draw.random()
        if kind < 0.3:
            found = checked(expanded(_other_numbers(one, draw)), vocabulary)
        elif kind < 0.5:
            found = _crossed(one, drawn_programs(vocabulary, 1, draw.randrange(2**31), 1)[0], vocabulary, draw)
        else:
            found = _crossed(one, other, vocabulary, draw)
        if found is not None:
            return found
    return drawn_programs(vocabulary, 1, draw.randrange(2**31), 1)[0]


def _crossed(one: Program, other: Program, vocabulary: Vocabulary, draw: Random) -> Program | None:
    """Return a program with a part of another one in place of a part of its own; None if the language refuses it."""
    tree, giver = expanded(one), list(parts_of(expanded(other)))
    place = draw.randrange(len(list(parts_of(tree))))
    truth = is_truth(list(parts_of(tree))[place])
    fitting = [part for part in giver if is_truth(part) == truth]
    return checked(replaced(tree, place, draw.choice(fitting)), vocabulary) if fitting else None


def _other_numbers(program: Program, draw: Random) -> Program:
    """Return a program whose numbers and windows are changed, each with a chance."""
    named = with_named_numbers(program)
    values = {name: value for name, value in named.parameters.items() if draw.random() < 0.5}
    changed = {name: value * math.exp(draw.gauss(0, 0.5)) + draw.gauss(0, 0.01) for name, value in values.items()}
    found = named.with_parameters(changed)
    return Program({name: _other_windows(line, draw) for name, line in found.lines.items()}, found.vocabulary)


def _other_windows(line: Expression | Parameter, draw: Random) -> Expression | Parameter:
    if not isinstance(line, Apply):
        return line
    operands = tuple(_other_windows(operand, draw) for operand in line.operands)
    window = line.window
    if window and draw.random() < 0.5:
        window = min(100, max(2, round(window * math.exp(draw.gauss(0, 0.5)))))
    return Apply(line.operation, operands, window)  # type: ignore[arg-type]  # only whole lines are parameters


def expanded(program: Program) -> Expression:
    """Return the tree of a program's one output, with its lines and parameters in their places."""
    known: dict[str, Expression] = {}
    for name, line in program.lines.items():
        known[name] = Number(line.value) if isinstance(line, Parameter) else _filled(line, known)
    return known[next(iter(program.vocabulary.outputs))]


def _filled(line: Expression, known: Mapping[str, Expression]) -> Expression:
    if isinstance(line, Name):
        return known.get(line.name, line)
    if isinstance(line, Apply):
        return Apply(line.operation, tuple(_filled(operand, known) for operand in line.operands), line.window)
    return line


def with_named_numbers(program: Program) -> Program:
    """Return a program of one output whose numbers are parameters, for `Program.with_parameters`."""
    lines: dict[str, Expression | Parameter] = {}

    def named(part: Expression) -> Expression:
        if isinstance(part, Number):
            lines[name := f"n{len(lines) + 1}"] = Parameter(part.value)
            return Name(name)
        if isinstance(part, Apply):
            return Apply(part.operation, tuple(named(operand) for operand in part.operands), part.window)
        return part

    tree = named(expanded(program))
    return Program({**lines, next(iter(program.vocabulary.outputs)): tree}, program.vocabulary)


def replaced(tree: Expression, place: int, part: Expression) -> Expression:
    """Return a tree with another part in a place, counted as `parts_of` yields them."""
    if place == 0:
        return part
    assert isinstance(tree, Apply)
    operands, first = list(tree.operands), 1
    for number, operand in enumerate(operands):
        size = sum(1 for _ in parts_of(operand))
        if first <= place < first + size:
            operands[number] = replaced(operand, place - first, part)
        first += size
    return Apply(tree.operation, tuple(operands), tree.window)


def is_truth(tree: Expression) -> bool:
    """Whether a tree is true or false, not a number."""
    if isinstance(tree, Apply):
        choice = tree.operation == "if" and is_truth(tree.operands[1])
        return choice or tree.operation in (*COMPARISONS, "and", "or", "not")
    return isinstance(tree, Truth)


def checked(tree: Expression, vocabulary: Vocabulary) -> Program | None:
    """Return the program of one line that a tree is; None if it is too large or the language refuses it."""
    if sum(1 for _ in parts_of(tree)) > LARGEST_TREE:
        return None
    try:
        return parsed(f"{next(iter(vocabulary.outputs))} = {line_text(tree)}", vocabulary)
    except ProgramError:
        return None
