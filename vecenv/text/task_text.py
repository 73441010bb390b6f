"""What a task provides so that agents can read and write text in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import Any

from torch import Tensor

from vecenv.text.tool_calls import Tools


class TaskText(ABC):
    """Writes observations and reads actions, for B rows at a time.

    States are those of the task's scenario, with batch (B,). Only what a tensor agent sees may be written.
    """

    @abstractmethod
    def render(self, observations: Tensor, state: Any) -> list[str]:  # noqa: ANN401
        """Return what the agent of each row reads. Shape of the observations: (B, D)."""

    @abstractmethod
    def instructions(self, state: Any) -> list[str]:  # noqa: ANN401
        """Return what a language model is told before the first step of each row."""

    @abstractmethod
    def parse(self, texts: Sequence[object], state: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Return the actions that texts stand for, shape (B, *action), and whether each was valid, shape (B,), bool.

        Whatever a text holds, nothing raises: what is not valid becomes an action that does nothing.
        """

    def acted(self, state: Any) -> Tensor | None:  # noqa: ANN401
        """Return whether the last step did more than wait, shape (B,), bool; None where every step does."""
        return None

    def tools(self, names: Sequence[str]) -> Tools:
        """Return tools that a language model may call before it answers.

        Args:
            names: of tools or of families of tools.

        Raises:
            ValueError: there is no such tool, or the task has none.
        """
        raise ValueError(f"there are no tools; {', '.join(names)} cannot be called")

    def random_answer(self, draw: Random) -> str:
        """Return a text that can be read in any state, to try things out with; an empty one by default."""
        return ""
