"""Base class of a task's text interface: rendering, instructions, parsing and tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import Any

from torch import Tensor

from vecenv.text.answer_lines import ANSWERS_VERSION, AnswerLanguage
from vecenv.text.tool_calls import Tools


class TextInterface(ABC):
    """Renders observations and parses actions, for B rows at a time.

    States are those of the task's scenario, with batch (B,). Texts may hold only what a tensor agent observes.

    Attributes:
        language: of the answers of all rows, unless rows have languages of their own.
        called: what an answer is called, such as orders or moves.
        answers_version: of the rules by which answers are read; an older one in replays of older records.
    """

    language: AnswerLanguage[Any] | None = None
    called: str = "answer"
    answers_version: int = ANSWERS_VERSION

    @abstractmethod
    def render(self, observations: Tensor, state: Any) -> list[str]:  # noqa: ANN401
        """Return the observation text of each row. Shape of the observations: (B, D), or by name (B, ...)."""

    @abstractmethod
    def instructions(self, state: Any) -> list[str]:  # noqa: ANN401
        """Return the instructions before the first step of each row."""

    def parse(self, texts: Sequence[object], state: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Parse texts into actions, ``(B, *action)``, and validity flags, (B,), bool, on any device; by `language`.

        No text raises: an invalid one becomes a no-op action. NotImplementedError of a class without a language.
        """
        if self.language is None:
            raise NotImplementedError(f"{type(self).__name__} needs a language, or a parse of its own")
        return self.language.tensor([self.language.parse(text) for text in texts])

    def languages(self, state: Any) -> Sequence[AnswerLanguage[Any]]:  # noqa: ANN401
        """Return the language of each row's answer, which tells why an answer is invalid; none without `language`."""
        return [] if self.language is None else [self.language] * len(state)

    def acted(self, state: Any) -> Tensor | None:  # noqa: ANN401
        """Return whether the last step did more than wait, shape (B,), bool; None where every step does."""
        return None

    def pictures(self, state: Any) -> Tensor:  # noqa: ANN401
        """Return what each row looks like, where `pictured`. Shape: (B, H, W, 3), uint8."""
        raise NotImplementedError(f"{type(self).__name__} has no pictures")

    @property
    def pictured(self) -> bool:
        """Whether there are `pictures`."""
        return type(self).pictures is not TextInterface.pictures

    def grammar(self, state: Any) -> list[str]:  # noqa: ANN401
        """Return what each row may answer; the instructions by default."""
        return self.instructions(state)

    def examples(self) -> Sequence[str]:
        """Return short answers that are valid in any state, such as for buttons; none by default."""
        return ()

    def tools(self, names: Sequence[str]) -> Tools:
        """Return tools that an agent may call before it answers.

        Args:
            names: of tools or tool families.

        Raises:
            ValueError: there is no such tool, or the task has none.
        """
        raise ValueError(f"there are no tools; {', '.join(names)} cannot be called")

    def random_answer(self, draw: Random) -> str:
        """Return a random answer that is valid in any state, for tests; by default one of the examples."""
        return draw.choice(list(self.examples()) or [""])
