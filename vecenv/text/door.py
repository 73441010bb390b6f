"""Some rows of an environment in words: what their agents are shown, and what their answers stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.text.tool_calls import ToolCall, Tools


class ChosenState:
    """The state of some rows, of which each tensor is selected when it is asked for: text needs few of them.

    Args:
        state: of all rows. Batch: (N,).
        ids: numbers of the rows. Shape: (B,).
    """

    def __init__(self, state: TensorClass, ids: Tensor) -> None:
        self._state, self._ids = state, ids

    def __getattr__(self, name: str) -> Tensor:
        """Return a tensor of the state. Batch: (B,)."""
        return getattr(self._state, name).index_select(0, self._ids)


class TextDoor:
    """Reads and writes text in some rows of an environment; nothing else is copied from the device.

    All methods raise an IndexError where a number is not one of a row.

    Args:
        env: of a task that has text.

    Raises:
        ValueError: the task has no text.
    """

    def __init__(self, env: VecEnv) -> None:
        text = env.scenario.text
        if text is None:
            raise ValueError(f"task {env.scenario.name!r} has no text")
        self.env, self.text = env, text

    def state(self, ids: Tensor | Sequence[int]) -> Any:  # noqa: ANN401
        """Return the state of some rows as the task's text knows it, see `ChosenState`. Batch: (B,)."""
        return ChosenState(self.env.rows.state, self.env.row_numbers(ids))

    def render(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return what the agents of some rows read. Shape: (B,)."""
        env = self.env
        rows, numbers = env.rows_of(ids)
        # vmap takes no empty batch.
        width = sum(env.block_widths)
        seen = env.observe_rows(rows, numbers) if len(numbers) else torch.empty(0, width, device=env.device)
        return self.text.render(seen, rows.state)

    def instructions(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return what a language model is told before the first step of some rows. Shape: (B,)."""
        return self.text.instructions(self.state(ids))

    def parse(self, texts: Sequence[object], ids: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the actions that texts stand for in some rows.

        Args:
            texts: anything; a text that is not valid becomes an action that does nothing and is marked.
            ids: numbers of rows. Shape: (B,).

        Returns:
            Actions, shape (B, *action), and whether each text was valid, shape (B,), bool.

        Raises:
            ValueError: there are not as many texts as rows.
        """
        if len(texts) != len(ids):
            raise ValueError(f"{len(texts)} texts do not fit {len(ids)} rows")
        return self.text.parse(texts, self.state(ids))

    def tool_results(self, tools: Tools, calls: Sequence[ToolCall], ids: Tensor | Sequence[int]) -> list[str]:
        """Return what the tools say to the calls of some rows; nothing changes in them.

        Args:
            tools: of the task's text.
            calls: one for each row. B of them.
            ids: numbers of rows. Shape: (B,).

        Raises:
            ValueError: there are not as many calls as rows.
        """
        env = self.env
        rows, numbers = env.rows_of(ids)
        if len(calls) != len(numbers):
            raise ValueError(f"{len(calls)} calls do not fit {len(numbers)} rows")

        def step(places: Sequence[int], action: Tensor) -> TensorClass:
            chosen = torch.tensor(places, device=env.device)
            return env.engine.bound().of_rows(numbers[chosen]).step(rows[chosen], action).rows.state

        return tools.results(rows.state, calls, step)
