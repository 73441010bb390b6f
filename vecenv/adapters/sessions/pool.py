"""Row pool with micro-batching: rows of one world are lent to sessions and stepped in batches."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from vecenv.text.dialogue import Dialogue
from vecenv.text.interaction import AsyncInteraction, Episode, Turn
from vecenv.text.tensor_interaction import TensorInteraction


class Opening(NamedTuple):
    """Request to begin the episode of a seed and an index in a row."""

    row: int
    seed: int
    index: int  # type: ignore[assignment]  # in place of the method of tuples


class Message(NamedTuple):
    """Request for a turn in a row."""

    row: int
    text: object


class Opened(NamedTuple):
    """A started episode: its first turn, and the instructions."""

    turn: Turn
    instructions: str


Waiting = list[tuple[Opening | Message, "asyncio.Future[Any]"]]
"""Requests, and where their results go."""


def still_waiting(waiting: Waiting) -> Waiting:
    """Return what some requests are without those that were cancelled, whose rows may be lent again."""
    return [entry for entry in waiting if not entry[1].done()]


def settle(waiting: Waiting, outcome: Sequence[Opened | Turn] | Exception) -> None:
    """Give requests their results, or all of them an error."""
    for place, (_, future) in enumerate(waiting):
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome[place])


class RowPool:
    """Lends the rows of a world and serves concurrent requests as one batch.

    All work is done in the caller's event loop, so batches never overlap. Requests queue while a batch is served: the
    higher the load, the larger the batches. A lone session's message is served at once. A world that takes its time
    (`AsyncInteraction`) serves each request apart.

    Args:
        dialogue: whose rows are lent, all free.
        first: index of the episode that sessions call 0.

    Raises:
        ValueError: rows share a world, so that they cannot be lent one by one.
    """

    def __init__(self, dialogue: Dialogue, first: int = 0) -> None:
        world = dialogue.interaction
        agents = world.env.traits.num_agents if isinstance(world, TensorInteraction) else 1
        if agents > 1:
            raise ValueError(f"rows are lent one by one, but {agents} agents share a world")
        self.dialogue, self.first = dialogue, first
        self._free = deque(range(world.num_rows))
        self._waiting: Waiting = []

    def prepare(self, seed: int) -> None:
        """Compile beginnings, the look at rows, which have seeds of their own, and the step; no row may be lent."""
        world = self.dialogue.interaction
        if isinstance(world, TensorInteraction):
            env = world.env
            env.expect(sys.maxsize)
            self.dialogue.begin([0], [Episode(seed, 0)])
            env.advance(env.action_spec.zero(), torch.zeros(env.num_envs, dtype=torch.bool, device=env.device))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def outcomes(self) -> Mapping[str, str]:
        """Unit of each reported outcome, most important first."""
        return self.dialogue.outcomes

    @property
    def currency(self) -> str | None:
        return self.dialogue.interaction.currency

    @property
    def examples(self) -> tuple[str, ...]:
        return tuple(self.dialogue.interaction.examples())

    def lend(self) -> int:
        """Return a row for exclusive use; IndexError if none is free."""
        return self._free.popleft()

    def give_back(self, row: int) -> None:
        """Return a row to the pool; thread-safe."""
        self._free.append(row)

    async def open(self, row: int, seed: int, index: int) -> Opened:
        return await self._ask(Opening(row, seed, index))

    async def answer(self, row: int, text: object) -> Turn:
        return await self._ask(Message(row, text))

    async def _ask(self, request: Opening | Message) -> Any:  # noqa: ANN401
        if isinstance(self.dialogue.interaction, AsyncInteraction):
            return (await self.serve_async([request]))[0]
        if isinstance(request, Message) and len(self._free) == self.dialogue.interaction.num_rows - 1:
            # Nobody else has a row: no batch is waited for.
            return self.serve([request])[0]
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._waiting.append((request, answer))
        if len(self._waiting) == 1:
            # A timer callback runs after all pending events, so all requests received by then form one batch.
            loop.call_later(0.0, self._serve_waiting)
        return await answer

    def _serve_waiting(self) -> None:
        waiting = still_waiting(self._waiting)
        self._waiting.clear()
        if not waiting:
            return
        try:
            settle(waiting, self.serve([request for request, _ in waiting]))
        except Exception as error:
            settle(waiting, error)

    def serve(self, requests: Sequence[Opening | Message]) -> list[Opened | Turn]:
        """Serve requests of different rows as one batch."""
        return self.dialogue.run(self.serve_async(requests))

    async def serve_async(self, requests: Sequence[Opening | Message]) -> list[Opened | Turn]:
        results: dict[int, Opened | Turn] = {}
        asked = {place: request for place, request in enumerate(requests) if isinstance(request, Message)}
        if asked:
            texts = [request.text for request in asked.values()]
            turns = await self.dialogue.answer_async([request.row for request in asked.values()], texts)
            results |= zip(asked, turns, strict=True)
        opening = {place: request for place, request in enumerate(requests) if isinstance(request, Opening)}
        if opening:
            ids = [request.row for request in opening.values()]
            names = [Episode(request.seed, self.first + request.index) for request in opening.values()]
            begun = await self.dialogue.begin_async(ids, names)
            results |= zip(opening, map(Opened, begun, self.dialogue.instructions(ids)), strict=True)
        return [results[place] for place in range(len(requests))]
