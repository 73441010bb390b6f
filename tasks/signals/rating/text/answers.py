r"""Reading of signals from text.

Specification of the language:

1.  **Lines.** Those of `vecenv.text.answer_lines` without their dress: reasoning, answer blocks, case and splitting are
    its rules, and a JSON object or a list in Markdown is read as lines are.
2.  **Grammar.** Blanks are the space and the tab. A signal is ``NAME: NUMBER`` or ``NAME = NUMBER``, blanks around the
    sign or none. NAME is that of a symbol (`vecenv.text.symbol_names`), beside which stands no letter, digit, or
    ``.&^_/-``, of several that fit the longest. NUMBER is an optional ``+`` or ``-`` and ``digits``, ``digits.`` or
    ``digits.digits``, at most 24 characters, with no letter, digit or dot behind; it is rounded to the nearest whole
    number, of two the even one. Whatever else stands in a line is ignored.
3.  **Validity.** A text without any signal, with two different ones of a symbol, or with one outside -10 to 10 is
    invalid. Symbols that are not named get 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from vecenv.tasks.signals.rating.config import LARGEST_SIGNAL
from vecenv.text.answer_lines import AnswerFault, AnswerLanguage, shown
from vecenv.text.symbol_names import shown_names, slots_by_name

NUMBER_LENGTH = 24

INVALID = LARGEST_SIGNAL + 1
"""Signal of all symbols that stands for an invalid answer."""

_BESIDE = r"A-Z0-9.&^_/\-"


class SignalLanguage(AnswerLanguage[list[int]]):
    """Reads and writes signals of K symbols; ``symbols`` are the names under which they are shown."""

    passes_over = True

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols, self._place = shown_names(tuple(symbols)), slots_by_name(symbols)
        longest_first = sorted(self._place, key=len, reverse=True)
        names = "|".join(re.escape(name).replace(r"\ ", r"[ \t]+") for name in longest_first)
        self._signal = re.compile(
            rf"(?<![{_BESIDE}])({names})[ \t]*+[:=][ \t]*+([+-]?[0-9]++(?:\.[0-9]*+)?)(?![A-Z0-9.])"
        )

    def of_lines(self, lines: Sequence[str]) -> list[int]:
        found: dict[int, int] = {}
        for line in lines:
            for match in self._signal.finditer(line):
                name, number = match.groups()
                signal = round(float(number)) if len(number) <= NUMBER_LENGTH else INVALID
                place = self._place[" ".join(name.split())]
                if abs(signal) > LARGEST_SIGNAL:
                    raise AnswerFault(f"{shown(match[0])} is no signal from -{LARGEST_SIGNAL} to {LARGEST_SIGNAL}")
                if found.get(place, signal) != signal:
                    raise AnswerFault(f"{shown(self.symbols[place])} has two different signals")
                found[place] = signal
        if not found:
            raise AnswerFault(f"there is no signal in it: write one such as {self.symbols[0]}: +4 on a line")
        return [found.get(place, 0) for place in range(len(self.symbols))]

    def written(self, signals: Sequence[int]) -> str:
        """Return signals as text, a line for each symbol."""
        return "\n".join(
            f"{name}: {signal:+d}" if signal else f"{name}: 0"
            for name, signal in zip(self.symbols, signals, strict=True)
        )

    def tensor(self, parsed: Sequence[list[int] | None]) -> tuple[Tensor, Tensor]:
        """Return actions, shape (B, K, 1), int64, and whether each text is valid, shape (B,), bool."""
        count = len(self.symbols)
        rows = [[INVALID] * count if signals is None else signals for signals in parsed]
        actions = torch.tensor(rows, dtype=torch.int64).reshape(len(parsed), count, 1)
        return actions, torch.tensor([signals is not None for signals in parsed], dtype=torch.bool)
