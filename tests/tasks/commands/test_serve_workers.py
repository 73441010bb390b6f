"""Workers on Ray serve what one process serves, also where one dies, and leave nothing behind."""

import os
import signal
import time
import uuid
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

pytest.importorskip("ray")
pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")

from rich.console import Console
from websockets.sync.client import connect

from tests.adapters.served_market import reset, serving, step
from tests.distributed.leftovers import MARK, gone, kept, left, marked
from vecenv.adapters.sessions import ray_workers
from vecenv.adapters.sessions.pool import Message, Opening
from vecenv.adapters.sessions.worker_pool import LOST
from vecenv.tasks.commands import serving as served
from vecenv.tasks.commands.serve import ServeSettings
from vecenv.tasks.commands.serving import pools_of, row_pools

GAME = ("--task", "frozen_lake", "--splits", "train", "--no-compile", "--limits.sessions", "4")
ANSWERS = ("Right", "Down", "nowhere", "Left")
SECONDS = 300.0
"""In which a worker is replaced, at most, on a machine that is busy with others."""


def workers_of(mark: str) -> set[int]:
    titles = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked(mark)}
    return {pid for pid, title in titles.items() if b"RowWorker" in title}


def shown(told: dict) -> tuple:
    assert told["type"] == "observation", told
    data = told["data"]
    return data["observation"]["text"], data["reward"], data["done"]


def test_worlds_that_wait_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(served, "made_pools", lambda *_: pytest.fail("a world was made"))
    settings = replace(ServeSettings.defaults(("--task", "code")), engine="ray")
    with pytest.raises(ValueError, match=r"^workers are no help to CodeWorld"), pools_of(settings, Console()):
        pass


def test_the_loss_of_ray_is_noticed_while_nothing_is_asked_of_it():
    """Ray itself ends the process when it notices."""
    from ray import exceptions

    failures = []
    check = Mock(side_effect=ray_workers.RayLostError(ray_workers.LOST))
    place = ray_workers._Place(0, SimpleNamespace(closed=False, check_ray=check, fail=failures.append))
    waits = Mock(side_effect=exceptions.GetTimeoutError)
    place._newest, place._ray = Mock(), SimpleNamespace(exceptions=exceptions, get=waits)
    place._keep()
    assert [str(failure) for failure in failures] == [ray_workers.LOST]
    assert waits.call_args.kwargs["timeout"] <= 5.0


def test_workers_serve_what_one_process_serves_and_one_that_dies_is_replaced(monkeypatch):
    before, mark = kept(), uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    settings = replace(ServeSettings.defaults(GAME), compile=False, splits=("train",))
    (alone,) = row_pools(settings, Console(quiet=True)).values()

    def expected(requests: list) -> list[tuple]:
        turns = [getattr(result, "turn", result) for result in alone.serve(requests)]
        return [(turn.message, turn.reward, turn.done) for turn in turns]

    options = ("--engine", "ray", "--workers", "2", "--port", "0")
    with serving(*GAME, *options) as (process, url, log), ExitStack() as stack:
        address = f"{url.replace('http', 'ws')}/ws"
        sessions = [stack.enter_context(connect(address, compression=None)) for _ in range(4)]
        begun = [shown(reset(session, seed=3, index=row)) for row, session in enumerate(sessions)]
        opened = expected([Opening(row, 3, row) for row in range(4)])
        assert [(text, done) for text, _, done in begun] == [(text, done) for text, _, done in opened]
        told = [shown(step(session, text)) for session, text in zip(sessions, ANSWERS, strict=True)]
        assert told == expected([Message(row, text) for row, text in enumerate(ANSWERS)])

        workers = workers_of(mark)
        assert len(workers) == 2
        os.kill(min(workers), signal.SIGKILL)
        told = [shown(step(session, text)) for session, text in zip(sessions, ANSWERS, strict=True)]
        ended = [row for row in range(4) if told[row][0] == LOST.shown]
        assert len(ended) == 2 and all(told[row] == (LOST.shown, 0.0, True) for row in ended)
        others = expected([Message(row, text) for row, text in enumerate(ANSWERS)])
        assert [told[row] for row in range(4) if row not in ended] == [
            others[row] for row in range(4) if row not in ended
        ]

        # One of them finds a row of the other worker, the next one only when there are two again.
        end = time.monotonic() + SECONDS
        for row in ended:
            while (answer := reset(sessions[row], seed=3, index=row))["type"] == "error":
                assert answer["data"]["message"] == "all rows of the server are taken; try again later"
                assert time.monotonic() < end
                time.sleep(0.1)
            assert shown(answer)[0] == begun[row][0]
        replaced = workers_of(mark)
        assert len(replaced) == 2 and len(replaced & workers) == 1
        alone.serve([Opening(row, 3, row) for row in ended])
        told = [shown(step(sessions[row], "Down")) for row in ended]
        assert told == expected([Message(row, "Down") for row in ended])
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=100) == 0
        log.seek(0)
        assert "is replaced, and its episodes are over" in log.read()
    assert gone(mark, before), f"the server left {marked(mark)} and {left(before)}"
