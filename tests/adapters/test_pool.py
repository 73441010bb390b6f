"""Requests of rows that nobody waits for any more are not served."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("openenv", reason="the pool serves the door to OpenEnv: vecenv[openenv]")

from tests.adapters.served_market import Lone, small_env, tape_of
from vecenv.adapters.openenv.pool import RowPool
from vecenv.text.turns import TextRows, TextRules

TAPE = tape_of()


def pool_of(rows: int) -> tuple[RowPool, list[list[object]]]:
    """Return a pool and the batches that it serves, as they come."""
    pool, batches = RowPool(TextRows(small_env(rows, TAPE), TextRules())), []
    serve = pool.serve

    def recorded(requests: list) -> list:
        batches.append(list(requests))
        return serve(requests)

    pool.serve = recorded
    return pool, batches


def test_a_cancelled_answer_trades_nothing():
    pool, batches = pool_of(2)

    async def run() -> None:
        for row in (0, 1):
            await pool.open(row, 7, row)
        gone = asyncio.create_task(pool.answer(0, "BUY"))
        staying = asyncio.create_task(pool.answer(1, "BUY 0.5"))
        await asyncio.sleep(0)
        gone.cancel()
        served = await staying
        assert served == Lone(TAPE, 7, 1).answer("BUY 0.5")
        assert [request.row for request in batches[-1]] == [1]
        assert pool._rows.env.rows.elapsed.tolist() == [0, 1]
        # The row is where it was for whoever has it next.
        assert await pool.answer(0, "SELL") == Lone(TAPE, 7, 0).answer("SELL")

    asyncio.run(run())


def test_a_cancelled_opening_begins_nothing():
    pool, batches = pool_of(1)

    async def run() -> None:
        await pool.open(0, 7, 0)
        gone = asyncio.create_task(pool.open(0, 7, 1))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0.01)
        assert len(batches) == 1
        assert await pool.answer(0, "BUY") == Lone(TAPE, 7, 0).answer("BUY")

    asyncio.run(run())
