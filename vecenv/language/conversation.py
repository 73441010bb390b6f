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


@dataclass
class Segment:
    """Tokens that a model read and wrote in one stretch.

    Attributes:
        tokens: all of them. L of them.
        drawn: places of those that the model drew, ascending. D of them.
        turn: number of the answer that each of these belongs to, counted through the conversation. D of them.
        log_prob: of each of these. D of them.
    """

    tokens: list[int]
    drawn: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)


@dataclass
class _Turn:
    """A question, its tokens as they follow an answer, where they were needed, and the answer to it."""

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

    @property
    def begins_anew(self) -> bool:
        """Whether nothing that was said before stays for the next question."""
        return not self._window or self.config.history_days == 0

    def begin(self, text: str, opening: list[int]) -> None:
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
        self._window = [_Turn(text, [])]
        self.segments.append(Segment(list(opening)))

    def go_on(self, text: str, following: list[int]) -> list[int] | None:
        """Put a further question.

        Args:
            text: the question.
            following: its tokens, from the end of the answer before on.

        Returns:
            The tokens that are appended, or None where the context was made anew.

        Raises:
            ValueError: the question alone does not fit into the budget.
        """
        config = self.config
        most = config.context_tokens - config.answer_tokens
        added = self.chat.joined(self._window[-1].answer, following)
        self._window.append(_Turn(text, following))
        kept = config.history_days is None or len(self._window) - 1 <= config.history_days
        if kept and len(self.segments[-1].tokens) + len(added) <= most:
            self.segments[-1].tokens.extend(added)
            return added
        # What no longer fits leaves room for days to come; what is too old leaves day by day.
        most = most - config.context_tokens // 2 if kept else most
        if not kept:
            del self._window[0]
        while len(self._window) > 1 and len(tokens := self._context()) > most:
            del self._window[0]
        if len(self._window) == 1:
            self.begin(text, self._context())
        else:
            self.segments.append(Segment(tokens))
        return None

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
        segment.log_prob.extend(log_prob)
        segment.tokens.extend(tokens)
        self._window[-1].answer = list(tokens)
        self.turns += 1


def ask_all(conversations: Sequence[Conversation], texts: Sequence[str]) -> list[list[int] | None]:
    """Put a question to each of some conversations of one form, encoding all of them together.

    Returns:
        The tokens that are appended to each context, or None where it was made anew: the last segment's tokens.

    Raises:
        ValueError: a question does not fit into the budget.
    """
    asked = list(zip(conversations, texts, strict=True))
    if not asked:
        return []
    chat = conversations[0].chat
    fresh = [(conversation.system, text) for conversation, text in asked if conversation.begins_anew]
    openings = iter(chat.openings(*zip(*fresh, strict=True)) if fresh else [])
    followings = iter(chat.followings([text for conversation, text in asked if not conversation.begins_anew]))
    added: list[list[int] | None] = []
    for conversation, text in asked:
        if conversation.begins_anew:
            conversation.begin(text, next(openings))
            added.append(None)
        else:
            added.append(conversation.go_on(text, next(followings)))
    return added
