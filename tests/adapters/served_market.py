"""A served market in this process, and what one of its episodes must come to when it is played alone."""

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from websockets.sync.client import ClientConnection, connect

import vecenv
from vecenv.adapters.guard import App, Limits
from vecenv.adapters.openenv.server import build_app
from vecenv.adapters.sessions.http_server import bound_socket, served_url, uvicorn_server
from vecenv.adapters.sessions.pool import RowPool
from vecenv.adapters.sessions.service import TextService
from vecenv.core.env import VecEnv
from vecenv.market.tape import MarketTape
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.interaction import Episode, Turn
from vecenv.text.tensor_interaction import TensorInteraction

TASK = "single_stock_costs"
DAYS = 4
TOKEN = "a token of thirty-two characters"


def tape_of(seed: int = 0) -> MarketTape:
    options = {"num_paths": 3, "num_days": 330, "seed": seed}
    return vecenv.make(TASK, market="planted", market_options=options, context=("signal",)).scenario.tape


def small_env(rows: int, tape: MarketTape) -> VecEnv:
    return vecenv.make(TASK, rows, market=tape, context=("signal",), days=DAYS, action="orders", compile=False)


class Lone:
    """Plays an episode in an environment of its own, of one row."""

    def __init__(self, tape: MarketTape, seed: int, index: int) -> None:
        self.env = small_env(1, tape)
        self.rows = Dialogue(TensorInteraction(self.env), TextRules())
        (begun,) = self.rows.begin([0], [Episode(seed, index)])
        self.shown, self.account = begun.message, begun.outcomes

    def answer(self, text: object) -> Turn:
        return self.rows.answer([0], [text])[0]


@dataclass(repr=False)
class Served:
    """A running server: its URL without a path, what its sessions share, and the market of each split."""

    url: str
    service: TextService
    tapes: Mapping[str, MarketTape]

    @property
    def socket_url(self) -> str:
        return f"{self.url.replace('http', 'ws', 1)}/ws"

    def connected(self, **options: object) -> ClientConnection:
        return connect(self.socket_url, compression=None, **options)

    def free(self) -> int:
        return sum(pool.free for pool in self.service.pools.values())


def service_of(tapes: Mapping[str, MarketTape], rows: int = 8, rules: TextRules | None = None) -> TextService:
    pools = {name: RowPool(Dialogue(TensorInteraction(small_env(rows, tape)), rules)) for name, tape in tapes.items()}
    return TextService(TASK, pools, 50, 7)


@contextmanager
def served(
    limits: Limits | None = None, token: str | None = None, web: bool = False, rows: int = 8
) -> Iterator[Served]:
    tapes = {name: tape_of(seed) for seed, name in enumerate(("train", "validation", "test"))}
    limits, service = limits or Limits(sessions=rows), service_of(tapes, rows)
    with running(lambda url: build_app(service, limits, url, token, web), limits) as url:
        yield Served(url, service, tapes)


@contextmanager
def running(app_at: Callable[[str], App], limits: Limits) -> Iterator[str]:
    """Serve the application that there is for a URL, and yield that, until the context ends."""
    with bound_socket("127.0.0.1", 0) as bound:
        bound.listen()
        url = served_url(bound)
        server = uvicorn_server(app_at(url), limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            waited_for(lambda: server.started)
            yield url
        finally:
            server.should_exit = True
            thread.join(timeout=100)
            assert not thread.is_alive()


@contextmanager
def serving(*words: str, folder: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], str, IO[str]]]:
    """Run ``vecenv serve`` in a process and a folder until the context ends; yield it, its URL and what it logs."""
    command = [sys.executable, "-m", "vecenv.tasks.commands.cli", "serve", *words]
    options = {"env": {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}, "stdout": subprocess.PIPE}
    options |= {"text": True, "cwd": folder}
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log, **options) as process:
        try:
            told = next((line for line in process.stdout if line.startswith("Serving")), None)
            assert told is not None, "the server did not start"
            yield process, told.split(" on ")[1].split(",")[0], log
        finally:
            process.kill()


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yield what a server that has started says in its log within the context."""
    told: list[str] = []
    log, listening = logging.getLogger("uvicorn.error"), logging.Handler()
    listening.emit = lambda record: told.append(record.getMessage())
    log.addHandler(listening)
    try:
        yield told
    finally:
        log.removeHandler(listening)


def waited_for(condition: Callable[[], bool], seconds: float = 100.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.02)


def said(connection: ClientConnection, message: object) -> dict:
    """Send a message, as it is if it is text or bytes, and return the answer."""
    connection.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(connection.recv(timeout=100))


def reset(connection: ClientConnection, **options: object) -> dict:
    return said(connection, {"type": "reset", "data": options})


def step(connection: ClientConnection, text: object) -> dict:
    return said(connection, {"type": "step", "data": {"text": text}})
