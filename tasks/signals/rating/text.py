r"""Text interface of rating symbols: the day's headlines and recent returns; answers read as signals.

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
from random import Random
from typing import Any

import torch
from torch import Tensor

from vecenv.tasks.signals.rating.config import LARGEST_SIGNAL
from vecenv.tasks.signals.rating.scenario import NewsSignals
from vecenv.text.answer_lines import AnswerFault, AnswerLanguage, shown
from vecenv.text.interface import TextInterface
from vecenv.text.symbol_names import shown_names, slots_by_name, told_names

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
        """Return signals, (B, K, 1), int64, and whether each text is valid; those of one that is not count as 0."""
        count = len(self.symbols)
        rows = [[INVALID] * count if signals is None else signals for signals in parsed]
        actions = torch.tensor(rows, dtype=torch.int64).reshape(len(parsed), count, 1)
        return actions, torch.tensor([signals is not None for signals in parsed], dtype=torch.bool)


NO_NEWS = "no news"

GRAMMAR = """\
Answer with a line for each symbol, its name and a whole number from -10 to 10: how far its price will fall or rise.
  {symbol}: +4
Symbols that you do not name get 0, no opinion. Symbols: {symbols}"""

SYSTEM = (
    "You rate stocks by their news, at the close of each of {days} days. You are judged by the moves of the prices "
    "over the next {horizon}.\n{grammar}"
)


class RatingText(TextInterface):
    """Renders rows and reads answers."""

    language: SignalLanguage

    def __init__(self, scenario: NewsSignals) -> None:
        self.scenario, self.config = scenario, scenario.config
        self.language = SignalLanguage(scenario.tape.symbols)
        panels = scenario.panels
        # Several texts of a day are lines; a symbol has one here.
        self._texts = [" / ".join(text.split("\n")) for text in panels.texts] + [NO_NEWS]

    def render(self, observations: Tensor, state: Any) -> list[str]:  # noqa: ANN401
        tape, panels = self.scenario.tape, self.scenario.panels
        path, day = state.path.to(tape.device), state.day.to(tape.device)
        # No text is the last one.
        text = torch.full_like(tape.tradable[path, day], -1, dtype=torch.int64)
        text = text if panels.text is None else panels.text[path, day]
        features = self.scenario.items(observations).features
        returns = features[..., len(features[0, 0]) - self.config.recent_days :] if len(features) else features
        columns = (text, tape.tradable[path, day], returns, day, state.day - state.start_day)
        shown = zip(*(column.cpu().tolist() for column in columns), strict=True)
        return ["\n".join(self._lines(*row)) for row in shown]

    def _lines(
        self, texts: list[int], tradable: list[bool], returns: list[list[float]], day: int, step: int
    ) -> list[str]:
        """Return the lines of one row; returns in per cent, the latest first."""
        ended = step >= self.config.episode_length
        head = "The episode has ended" if ended else f"Day {step + 1} of {self.config.episode_length}"
        recent = self.config.recent_days
        told = f", news and the last {recent} daily returns" if recent > 1 else ", news and the day's return"
        lines = [f"{head}, {self.scenario.tape.dates[day]}{told if recent else ''}"]
        for name, text, here, past in zip(self.language.symbols, texts, tradable, returns, strict=True):
            parts = [name, self._texts[text] if here or text >= 0 else "does not trade today"]
            if recent:
                parts.append(" ".join(f"{change:+.2f}%" for change in reversed(past)))
            lines.append(" | ".join(parts))
        return lines

    def grammar(self, state: Any) -> list[str]:  # noqa: ANN401
        symbols = told_names(self.scenario.tape.symbols)
        return [GRAMMAR.format(symbol=self.language.symbols[0], symbols=symbols)] * len(state.day)

    def instructions(self, state: Any) -> list[str]:  # noqa: ANN401
        horizon = self.config.horizon
        days = "day" if horizon == 1 else f"{horizon} days"
        return [
            SYSTEM.format(days=self.config.episode_length, horizon=days, grammar=grammar)
            for grammar in self.grammar(state)
        ]

    def acted(self, state: Any) -> Tensor:  # noqa: ANN401
        step = (state.day - state.start_day - 1).clamp(min=0)
        return state.said[torch.arange(len(step), device=step.device), step].bool().any(-1)

    def examples(self) -> tuple[str, ...]:
        first = self.language.symbols[0]
        return f"{first}: 0", f"{first}: +5", f"{first}: -5"

    def random_answer(self, draw: Random) -> str:
        return self.language.written([draw.randint(-LARGEST_SIGNAL, LARGEST_SIGNAL) for _ in self.language.symbols])
