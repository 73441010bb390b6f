"""Conversation history of one agent as token segments, within a context budget.

Days are appended to a segment as long as they fit into the budget. When the oldest days are dropped, a new segment
begins with the kept turns, whose answers count as prompt. So every answer is trained on once, after the context that
it was sampled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vecenv.language.chat import ChatFormat
from vecenv.language.config import AnswerConfig

NO_ROOM = "There is no room for this: answer now."
"""Replaces a tool result that does not fit beside the day."""


@dataclass
class Segment:
    """One contiguous context: prompt tokens and sampled tokens.

    Attributes:
        drawn: positions of the sampled tokens, ascending.
        turn: answer number of each sampled token, counted through the conversation.
        day: day of that answer.
    """

    tokens: list[int]
    drawn: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    day: list[int] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)


@dataclass
class _Turn:
    """A question, its tokens after an answer (if they were needed), and its answer."""

    day: int
    text: str
    following: list[int]
    answer: list[int] = field(default_factory=list)


class Conversation:
    """Alternating questions and answers; `ask_all` adds the questions. ``turns`` counts the answers."""

    def __init__(self, chat: ChatFormat, config: AnswerConfig, system: str) -> None:
        self.chat, self.config, self.system = chat, config, system
        self.segments: list[Segment] = []
        self.turns = 0
        self._window: list[_Turn] = []
        self._day_text = ""

    def needs_opening(self, day: int) -> bool:
        """Whether a question of a day starts without any earlier turn."""
        return not self._window or (self.config.history_days == 0 and day != self._window[-1].day)

    def has_room(self, text: str) -> bool:
        """Whether a question fits behind all that was said."""
        if not self.segments or self.config.history_days == 0:
            return False
        size = len(self.segments[-1].tokens) + len(self.chat.followings([text])[0])
        return size <= self.config.context_tokens - self.config.answer_tokens

    def begin(self, day: int, text: str, opening: list[int]) -> None:
        """Start with a first question, given the tokens of instructions and question; ValueError beyond the budget."""
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

    def add_question(self, day: int, text: str, following: list[int]) -> list[int] | None:
        """Add a further question, and return the appended tokens, or None where the context was rebuilt.

        ``following`` are its tokens from the end of the previous answer.

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
        # Overflow drops days until half of the budget is free; the day limit drops one day at a time.
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
        oldest = self._window[0].day
        self._window = [turn for turn in self._window if turn.day != oldest]

    def _begin_within(self, day: int, text: str) -> None:
        """Rebuild a day whose turns no longer fit from its first question and, if it fits, its last one."""
        first = self._day_text
        for shown in (f"{first}\n\n{text}", f"{first}\n\n{NO_ROOM}", first):
            (opening,) = self.chat.openings([self.system], [shown])
            if len(opening) <= self.config.context_tokens - self.config.answer_tokens:
                break
        self.begin(day, shown, opening)

    def _context(self) -> list[int]:
        first, *others = self._window
        (tokens,) = self.chat.openings([self.system], [first.text])
        for before, turn in zip(self._window, others, strict=False):
            tokens = [*tokens, *before.answer, *self.chat.joined(before.answer, turn.following)]
        return tokens

    def answered(self, tokens: Sequence[int], log_prob: Sequence[float]) -> None:
        """Record the answer, with the log-probability of each of its tokens."""
        segment = self.segments[-1]
        segment.drawn.extend(range(len(segment.tokens), len(segment.tokens) + len(tokens)))
        segment.turn.extend([self.turns] * len(tokens))
        segment.day.extend([self._window[-1].day] * len(tokens))
        segment.log_prob.extend(log_prob)
        segment.tokens.extend(tokens)
        self._window[-1].answer = list(tokens)
        self.turns += 1


def ask_all(conversations: Sequence[Conversation], texts: Sequence[str], days: Sequence[int]) -> list[list[int] | None]:
    """Add a question to each conversation, all of one chat format, encoded as one batch.

    Return the appended tokens of each context, or None where it was rebuilt as the last segment's tokens. A question
    that does not fit into the budget raises a ValueError.
    """
    asked = list(zip(conversations, texts, days, strict=True))
    if not asked:
        return []
    chat, opens = conversations[0].chat, [conversation.needs_opening(day) for conversation, _, day in asked]
    fresh = [(one.system, text) for (one, text, _), begins in zip(asked, opens, strict=True) if begins]
    openings = iter(chat.openings(*zip(*fresh, strict=True)) if fresh else [])
    followings = iter(chat.followings([text for text, begins in zip(texts, opens, strict=True) if not begins]))
    added: list[list[int] | None] = []
    for (conversation, text, day), begins in zip(asked, opens, strict=True):
        if begins:
            conversation.begin(day, text, next(openings))
            added.append(None)
        else:
            added.append(conversation.add_question(day, text, next(followings)))
    return added
