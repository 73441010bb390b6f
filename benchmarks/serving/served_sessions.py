"""Throughput and latency of ``vecenv serve`` with concurrent sessions, compared with a trivial server.

``python -m vecenv.benchmarks.serving.served_sessions`` starts the server in a separate process and runs clients in this
one. Each session waits for the answer before its next message. The trivial server is OpenEnv's with an environment that
returns a fixed text, which measures the protocol's cost.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.table import Table
from websockets.asyncio.client import ClientConnection, connect

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import plain, write_result
from vecenv.tasks.commands.comparison import wide_console

ANSWERS = ("BUY 0.5", "HOLD", "SELL 0.3", "no orders")

SERVING = "Serving"
"""Prefix of the output line of a server that is ready."""


@dataclass(frozen=True)
class ServedSessionsConfig:
    """Settings of the benchmark."""

    task: str = "single_stock"
    """Task to serve."""
    market: str = "synthetic"
    """Market of the task."""
    sessions: tuple[int, ...] = (1, 16, 64)
    """Numbers of concurrent sessions."""
    seconds: float = 10.0
    """Duration of each measurement in seconds."""
    repeats: int = 3
    """Measurements per number of sessions; the median by steps is reported."""
    compile: bool = True
    """Compile the server's step."""
    trivial: bool = True
    """Measure the trivial server too."""
    out: Path | None = Path("benchmarks/results")
    """Folder for the JSON."""

    def __post_init__(self) -> None:
        if not self.sessions or min(self.sessions) < 1 or self.seconds <= 0 or self.repeats < 1:
            raise ValueError("sessions, seconds and repeats must be positive")


@dataclass(frozen=True)
class ServedFigure:
    """One measured server.

    Attributes:
        server: vecenv, or the trivial one.
        sessions: number of concurrent sessions.
        steps_per_second: of all sessions, without resets.
        median_milliseconds: from a message to its answer.
        p99_milliseconds: 99th percentile of the same.
    """

    server: str
    sessions: int
    steps_per_second: float
    median_milliseconds: float
    p99_milliseconds: float


def main(config: ServedSessionsConfig) -> dict[str, Any]:
    """Measure and write the figures."""
    market = ["--task", config.task, "--market", config.market, "--splits", "train"]
    command = ["-m", "vecenv.tasks.commands.cli", "serve", *market]
    most = max(config.sessions)
    servers = {"vecenv": [*command, f"--{'' if config.compile else 'no-'}compile", "--limits.sessions", str(most)]}
    if config.trivial:
        servers["trivial"] = ["-m", "vecenv.benchmarks.serving.trivial_server", "--sessions", str(most)]
    figures = []
    for name, words in servers.items():
        with running_server([*words, "--port", "0"]) as url:
            for sessions in config.sessions:
                found = [measured(name, url, sessions, config.seconds) for _ in range(config.repeats)]
                figures.append(sorted(found, key=lambda figure: figure.steps_per_second)[len(found) // 2])
    device = machine.device_name(torch.device("cpu"))
    result = {
        "device": device,
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "config": plain(config),
        "figures": [asdict(figure) for figure in figures],
    }
    _show(result)
    write_result(config.out, f"served-sessions-{machine.file_stem(device)}", result)
    return result


@contextmanager
def running_server(words: Sequence[str]) -> Iterator[str]:
    """Run a server in a Python process and yield its URL.

    Raises:
        RuntimeError: it did not start.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            told = next((line for line in process.stdout if line.startswith(SERVING)), None)
            if told is None:
                raise RuntimeError(f"the server did not start: {' '.join(words)}")
            yield told.partition(" on ")[2].split()[0].rstrip(",")
        finally:
            process.terminate()


def measured(server: str, url: str, sessions: int, seconds: float) -> ServedFigure:
    """Run a number of sessions for some seconds."""
    started = time.perf_counter()
    latencies, steps = asyncio.run(_play_all(f"{url.replace('http', 'ws', 1)}/ws", sessions, started + seconds))
    spent = time.perf_counter() - started
    latencies.sort()
    return ServedFigure(
        server,
        sessions,
        steps / spent,
        1e3 * latencies[len(latencies) // 2],
        1e3 * latencies[int(0.99 * len(latencies))],
    )


async def _play_all(address: str, sessions: int, until: float) -> tuple[list[float], int]:
    latencies: list[float] = []
    steps = await asyncio.gather(*(_play(address, number, until, latencies) for number in range(sessions)))
    return latencies, sum(steps)


async def _play(address: str, number: int, until: float, latencies: list[float]) -> int:
    """Play episodes in one session and return the number of steps."""
    answers, steps, done = cycle(ANSWERS), 0, True
    async with connect(address, compression=None) as connection:
        while time.perf_counter() < until:
            if done:
                message: dict[str, Any] = {"type": "reset", "data": {"seed": number}}
            else:
                message = {"type": "step", "data": {"text": next(answers)}}
                steps += 1
            started = time.perf_counter()
            done = (await _asked(connection, message))["done"]
            latencies.append(time.perf_counter() - started)
    return steps


async def _asked(connection: ClientConnection, message: dict[str, Any]) -> dict[str, Any]:
    await connection.send(json.dumps(message))
    told = json.loads(await connection.recv())
    if told["type"] != "observation":
        raise RuntimeError(f"the server answered {told}")
    return told["data"]


def _show(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['config']['task']}, {result['device']}, {result['cores']} cores with the clients")
    for heading in ("server", "sessions", "steps/s", "median ms", "99% ms"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for figure in result["figures"]:
        table.add_row(
            figure["server"],
            str(figure["sessions"]),
            f"{figure['steps_per_second']:,.0f}",
            *(f"{figure[name]:.1f}" for name in ("median_milliseconds", "p99_milliseconds")),
        )
    wide_console().print(table)


if __name__ == "__main__":
    main(tyro.cli(ServedSessionsConfig, prog="python -m vecenv.benchmarks.serving.served_sessions"))
