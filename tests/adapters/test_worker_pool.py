"""Rows of workers, here in this process: sessions stay with theirs, and end with it, without another's state."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.guess_number import GuessNumber
from vecenv import Dialogue, Turn
from vecenv.adapters.sessions.pool import Message, Opened, Opening, RowPool
from vecenv.adapters.sessions.service import SessionError, TextService
from vecenv.adapters.sessions.session import RowSession
from vecenv.adapters.sessions.worker_pool import LOST, WorkerLostError, WorkerPool


def pool_of(rows: int) -> RowPool:
    return RowPool(Dialogue(GuessNumber(rows, None)), first=5)


class Here:
    """A worker with two rows, whose process ends when it is told so, or in the middle of a batch."""

    def __init__(self) -> None:
        self.deaths, self.batches, self.held = 0, [], asyncio.Event()
        self.held.set()
        self.begin()

    def begin(self) -> None:
        self.pool, self.life = pool_of(2), self.deaths + 1

    def die(self) -> None:
        self.life, self.deaths = 0, self.deaths + 1

    async def serve(self, life: int, split: str, requests: Sequence[Opening | Message]) -> list[Opened | Turn]:
        self.batches.append(len(requests))
        await self.held.wait()
        if life != self.life:
            raise WorkerLostError
        return self.pool.serve(requests)


def test_sessions_stay_with_their_worker_and_end_with_it():
    async def play() -> None:
        workers, alone = (Here(), Here()), pool_of(4)
        pool = WorkerPool("train", pool_of(2), workers)
        service = TextService("guess_number", {"train": pool}, 50, 7)
        sessions = [RowSession(service) for _ in range(4)]
        begun = [await session.begin(7, {"index": number}) for number, session in enumerate(sessions)]
        assert begun == alone.serve([Opening(row, 7, row) for row in range(4)])
        assert sorted(session.row for session in sessions) == [0, 1, 2, 3] and pool.free == 0
        with pytest.raises(SessionError, match="all rows of the server are taken; try again later"):
            await RowSession(service).begin(7, {})

        async def said(*texts: str) -> list[Turn]:
            return list(await asyncio.gather(*map(RowSession.say, sessions, texts)))

        words = ("3", "9", "12", "none")
        assert await said(*words) == alone.serve([Message(row, text) for row, text in enumerate(words)])
        assert [worker.batches for worker in workers] == [[1, 1, 2]] * 2

        # A worker that dies in the middle of a batch ends its sessions alone, and what waits is not begun.
        dead = workers[0]
        dead.held.clear()
        under_way = asyncio.create_task(said(*words))
        while len(dead.batches) < 4:
            await asyncio.sleep(0)
        dead.die()
        dead.held.set()
        others = alone.serve([Message(row, text) for row, text in enumerate(words)])
        own = [number for number, session in enumerate(sessions) if session.row < 2]
        assert await under_way == [LOST if number in own else turn for number, turn in enumerate(others)]
        assert all((sessions[number].state.failed, sessions[number].state.done) == (True, True) for number in own)
        assert sessions[own[0]].state.outcomes == {"tries": 1.0}, "what was known stands"
        with pytest.raises(SessionError, match="all rows of the server are taken"):
            await sessions[own[0]].begin(7, {})
        sessions[({*range(4)} - {*own}).pop()].close()
        assert (await sessions[own[0]].begin(7, {"index": 0})) == begun[0] and sessions[own[0]].row >= 2

        # The next one knows nothing of an episode that it has not begun.
        dead.begin()
        assert await pool.answer(0, "3") == LOST
        await sessions[own[1]].begin(7, {"index": 3})
        assert sessions[own[1]].row < 2 and not sessions[own[1]].state.failed
        for worker in workers:
            worker.die()
        assert pool.free == 0 and (await pool.open(0, 7, 0)).turn == LOST
        assert await pool.answer(0, "3") == LOST

    asyncio.run(play())
