r"""Reading of signals from text.

Specification of the language:

1.  **Lines.** Those of `vecenv.text.answer_lines`: reasoning, answer blocks, case and splitting are its rules, after
    every minus sign U+2212 was replaced by ``-``. Then quotation marks, braces, brackets, asterisks and backquotes are
    blanks, so that a JSON object or a list in Markdown is read as lines are.
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
from vecenv.text.answer_lines import answer_lines
from vecenv.text.symbol_names import shown_names, slots_by_name

NUMBER_LENGTH = 24

INVALID = LARGEST_SIGNAL + 1
"""Signal of all symbols that stands for an invalid answer."""

_DRESS = str.maketrans(dict.fromkeys("\"'`*{}[]", " "))
_BESIDE = r"A-Z0-9.&^_/\-"


class SignalLanguage:
    """Reads and writes signals of K symbols; ``symbols`` are the names under which they are shown."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols, self._place = shown_names(tuple(symbols)), slots_by_name(symbols)
        longest_first = sorted(self._place, key=len, reverse=True)
        names = "|".join(re.escape(name).replace(r"\ ", r"[ \t]+") for name in longest_first)
        self._signal = re.compile(
            rf"(?<![{_BESIDE}])({names})[ \t]*+[:=][ \t]*+([+-]?[0-9]++(?:\.[0-9]*+)?)(?![A-Z0-9.])"
        )

    def parse(self, text: object) -> list[int] | None:
        """Return the signal of each symbol by the rules of this module, or None where the text is invalid."""
        if isinstance(text, str) and "\u2212" in text:
            text = text.replace("\u2212", "-")
        found: dict[int, int] = {}
        for line in answer_lines(text):
            for match in self._signal.finditer(line.translate(_DRESS)):
                name, number = match.groups()
                signal = round(float(number)) if len(number) <= NUMBER_LENGTH else INVALID
                place = self._place[" ".join(name.split())]
                if abs(signal) > LARGEST_SIGNAL or found.get(place, signal) != signal:
                    return None
                found[place] = signal
        return [found.get(place, 0) for place in range(len(self.symbols))] if found else None

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
