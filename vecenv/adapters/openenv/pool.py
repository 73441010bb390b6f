"""Row pool with micro-batching: rows of one environment are lent to sessions and stepped in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from vecenv.text.turns import TextRows, TextTurn


@dataclass(frozen=True)
class Opening:
    """Request to begin the episode of a seed and an index in a row."""

    row: int
    seed: int
    index: int


@dataclass(frozen=True)
class Answer:
    """Request for a turn in a row."""

    row: int
    text: object


class Opened(NamedTuple):
    """A started episode: its first day, the instructions, and its outcomes so far."""

    shown: str
    instructions: str
    outcomes: dict[str, float]


class RowPool:
    """Lends the rows of an environment and serves concurrent requests as one batch.

    All work is done in the caller's event loop, so batches never overlap. Requests queue while a batch is served: the
    higher the load, the larger the batches.

    Args:
        rows: rows to lend, all free.
        first: start id of the episode of index 0.

    Raises:
        ValueError: rows share a world, so that they cannot be lent one by one.
    """

    def __init__(self, rows: TextRows, first: int = 0) -> None:
        agents = rows.env.traits.num_agents
        if agents > 1:
            raise ValueError(f"rows are lent one by one, but {agents} agents share a world")
        self._rows, self._first = rows, first
        self._free = deque(range(rows.env.num_envs))
        self._waiting: list[tuple[Opening | Answer, asyncio.Future[Any]]] = []

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def outcomes(self) -> Mapping[str, str]:
        """Unit of each reported outcome, most important first."""
        return self._rows.env.scenario.outcomes

    @property
    def currency(self) -> str | None:
        return self._rows.env.scenario.metadata().get("market", {}).get("currency")

    @property
    def examples(self) -> tuple[str, ...]:
        text = self._rows.env.scenario.text
        return () if text is None else tuple(text.examples())

    def lend(self) -> int:
        """Return a row for exclusive use; IndexError if none is free."""
        return self._free.popleft()

    def give_back(self, row: int) -> None:
        """Return a row to the pool; thread-safe."""
        self._free.append(row)

    async def open(self, row: int, seed: int, index: int) -> Opened:
        return await self._ask(Opening(row, seed, index))

    async def answer(self, row: int, text: object) -> TextTurn:
        return await self._ask(Answer(row, text))

    async def _ask(self, request: Opening | Answer) -> Any:  # noqa: ANN401
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._waiting.append((request, answer))
        # A timer callback runs after all pending events, so all requests received by then form one batch.
        loop.call_later(0.0, self._serve_waiting)
        return await answer

    def _serve_waiting(self) -> None:
        # Skip cancelled futures; their rows may be re-lent.
        waiting = [entry for entry in self._waiting if not entry[1].done()]
        self._waiting.clear()
        if not waiting:
            return
        try:
            results = self.serve([request for request, _ in waiting])
        except Exception as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(waiting, results, strict=True):
            if not future.done():
                future.set_result(result)

    def serve(self, requests: Sequence[Opening | Answer]) -> list[Opened | TextTurn]:
        """Serve requests of different rows as one batch."""
        results: dict[int, Opened | TextTurn] = {}
        answers = [(place, request) for place, request in enumerate(requests) if isinstance(request, Answer)]
        if answers:
            turns = self._rows.answer([asked.row for _, asked in answers], [asked.text for _, asked in answers])
            results |= {place: turn for (place, _), turn in zip(answers, turns, strict=True)}
        openings = [(place, request) for place, request in enumerate(requests) if isinstance(request, Opening)]
        if openings:
            opened = self._begin([asked for _, asked in openings])
            results |= {place: begun for (place, _), begun in zip(openings, opened, strict=True)}
        return [results[place] for place in range(len(requests))]

    def _begin(self, openings: Sequence[Opening]) -> list[Opened]:
        rows, ids = self._rows, [opening.row for opening in openings]
        seeds, indices = (
            torch.tensor([getattr(opening, name) for opening in openings], device=rows.env.device)
            for name in ("seed", "index")
        )
        rows.env.begin_rows(ids, seeds, self._first + indices)
        begun = zip(rows.begin(ids), rows.instructions(ids), strict=True)
        return [Opened(shown, instructions, outcomes) for (shown, outcomes), instructions in begun]
