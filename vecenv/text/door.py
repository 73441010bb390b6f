"""What agents that read and write text are shown of some sub-environments, and what their texts stand for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.core.engine import Engine, Rows
from vecenv.core.scenario import Scenario
from vecenv.text.tool_calls import ToolCall, Tools


class ChosenState:
    """The state of some rows, of which each tensor is selected when it is asked for: text needs few of them.

    Args:
        state: of all rows. Batch: (N,).
        env: numbers of the rows. Shape: (B,).
    """

    def __init__(self, state: TensorClass, env: Tensor) -> None:
        self._state, self._env = state, env

    def __getattr__(self, name: str) -> Tensor:
        """Return a tensor of the state. Batch: (B,)."""
        return getattr(self._state, name).index_select(0, self._env)


class TextDoor:
    """The methods of an environment that speak its task's language."""

    scenario: Scenario
    engine: Engine
    rows: Rows
    device: torch.device
    block_widths: list[int]

    @abstractmethod
    def row_numbers(self, ids: Tensor | Sequence[int]) -> Tensor:
        """Return numbers of rows as a tensor, if all are. Shape: (B,)."""

    @abstractmethod
    def rows_of(self, ids: Tensor | Sequence[int]) -> tuple[Rows, Tensor]:
        """Return copies of some rows and their numbers as a tensor. Shape of both: (B,)."""

    @abstractmethod
    def observe_rows(self, rows: Rows, env: Tensor) -> Tensor:
        """Return observations of given rows. Shapes: (M,) rows, (M,) their numbers -> (M, D)."""

    def chosen_state(self, ids: Tensor | Sequence[int]) -> Any:  # noqa: ANN401
        """Return the state of some rows as the task's text knows it, see `ChosenState`. Batch: (B,).

        Raises:
            IndexError: a number is not one of a row.
        """
        return ChosenState(self.rows.state, self.row_numbers(ids))

    def render_text(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return the text of some sub-environments; nothing else is copied from the device.

        Args:
            ids: numbers of rows. Shape: (B,).

        Raises:
            IndexError: a number is not one of a row.
            TypeError: the task has no text.
        """
        rows, env = self.rows_of(ids)
        # vmap takes no empty batch.
        seen = self.observe_rows(rows, env) if len(env) else torch.empty(0, sum(self.block_widths), device=self.device)
        return self.scenario.render(seen, rows.state)

    def instructions(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return what a language model is told before the first day of some sub-environments.

        Args:
            ids: numbers of rows. Shape: (B,).

        Raises:
            IndexError: a number is not one of a row.
            TypeError: the task has no text.
        """
        return self.scenario.instructions(self.chosen_state(ids))

    def tool_results(self, tools: Tools, calls: Sequence[ToolCall], ids: Tensor | Sequence[int]) -> list[str]:
        """Return what the tools say to the calls of some sub-environments; nothing changes in them.

        Args:
            tools: of the scenario.
            calls: one for each row. B of them.
            ids: numbers of rows. Shape: (B,).

        Raises:
            IndexError: a number is not one of a row.
            ValueError: there are not as many calls as rows.
        """
        rows, env = self.rows_of(ids)
        if len(calls) != len(env):
            raise ValueError(f"{len(calls)} calls do not fit {len(env)} rows")

        def step(places: Sequence[int], action: Tensor) -> TensorClass:
            chosen = torch.tensor(places, device=self.device)
            return self.engine.bound().of_rows(env[chosen]).step(rows[chosen], action).rows.state

        return tools.results(rows.state, calls, step)

    def parse_text(self, texts: Sequence[object], ids: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the actions that texts stand for in some sub-environments.

        Args:
            texts: anything; a text that is not valid becomes an action that does nothing and is marked.
            ids: numbers of rows. Shape: (B,).

        Returns:
            Actions, shape (B, *action), and whether each text was valid, shape (B,), bool.

        Raises:
            IndexError: a number is not one of a row.
            TypeError: the task has no text.
            ValueError: there are not as many texts as rows.
        """
        if len(texts) != len(ids):
            raise ValueError(f"{len(texts)} texts do not fit {len(ids)} rows")
        return self.scenario.parse(texts, self.chosen_state(ids))
