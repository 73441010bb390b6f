"""Turns of concurrent sessions of ``vecenv serve``, beside those of OpenEnv's server that does nothing.

Servers run in processes of their own, clients in this one. A call is one episode of twenty days of every session; each
waits for the answer before its next message. Where Ray is installed, servers with workers take turns too. ``--trivial
SESSIONS`` starts the server that does nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from itertools import cycle, islice
from typing import Any

from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig

ANSWERS = ("BUY 0.5", "HOLD", "SELL 0.3", "no orders")

DAYS, CHARACTERS = 20, 700
"""Days of an episode, and characters of a day's text, of the single-stock tier."""


def points_of_served_sessions(config: CaseConfig) -> Sequence[Point]:
    workers = (1, 2) if find_spec("ray") else ()
    return [
        Point(f"{count} session{'s' * (count > 1)}", partial(served, config, count, workers))
        for count in config.sized((2,), (1, 16, 64))
    ]


def served(config: CaseConfig, sessions: int, workers: Sequence[int] = ()) -> list[Workload]:
    """Start servers; return an episode of all sessions of each: OpenEnv's, ours, and ours with numbers of workers."""
    task = ["--task", "single_stock", "--market", "synthetic", "--splits", "train", "--port", "0"]
    task += ["--compile" if config.compile else "--no-compile", "--limits.sessions", str(sessions)]
    servers = {
        "does nothing": ["-m", "vecenv.benchmarks.throughput.served_sessions", "--trivial", str(sessions)],
        "vecenv": ["-m", "vecenv.tasks.commands.cli", "serve", *task],
    }
    for count in (count for count in workers if count <= sessions):
        words = ["--engine", "ray", "--workers", str(count)]
        servers[f"vecenv, {count} worker{'s' * (count > 1)}"] = [*servers["vecenv"], *words]
    workloads = []
    # All start before sessions open: a server closes those that answer no ping for 40 s, as here between their turns.
    for name, url in {name: started_server(words) for name, words in servers.items()}.items():
        play = _players(url, sessions)
        beside = {"does nothing": None, "vecenv": "does nothing"}.get(name, "vecenv")
        workloads.append(Workload(name, play, sessions * DAYS, beside=beside, told={"cores": os.cpu_count()}))
    return workloads


def started_server(words: Sequence[str]) -> str:
    """Start a server in a Python process that ends with this one; return its URL, or raise RuntimeError."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment)
    atexit.register(process.terminate)
    assert process.stdout is not None
    told = next((line for line in process.stdout if line.startswith("Serving")), None)
    if told is None:
        raise RuntimeError(f"the server did not start: {' '.join(words)}")
    return told.partition(" on ")[2].split()[0].rstrip(",")


def _players(url: str, sessions: int) -> Any:  # noqa: ANN401
    """Connect sessions and return the call that plays an episode in each."""
    from websockets.asyncio.client import ClientConnection, connect

    loop = asyncio.new_event_loop()
    address = f"{url.replace('http', 'ws', 1)}/ws"

    async def connected() -> list[ClientConnection]:
        return [await connect(address, compression=None, ping_interval=None) for _ in range(sessions)]

    async def asked(connection: ClientConnection, message: dict[str, Any]) -> dict[str, Any]:
        await connection.send(json.dumps(message))
        told = json.loads(await connection.recv())
        if told["type"] != "observation":
            raise RuntimeError(f"the server answered {told}")
        return told["data"]

    async def episode(number: int, connection: ClientConnection) -> None:
        told = await asked(connection, {"type": "reset", "data": {"seed": number}})
        for answer in islice(cycle(ANSWERS), DAYS):
            told = await asked(connection, {"type": "step", "data": {"text": answer}})
        assert told["done"], "an episode has twenty days"

    async def episodes() -> None:
        await asyncio.gather(*(episode(number, connection) for number, connection in enumerate(connections)))

    connections = loop.run_until_complete(connected())
    return lambda: loop.run_until_complete(episodes())


def serve_nothing(sessions: int) -> None:
    """Serve the same text for twenty days, whatever is answered, until terminated."""
    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import State

    from vecenv.adapters.openenv.models import TextAction, TextObservation

    class Trivial(Environment[TextAction, TextObservation, State]):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._days = 0

        def reset(self, seed: int | None = None, episode_id: str | None = None) -> TextObservation:
            self._days = 0
            return self._shown()

        def step(self, action: TextAction) -> TextObservation:
            self._days += 1
            return self._shown()

        # The synchronous methods would run in a thread.
        async def reset_async(self, seed: int | None = None, episode_id: str | None = None) -> TextObservation:
            return self.reset(seed, episode_id)

        async def step_async(self, action: TextAction) -> TextObservation:
            return self.step(action)

        def _shown(self) -> TextObservation:
            text, done = "x" * CHARACTERS, self._days == DAYS
            return TextObservation(text=text, day=self._days, outcomes={"total_return": 0.0}, reward=0.0, done=done)

        @property
        def state(self) -> State:
            return State(step_count=self._days)

    app = create_fastapi_app(Trivial, TextAction, TextObservation, sessions)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        print(f"Serving nothing on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        settings = uvicorn.Config(app, log_level="warning", access_log=False, ws_per_message_deflate=False)
        uvicorn.Server(settings).run(sockets=[listening])


if __name__ == "__main__" and sys.argv[1:2] == ["--trivial"]:
    serve_nothing(int(sys.argv[2]))
