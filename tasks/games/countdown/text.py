r"""Text interface of Countdown: numbers and a target; an answer is an expression, read in linear time, never evaluated.

Specification of the language:

1.  **Line.** An answer is one line by the rules of `vecenv.text.answer_lines`; lines that repeat it are passed over.
    Before it may stand ``Answer:``, ``Final answer:``, ``Expression:``, ``Equation:`` or ``Solution:``, behind it ``=``
    and the target.
2.  **Grammar.** Terms joined by ``+ - * /``, of which ``*`` and ``/`` bind tighter, and each from left to right. A term
    is a number of digits, or an expression in round brackets. ``x`` and ``×`` are ``*``, ``÷`` is ``/``. Blanks may
    stand anywhere but within a number. There are no signs, decimals, powers or functions. It has at most `LONGEST`
    characters.
3.  **Numbers.** Each is one of those given, and is used at most as often as it is given; with ``use_all`` exactly as
    often. At least two are used. A letter names the number of its place among those that there are.
4.  **Moves.** Where a step is a move, an expression is of two of the numbers that there are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Any

import torch
from torch import Tensor

from vecenv.tasks.games.countdown.config import CountdownConfig
from vecenv.tasks.games.countdown.law import OPERATORS
from vecenv.tasks.games.countdown.scenario import Countdown
from vecenv.text.answer_lines import AnswerFault, AnswerLanguage, shown
from vecenv.text.interface import TextInterface

LETTERS = "ABCDEF"
"""Names of the numbers that there are, in their order."""

LONGEST = 1000
"""Most characters of an expression: six numbers and their brackets need few."""

_TOKEN = re.compile(r"[ \t]*+(?:([0-9]++)|([A-F])(?![A-WYZ0-9])|([-+*/X()]))[ \t]*+")
_OPENING = re.compile(r"(?:(?:MY|THE|FINAL)[ \t]++){0,2}(?:ANSWER|EXPRESSION|EQUATION|SOLUTION)[ \t]*+:[ \t]*+")
_SIGNS = str.maketrans("×÷", "x/")
# A lone star inside an expression: others are dress, which is taken off.
_STAR = re.compile(r"(?<=[0-9A-Fa-fxX)(+/-])([ \t]*+)\*(?!\*)(?=[ \t]*+[^ \t\r\n*])")
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2}


class ExpressionLanguage(AnswerLanguage[list[int]]):
    """Reads expressions of one puzzle as moves.

    Args:
        numbers: what stands in each slot; None if nothing does.
        target: to be made of them.
        move_number: of `move_tables`.
        config: of the task.
    """

    def __init__(
        self, numbers: Sequence[str | None], target: int, move_number: Sequence[int], config: CountdownConfig
    ) -> None:
        self.numbers, self.target, self._move_number, self.slots = numbers, target, move_number, len(numbers)
        self._moves_only = config.action == "move"
        self._use_all = config.use_all and not self._moves_only

    def read(self, text: object) -> list[int]:
        return super().read(_STAR.sub(r"\1x", text.translate(_SIGNS)) if isinstance(text, str) else text)

    def of_lines(self, lines: Sequence[str]) -> list[int]:
        lines = [_OPENING.sub("", line, count=1) if _OPENING.match(line) else line for line in lines]
        if any(line != lines[0] for line in lines):
            raise AnswerFault("there are several lines: write one expression")
        expression, equals, result = lines[0].partition("=")
        if len(expression) > LONGEST:
            raise AnswerFault(f"an expression has at most {LONGEST:,} characters")
        if equals and result.strip(" \t") != str(self.target):
            raise AnswerFault(f"after = stands the target, {self.target}, or nothing is written")
        moves = self._moves(expression)
        if not moves:
            raise AnswerFault("an expression has at least two numbers")
        if self._use_all and len(moves) < self.slots - self.numbers.count(None) - 1:
            raise AnswerFault("every number must be used")
        if self._moves_only and len(moves) > 1:
            raise AnswerFault("a move is of two numbers")
        return moves

    def _moves(self, text: str) -> list[int]:
        """Return the moves of an expression in the order in which they are carried out (shunting-yard of Dijkstra)."""
        waiting: list[str] = []
        terms: list[int] = []
        moves: list[int] = []
        free = [slot for slot, number in enumerate(self.numbers) if number is not None]

        def carry_out() -> None:
            right, left = terms.pop(), terms.pop()
            operator = OPERATORS.index(waiting.pop())
            moves.append(self._move_number[(left * self.slots + right) * 4 + operator])
            terms.append(min(left, right))

        place, after_term = 0, False
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                raise AnswerFault(f"{shown(text[place:].strip())} is no part of an expression")
            number, letter, mark = token.groups()
            mark = "*" if mark == "X" else mark
            if (number or letter or mark == "(") if after_term else (mark and mark != "("):
                wanted = "an operator" if after_term else "a number without a sign, or a bracket"
                raise AnswerFault(f"where {shown(text[place:].strip())} begins must be {wanted}")
            if number or letter:
                terms.append(self._slot(number, letter, free))
                after_term = True
            elif mark == "(":
                waiting.append(mark)
            else:
                while waiting and waiting[-1] != "(" and (mark == ")" or _BINDING[waiting[-1]] >= _BINDING[mark]):
                    carry_out()
                if mark != ")":
                    waiting.append(mark)
                    after_term = False
                elif waiting:
                    waiting.pop()
                else:
                    raise AnswerFault("a bracket is closed that none opens")
            place = token.end()
        if not after_term:
            raise AnswerFault("the expression has no end")
        while waiting:
            if waiting[-1] == "(":
                raise AnswerFault("a bracket is not closed")
            carry_out()
        return moves

    def _slot(self, number: str | None, letter: str | None, free: list[int]) -> int:
        """Take a number's first free slot."""
        if letter is not None:
            place = LETTERS.index(letter)
            found = [slot for slot, number in enumerate(self.numbers) if number is not None][place : place + 1]
        else:
            found = [slot for slot, own in enumerate(self.numbers) if own == number]
        if open_slots := [slot for slot in found if slot in free]:
            free.remove(open_slots[0])
            return open_slots[0]
        fault = "used too often" if found else "not among the numbers"
        raise AnswerFault(f"{shown(number or letter or '')} is {fault}")

    def tensor(self, parsed: Sequence[list[int] | None]) -> tuple[Tensor, Tensor]:
        length = 1 if self._moves_only else self.slots - 1
        rows = [(moves or []) + [0] * (length - len(moves or [])) for moves in parsed]
        actions = torch.tensor(rows, dtype=torch.int64).reshape(len(parsed), length)
        return actions, torch.tensor([moves is not None for moves in parsed], dtype=torch.bool)


def _number(top: int, bottom: int) -> str:
    return str(Fraction(top, bottom)) if bottom else "undefined"


def named_slots(numbers: Sequence[str | None]) -> dict[int, str]:
    """Return what a number is called in an expression, by slot: itself if it can be written, else its letter."""
    there = [slot for slot, number in enumerate(numbers) if number is not None]
    names: dict[int, str] = {}
    for letter, slot in zip(LETTERS, there, strict=False):
        number = str(numbers[slot])
        names[slot] = number if number.isdecimal() and number not in names.values() else letter
    return names


EXPRESSION = (
    "Answer with one expression of these numbers, + - * / and brackets, such as (8 - 3) * 4. "
    "Use {each}, and no other number."
)
MOVE = (
    "Answer with two of these numbers, by their letters, and one of + - * / between them, such as B - A. "
    "What it makes takes their place. Use {each}."
)
SYSTEM = "Make the target of the numbers.\n{grammar}"


class CountdownText(TextInterface):
    """Renders puzzles and reads expressions."""

    def __init__(self, scenario: Countdown) -> None:
        self.scenario, self.config = scenario, scenario.config
        self._move_number = scenario.shared["move_number"].tolist()

    def languages(self, state: Any) -> list[ExpressionLanguage]:  # noqa: ANN401
        rows = zip(self.numbers(state), state.target.tolist(), strict=True)
        return [ExpressionLanguage(*row, self._move_number, self.config) for row in rows]

    @staticmethod
    def numbers(state: Any) -> list[list[str | None]]:  # noqa: ANN401
        """Return what stands in the slots of each row."""
        columns = zip(*(part.tolist() for part in (state.top, state.bottom, state.there)), strict=True)
        return [
            [_number(top, bottom) if there else None for top, bottom, there in zip(*row, strict=True)]
            for row in columns
        ]

    def parse(self, texts: Sequence[object], state: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        languages = self.languages(state)
        read = [language.parse(text) for language, text in zip(languages, texts, strict=True)]
        return ExpressionLanguage([None] * self.config.slots, 0, (), self.config).tensor(read)

    def render(self, observations: Tensor, state: Any) -> list[str]:  # noqa: ANN401
        tried = torch.div(state.steps, self.scenario.moves_of_attempt(state), rounding_mode="floor")
        told = []
        for numbers, target, number in zip(self.numbers(state), state.target.tolist(), tried.tolist(), strict=True):
            there = [own for own in numbers if own is not None]
            if self.config.action == "move":
                there = [f"{letter} = {own}" for letter, own in zip(LETTERS, there, strict=False)]
            lines = [f"Numbers: {', '.join(there)}", f"Target: {target}"]
            if self.config.attempts > 1:
                lines.append(f"Tries left: {self.config.attempts - number}")
            told.append("\n".join(lines))
        return told

    def grammar(self, state: Any) -> list[str]:  # noqa: ANN401
        each = "every number once" if self.config.use_all else "each number at most once"
        form = MOVE if self.config.action == "move" else EXPRESSION
        return [form.format(each=each)] * len(state.steps)

    def instructions(self, state: Any) -> list[str]:  # noqa: ANN401
        return [SYSTEM.format(grammar=grammar) for grammar in self.grammar(state)]

    def random_answer(self, draw: Random) -> str:
        """Return an expression of the first two numbers, or of all, as many as the level of all rows."""
        every = self.config.use_all and self.config.action == "expression"
        letters = list(LETTERS[: self.config.level if every else 2])
        draw.shuffle(letters)
        return "".join(letter + draw.choice(OPERATORS) for letter in letters)[:-1]
