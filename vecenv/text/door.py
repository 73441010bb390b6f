"""Text interface of selected rows: rendered observations, instructions, parsed actions and tool results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.text.tool_calls import ToolCall, Tools


class ChosenState:
    """Lazy view of the state of some rows: tensors are selected on access, since text needs few of them."""

    def __init__(self, state: Any, ids: Tensor) -> None:  # noqa: ANN401
        self._state, self._ids = state, ids

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy without attributes yet would ask itself for them.
        return ChosenState, (self._state, self._ids)

    @property
    def device(self) -> torch.device:
        return self._ids.device

    def __getattr__(self, name: str) -> Tensor:
        return getattr(self._state, name).index_select(0, self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, places: Sequence[int] | Tensor) -> ChosenState:
        """Return some of the rows by their positions. Shape: (M,)."""
        return ChosenState(self._state, self._ids[torch.as_tensor(places, device=self._ids.device)])


class TextDoor:
    """Renders and parses text for some rows of an environment; nothing else is copied from the device.

    All methods raise an IndexError for a number that is not a row's.

    Args:
        env: of a task with text.

    Raises:
        ValueError: the task has no text.
    """

    def __init__(self, env: VecEnv) -> None:
        text = env.scenario.text
        if text is None:
            raise ValueError(f"task {env.scenario.name!r} has no text")
        self.env, self.text = env, text

    def state(self, ids: Tensor | Sequence[int]) -> Any:  # noqa: ANN401
        """Return the state of some rows for the task's text, see `ChosenState`. Batch: (B,)."""
        return ChosenState(self.env.held.state, self.env.row_numbers(ids))

    def render(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return the observation texts of some rows. Shape: (B,)."""
        env = self.env
        rows, numbers = env.rows_of(ids)
        # vmap rejects empty batches.
        seen = env.observe_rows(rows, numbers) if len(numbers) else env.observation_form.zeros(0, env.device)
        return self.text.render(seen, rows.state)

    def pictures(self, ids: Tensor | Sequence[int]) -> Tensor:
        """Return what some rows look like; the task's text must have pictures. Shape: (B, H, W, 3), uint8."""
        return self.text.pictures(self.state(ids))

    def instructions(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return the instructions before the first step of some rows. Shape: (B,)."""
        return self.text.instructions(self.state(ids))

    def parse(self, texts: Sequence[object], ids: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """Parse texts into actions of some rows.

        Args:
            texts: arbitrary objects; an invalid one becomes a no-op action and is flagged.
            ids: numbers of rows. Shape: (B,).

        Returns:
            Actions, shape ``(B, *action)``, and whether each text was valid, shape (B,), bool.

        Raises:
            ValueError: the numbers of texts and rows differ.
        """
        if len(texts) != len(ids):
            raise ValueError(f"{len(texts)} texts do not fit {len(ids)} rows")
        actions, valid = self.text.parse(texts, self.state(ids))
        return actions.to(self.env.device), valid.to(self.env.device)

    def reasons(self, texts: Sequence[object], valid: Tensor, ids: Tensor | Sequence[int]) -> list[str]:
        """Return why answers are invalid, empty for a valid one. Shape: (B,)."""
        places = [place for place, known in enumerate(valid.tolist()) if not known]
        told = [""] * len(texts)
        languages = self.text.languages(self.state(torch.as_tensor(ids)[places])) if places else ()
        for number, place in enumerate(places):
            told[place] = (languages[number].fault(texts[place]) if languages else "") or "it cannot be read"
        return told

    def tool_results(self, tools: Tools, calls: Sequence[ToolCall], ids: Tensor | Sequence[int]) -> list[str]:
        """Return the results of tool calls, one for each row, whose state is unchanged.

        Raises:
            ValueError: the numbers of calls and rows differ.
        """
        env = self.env
        numbers = env.row_numbers(ids)
        if len(calls) != len(numbers):
            raise ValueError(f"{len(calls)} calls do not fit {len(numbers)} rows")

        def step(places: Sequence[int], action: Tensor) -> TensorClass:
            rows, own = env.rows_of(numbers[torch.tensor(places, device=env.device)])
            start = (env.seeds_of(own), env.start_ids[own])
            return env.engine.bound().of_rows(own).step(rows, action, *start).rows.state

        return tools.results(ChosenState(env.held.state, numbers), calls, step)
