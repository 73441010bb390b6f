"""Two minutes of 64 clients, some of whom behave badly: nobody sees another's state, and no row is lost."""

import asyncio
import json
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import vecenv
from tests.tasks.commands.test_serve_command import serving, settings, splits_on
from vecenv.text.dialogue import Dialogue
from vecenv.text.interaction import Episode, Turn
from vecenv.text.tensor_interaction import TensorInteraction

CLIENTS, SECONDS, SPLITS, EPISODES = 64, 120, ("train", "test"), 24
ANSWERS = ("BUY 0.5", "nonsense", "SELL 0.4", "HOLD")
WRONG = ("{", "[]", '{"type": "fly"}', '{"type": "step", "data": {"text": NaN}}', "x" * 1_000_000, b"\x80", "[" * 9_000)
FREED_SECONDS = 10


def transcripts() -> dict[tuple[str, int, int], tuple[str, list[Turn]]]:
    """Return what every episode shows and pays whoever plays it by the fixed answers, turned by a number."""
    given = settings("--task", "single_stock_costs")
    splits = splits_on(given)
    known = {}
    for split in SPLITS:
        for turned in range(len(ANSWERS)):
            env = vecenv.make(
                "single_stock_costs", EPISODES, market=splits.part(split), config=given.env, compile=False
            )
            rows, ids = Dialogue(TensorInteraction(env), given.text), list(range(EPISODES))
            first = [turn.message for turn in rows.begin(ids, [Episode(0, index) for index in ids])]
            days = [rows.answer(ids, [answer] * EPISODES) for answer in rotated(turned)]
            for index in ids:
                known[split, index, turned] = (first[index], [day[index] for day in days])
    return known


def rotated(turned: int) -> tuple[str, ...]:
    return ANSWERS[turned:] + ANSWERS[:turned]


class Client:
    """One of the 64: plays episodes and compares all it sees; what else it does is drawn."""

    def __init__(self, number: int, address: str, known: dict, counts: Counter[str]) -> None:
        self.draw, self.address, self.known, self.counts = random.Random(number), address, known, counts

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                async with connect(self.address, compression=None, max_size=None, open_timeout=30) as connection:
                    await self.session(connection, until)
            except ConnectionClosed:
                self.counts["closed"] += 1

    async def session(self, connection: Any, until: float) -> None:
        for _ in range(self.draw.randint(1, 30)):
            if time.monotonic() >= until:
                return
            split, index, turned = self.draw.choice(SPLITS), self.draw.randrange(EPISODES), self.draw.randrange(4)
            shown, turns = self.known[split, index, turned]
            told = await self.asked(connection, {"type": "reset", "data": {"split": split, "index": index}})
            if told["type"] == "error":
                # A place among the sessions is free a moment after its client has gone.
                assert told["data"]["code"] == "CAPACITY_REACHED", told
                self.counts["full"] += 1
                await asyncio.sleep(0.2)
                return
            assert told["data"]["observation"]["text"] == shown
            for answer, turn in zip(rotated(turned), turns, strict=True):
                await self.misbehave(connection)
                message = {"type": "step", "data": {"text": answer}}
                if self.draw.random() < 0.01:
                    # Gone in the middle of a turn, without a word.
                    await connection.send(json.dumps(message))
                    connection.transport.abort()
                    self.counts["killed"] += 1
                    return
                told = (await self.asked(connection, message))["data"]
                self.counts["steps"] += 1
                seen = (told["observation"]["text"], told["reward"], told["done"])
                assert seen == (turn.message, turn.reward, turn.done)
            assert (await self.asked(connection, message))["type"] == "error"

    async def misbehave(self, connection: Any) -> None:
        drawn = self.draw.random()
        if drawn < 0.05:
            wrong = self.draw.choice(WRONG)
            assert (await self.asked(connection, wrong))["type"] == "error", wrong
            self.counts["refused"] += 1
        elif drawn < 0.1:
            state = (await self.asked(connection, {"type": "state"}))["data"]
            assert state["task"] == "single_stock_costs" and not state["done"] and state["grade"] is None
        elif drawn < 0.12:
            await asyncio.sleep(0.5)

    async def asked(self, connection: Any, message: object) -> dict:
        await connection.send(message if isinstance(message, str | bytes) else json.dumps(message))
        return json.loads(await asyncio.wait_for(connection.recv(), 60))


async def soak(address: str, known: dict) -> Counter[str]:
    counts: Counter[str] = Counter()
    until = time.monotonic() + SECONDS
    await asyncio.gather(*(Client(number, address, known, counts).run(until) for number in range(CLIENTS)))
    await asyncio.sleep(FREED_SECONDS)
    await all_places_are_free(address)
    return counts


async def all_places_are_free(address: str) -> None:
    """Open as many sessions as there may be, at once."""
    opened = [await connect(address, compression=None) for _ in range(CLIENTS)]
    await asyncio.gather(*(connection.send(json.dumps({"type": "reset", "data": {}})) for connection in opened))
    told = await asyncio.gather(*(connection.recv() for connection in opened))
    assert {json.loads(answer)["type"] for answer in told} == {"observation"}
    await asyncio.gather(*(connection.close() for connection in opened))


def resident_bytes(process: int) -> int:
    return 1024 * int(re.search(r"^VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)[1])


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_two_minutes_of_64_clients():
    known = transcripts()
    with serving("--splits", *SPLITS, "--env.max-orders", str(settings().env.max_orders)) as (process, url, log):
        address = f"{url.replace('http', 'ws')}/ws"
        asyncio.run(all_places_are_free(address))
        before = resident_bytes(process.pid)
        counts = asyncio.run(soak(address, known))
        grown = resident_bytes(process.pid) - before
        process.terminate()
        assert process.wait(timeout=20) == 0
        log.seek(0)
        assert log.read().count("\n") == 1 + len(SPLITS)
    print(dict(counts), f"{grown / 1e6:.0f} MB more")
    # How fast is a benchmark's affair; here everybody has to have got somewhere.
    assert counts["steps"] > 10 * CLIENTS and counts["killed"] > 5 and counts["refused"] > 50
    assert grown < 100e6
