"""Row pool whose rows are played by worker processes: a session stays with the worker of its row until it leaves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from vecenv.adapters.sessions.pool import Message, Opened, Opening, RowPool, Waiting, settle, still_waiting
from vecenv.text.interaction import AsyncInteraction, Turn

LOST = Turn(
    "The process that played this session has died: the episode is over.", truncated=True, failed=True, outcomes=None
)
"""Turn of a session whose worker is gone; what was known of its outcomes stands."""


class WorkerLostError(Exception):
    """A worker's process has died, or does not answer, and is given up."""


class Worker(Protocol):
    """A place for a worker process, where another follows one that is lost."""

    @property
    def life(self) -> int:
        """Number of the process that is there, from 1; 0 while there is none."""

    async def serve(self, life: int, split: str, requests: Sequence[Opening | Message]) -> list[Opened | Turn]:
        """Have the process of a number serve requests of different rows of a split; WorkerLostError if it is gone."""


def check_for_workers(kind: object) -> None:
    """Raise ValueError if a class is of worlds that take their time, which wait as well in one process."""
    if isinstance(kind, type) and issubclass(kind, AsyncInteraction):
        raise ValueError(f"workers are no help to {kind.__name__}: its rows wait for others, all at a time")


class WorkerPool(RowPool):
    """Lends rows of workers, each of which has as many; row numbers of one worker follow those of the one before.

    Episodes are known by their names, and so the same whichever worker plays them. Requests come from one event loop.

    Args:
        split: that the rows are of.
        pool: like that of each worker; its own rows are not played.
        workers: that have the rows.

    Raises:
        ValueError: the world takes its time, and waits as well in one process.
    """

    def __init__(self, split: str, pool: RowPool, workers: Sequence[Worker]) -> None:
        world = pool.dialogue.interaction
        check_for_workers(type(world))
        super().__init__(pool.dialogue, pool.first)
        self._rows_each = world.num_rows
        self._shares = [_Share(split, worker, world.num_rows) for worker in workers]

    @property
    def free(self) -> int:
        return sum(len(share.free) for share in self._shares if share.worker.life)

    def lend(self) -> int:
        """Return a row of the worker with the most free rows; IndexError if none is free."""
        living = [number for number, share in enumerate(self._shares) if share.worker.life]
        number = max(living, key=lambda number: len(self._shares[number].free), default=None)
        if number is None:
            raise IndexError("there is no worker")
        return number * self._rows_each + self._shares[number].free.popleft()

    def give_back(self, row: int) -> None:
        number, own = divmod(row, self._rows_each)
        self._shares[number].free.append(own)

    async def _ask(self, request: Opening | Message) -> Any:  # noqa: ANN401
        number, own = divmod(request.row, self._rows_each)
        return await self._shares[number].ask(request._replace(row=own))


class _Share:
    """The rows of one worker. Requests that come while it serves go to it together afterwards."""

    def __init__(self, split: str, worker: Worker, num_rows: int) -> None:
        self.worker, self.free = worker, deque(range(num_rows))
        self._split = split
        # Of the process that each row's episode was begun in.
        self._lives = [0] * num_rows
        self._waiting: Waiting = []
        self._serving: asyncio.Task[None] | None = None

    async def ask(self, request: Opening | Message) -> Any:  # noqa: ANN401
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._waiting.append((request, answer))
        if self._serving is None:
            self._serving = loop.create_task(self._serve_waiting())
        return await answer

    async def _serve_waiting(self) -> None:
        try:
            while waiting := still_waiting(self._waiting):
                self._waiting.clear()
                try:
                    settle(waiting, await self._served([request for request, _ in waiting]))
                except Exception as error:
                    settle(waiting, error)
        finally:
            self._serving = None

    async def _served(self, requests: Sequence[Opening | Message]) -> list[Opened | Turn]:
        """Return the results of requests, `LOST` where the process that has the episode is gone."""
        life = self.worker.life
        for request in requests:
            if isinstance(request, Opening):
                self._lives[request.row] = life
        results = [LOST if isinstance(request, Message) else Opened(LOST, "") for request in requests]
        asked = [place for place, request in enumerate(requests) if life and self._lives[request.row] == life]
        if asked:
            try:
                served = await self.worker.serve(life, self._split, [requests[place] for place in asked])
            except WorkerLostError:
                return results
            for place, result in zip(asked, served, strict=True):
                results[place] = result
        return results
