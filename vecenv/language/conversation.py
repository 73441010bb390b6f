"""One agent's conversation: what it has been shown and has said, within a budget of tokens.

A conversation is kept as segments. As long as days fit into the budget, they are appended and a segment grows. When
the oldest days must leave, a new segment begins with what is kept, in which earlier answers are text like any other, so
that every answer is drawn, and learned from, once, after exactly what the model saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vecenv.language.chat import ChatFormat
from vecenv.language.config import AnswerConfig

NO_ROOM = "There is no room for this: answer now."
"""Stands for what a tool said where it does not fit beside the day."""


@dataclass
class Segment:
    """Tokens that a model read and wrote in one stretch.

    Attributes:
        tokens: all of them. L of them.
        drawn: places of those that the model drew, ascending. D of them.
        turn: number of the answer that each of these belongs to, counted through the conversation. D of them.
        day: that this answer was given on. D of them.
        log_prob: of each of these. D of them.
    """

    tokens: list[int]
    drawn: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    day: list[int] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)


@dataclass
class _Turn:
    """A question, its tokens as they follow an answer, where they were needed, and the answer to it."""

    day: int
    text: str
    following: list[int]
    answer: list[int] = field(default_factory=list)


class Conversation:
    """Grows by questions and answers in turn; `ask_all` puts the questions.

    Args:
        chat: form of the tokens.
        config: budget.
        system: what is said before the first question.

    Attributes:
        segments: so far.
        turns: answers so far.
    """

    def __init__(self, chat: ChatFormat, config: AnswerConfig, system: str) -> None:
        self.chat, self.config, self.system = chat, config, system
        self.segments: list[Segment] = []
        self.turns = 0
        self._window: list[_Turn] = []
        self._day_text = ""

    def begins_anew(self, day: int) -> bool:
        """Whether nothing that was said before stays for a question of a day."""
        return not self._window or (self.config.history_days == 0 and day != self._window[-1].day)

    def begin(self, day: int, text: str, opening: list[int]) -> None:
        """Put a question without any before it, with the tokens of instructions and question.

        Raises:
            ValueError: it does not fit into the budget.
        """
        most = self.config.context_tokens - self.config.answer_tokens
        if len(opening) > most:
            raise ValueError(
                f"context_tokens {self.config.context_tokens} are too few: instructions and one day take "
                f"{len(opening)}, the answer up to {self.config.answer_tokens}"
            )
        if not self._window or day != self._window[-1].day:
            self._day_text = text
        self._window = [_Turn(day, text, [])]
        self.segments.append(Segment(list(opening)))

    def go_on(self, day: int, text: str, following: list[int]) -> list[int] | None:
        """Put a further question.

        Args:
            day: of the question.
            text: the question.
            following: its tokens, from the end of the answer before on.

        Returns:
            The tokens that are appended, or None where the context was made anew.

        Raises:
            ValueError: the day's first question alone does not fit into the budget.
        """
        config = self.config
        if day != self._window[-1].day:
            self._day_text = text
        most = config.context_tokens - config.answer_tokens
        added = self.chat.joined(self._window[-1].answer, following)
        self._window.append(_Turn(day, text, following))
        days = len({turn.day for turn in self._window}) - 1
        kept = config.history_days is None or days <= config.history_days
        if kept and len(self.segments[-1].tokens) + len(added) <= most:
            self.segments[-1].tokens.extend(added)
            return added
        # What no longer fits leaves room for days to come; what is too old leaves day by day.
        most = most - config.context_tokens // 2 if kept else most
        if not kept:
            self._forget_a_day()
        while self._window[0].day != day and len(self._context()) > most:
            self._forget_a_day()
        tokens = self._context()
        if len(tokens) <= config.context_tokens - config.answer_tokens:
            self.segments.append(Segment(tokens))
        elif len(self._window) == 1:
            self.begin(day, text, tokens)
        else:
            self._begin_within(day, text)
        return None

    def _forget_a_day(self) -> None:
        """Drop all turns of the oldest day."""
        oldest = self._window[0].day
        self._window = [turn for turn in self._window if turn.day != oldest]

    def _begin_within(self, day: int, text: str) -> None:
        """Go on with a day whose turns no longer fit: with its first question and the last one, as far as that fits."""
        first = self._day_text
        for shown in (f"{first}\n\n{text}", f"{first}\n\n{NO_ROOM}", first):
            (opening,) = self.chat.openings([self.system], [shown])
            if len(opening) <= self.config.context_tokens - self.config.answer_tokens:
                break
        self.begin(day, shown, opening)

    def _context(self) -> list[int]:
        """Return the tokens of the instructions and all questions and answers that are kept."""
        first, *others = self._window
        (tokens,) = self.chat.openings([self.system], [first.text])
        for before, turn in zip(self._window, others, strict=False):
            tokens = [*tokens, *before.answer, *self.chat.joined(before.answer, turn.following)]
        return tokens

    def answered(self, tokens: Sequence[int], log_prob: Sequence[float]) -> None:
        """Take the answer in, with the log-probability of each of its tokens."""
        segment = self.segments[-1]
        segment.drawn.extend(range(len(segment.tokens), len(segment.tokens) + len(tokens)))
        segment.turn.extend([self.turns] * len(tokens))
        segment.day.extend([self._window[-1].day] * len(tokens))
        segment.log_prob.extend(log_prob)
        segment.tokens.extend(tokens)
        self._window[-1].answer = list(tokens)
        self.turns += 1


def ask_all(conversations: Sequence[Conversation], texts: Sequence[str], days: Sequence[int]) -> list[list[int] | None]:
    """Put a question to each of some conversations of one form, encoding all of them together.

    Args:
        conversations: B of them.
        texts: the questions. B of them.
        days: of the questions. B of them.

    Returns:
        The tokens that are appended to each context, or None where it was made anew: the last segment's tokens.

    Raises:
        ValueError: a question does not fit into the budget.
    """
    asked = list(zip(conversations, texts, days, strict=True))
    if not asked:
        return []
    chat, anew = conversations[0].chat, [conversation.begins_anew(day) for conversation, _, day in asked]
    fresh = [(one.system, text) for (one, text, _), begins in zip(asked, anew, strict=True) if begins]
    openings = iter(chat.openings(*zip(*fresh, strict=True)) if fresh else [])
    followings = iter(chat.followings([text for text, begins in zip(texts, anew, strict=True) if not begins]))
    added: list[list[int] | None] = []
    for (conversation, text, day), begins in zip(asked, anew, strict=True):
        if begins:
            conversation.begin(day, text, next(openings))
            added.append(None)
        else:
            added.append(conversation.go_on(day, text, next(followings)))
    return added
