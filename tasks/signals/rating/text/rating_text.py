"""Text interface of rating symbols: the day's headlines and recent returns; answers read as signals."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from vecenv.tasks.signals.rating.config import LARGEST_SIGNAL
from vecenv.tasks.signals.rating.scenario import NewsSignals
from vecenv.tasks.signals.rating.text.answers import SignalLanguage
from vecenv.text.interface import TextInterface
from vecenv.text.symbol_names import told_names

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

    def parse(self, texts: Sequence[object], state: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Read each text's signals, (B, K, 1), and its validity; an invalid one is signals of 0."""
        actions, valid = self.language.tensor([self.language.parse(text) for text in texts])
        return actions.to(state.day.device), valid.to(state.day.device)

    def languages(self, state: Any) -> list[SignalLanguage]:  # noqa: ANN401
        return [self.language] * len(state.day)

    def examples(self) -> tuple[str, ...]:
        first = self.language.symbols[0]
        return f"{first}: 0", f"{first}: +5", f"{first}: -5"

    def random_answer(self, draw: Random) -> str:
        return self.language.written([draw.randint(-LARGEST_SIGNAL, LARGEST_SIGNAL) for _ in self.language.symbols])
