"""The `Interaction` of a task of tensors, by its text: one masked tensor step for all rows that answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vecenv.core.engine import BoundEngine, RowCall
from vecenv.core.env import VecEnv
from vecenv.core.rows import TERMINATED, TRUNCATED, Rows
from vecenv.text.door import ChosenState, TextDoor
from vecenv.text.interaction import Episode, Interaction, Turn
from vecenv.text.tool_calls import ToolCall, Tools

if TYPE_CHECKING:
    from vecenv.text.recorder import Recorder


class TensorInteraction(Interaction):
    """Rows of an environment as text agents, in the action space that texts are parsed into.

    If the steps of the environment are compiled, so is what is read of the rows after them, at the first call.

    Args:
        env: whose rows they are.
        recorder: of the environment, which takes the steps where it is given, and records them.

    Raises:
        ValueError: the task has no text.
    """

    def __init__(self, env: VecEnv, recorder: Recorder[Any, Any] | None = None) -> None:
        self.env, self.door, self._recorder = env, TextDoor(env), recorder
        self.num_rows, self.longest = env.num_envs, env.scenario.longest
        self.outcomes: Mapping[str, str] = env.scenario.outcomes
        self.called = self.door.text.called
        self._make_call()

    def _make_call(self) -> None:
        self._look = RowCall(self.env.engine, self._looked, lambda: self.env.compiled)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the compiled function, which a copy makes anew."""
        return {name: value for name, value in self.__dict__.items() if name != "_look"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_call()

    def _looked(self, bound: BoundEngine, rows: Rows) -> dict[str, Tensor]:
        info = bound.info(rows) if self.outcomes else {}
        seen = {f"seen/{name}": block for name, block in bound.observed(rows).items()}
        return seen | {"grade": bound.grade(rows)} | {f"info/{name}": info[name] for name in self.outcomes}

    @property
    def currency(self) -> str | None:  # type: ignore[override]
        return self.env.scenario.metadata().get("market", {}).get("currency")

    def instructions(self, ids: Sequence[int]) -> list[str]:
        return self.door.instructions(ids)

    @torch.no_grad()
    def begin(self, ids: Sequence[int], episodes: Sequence[Episode] | None = None) -> list[Turn]:
        """Begin episodes, which are a seed and a start id, or show rows whose episodes have just begun.

        Raises:
            ValueError: no episodes are named, and that of a row is over.
        """
        if episodes is None:
            over = self.env.rows_of(ids)[0].done.tolist()
            if True in over:
                raise ValueError(f"the episode of row {ids[over.index(True)]} is over: begin another by its name")
        else:
            seeds, starts = torch.tensor(episodes, dtype=torch.int64, device=self.env.device).view(-1, 2).unbind(-1)
            self.env.begin_rows(ids, seeds, starts)
        rows = self.env.row_numbers(ids)
        shown = self._shown(rows, ChosenState(self.env.held.state, rows), self._look(self.env.held))
        return [Turn(text, outcomes=told) for text, told in shown]

    def _shown(
        self, rows: Tensor, state: ChosenState, seen: Mapping[str, Tensor]
    ) -> list[tuple[str, dict[str, float]]]:
        form = self.env.observation_form
        shown = form.whole([seen[f"seen/{name}"].index_select(0, rows) for name in form.buffers])
        texts = self.door.text.render(shown, state)
        columns = {name: seen[f"info/{name}"].index_select(0, rows).tolist() for name in self.outcomes}
        return [(text, {name: told[place] for name, told in columns.items()}) for place, text in enumerate(texts)]

    @torch.no_grad()
    def answer(self, ids: Sequence[int], messages: Sequence[str]) -> list[Turn]:
        """Step some rows; an unreadable answer is an invalid HOLD."""
        env = self.env
        # Checked once: the rest selects by index, in half of the time of brackets.
        rows = env.row_numbers(ids)
        orders, valid = self.door.text.parse(messages, ChosenState(env.held.state, rows))
        faults = self.door.reasons(messages, valid, rows)
        orders = orders.to(env.device)
        action = orders.new_zeros(env.num_envs, *orders.shape[1:]).index_copy_(0, rows, orders)
        chosen = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device).index_fill_(0, rows, True)
        if self._recorder is None:
            reward = env.advance(action, chosen)
        else:
            said = dict(zip(ids, messages, strict=True))
            texts = [said.get(row, "") for row in self._recorder.ids]
            reward = self._recorder.step(action, texts, chosen)
        seen = self._look(env.held)
        after = ChosenState(env.held.state, rows)
        shown = self._shown(rows, after, seen)
        acted = self.door.text.acted(after)
        known = [True] * len(ids) if acted is None else acted.tolist()
        columns = (each.index_select(0, rows).tolist() for each in (reward, env.ended, seen["grade"]))
        return [
            Turn(
                text, paid, ended & TERMINATED != 0, ended & TRUNCATED != 0, fault, did, told, grade if ended else None
            )
            for (text, told), fault, did, paid, ended, grade in zip(shown, faults, known, *columns, strict=True)
        ]

    def heard(self, message: str) -> str:
        """Return the message as it stands: the task's own language reads reasoning."""
        return message

    def grammar(self, ids: Sequence[int]) -> list[str]:
        return self.door.text.grammar(self.door.state(ids))

    def faults(self, ids: Sequence[int], messages: Sequence[str]) -> list[str]:
        return self.door.reasons(messages, self.door.parse(messages, ids)[1], ids)

    def examples(self) -> Sequence[str]:
        return self.door.text.examples()

    def random_answer(self, draw: Random) -> str:
        return self.door.text.random_answer(draw)

    def tools(self, names: Sequence[str]) -> Tools:
        return self.door.text.tools(names)

    def running(self, ids: Sequence[int]) -> list[tuple[int, int, int]]:
        rows, numbers = self.env.rows_of(ids)
        seeds, starts = self.env.seeds_of(numbers), self.env.start_ids[numbers]
        columns = torch.broadcast_tensors(seeds, starts, rows.episode)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def call(self, tools: Tools, ids: Sequence[int], calls: Sequence[ToolCall]) -> list[str]:
        return self.door.tool_results(tools, calls, ids)
