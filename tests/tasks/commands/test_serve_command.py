"""The server as a command: what it refuses, what its splits hold, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import IO
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from rich.console import Console

pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import vecenv
from vecenv.adapters.guard import Limits
from vecenv.adapters.openenv.pool import Answer, Opening
from vecenv.tasks.commands.cli import main
from vecenv.tasks.commands.serve import ServeSettings, row_pools
from vecenv.text.door import TextDoor
from vecenv.text.turns import TextRows

MARKET = ("--task", "single_stock_costs", "--market", "planted", "--num-paths", "8", "--num-days", "330")
SMALL = (*MARKET, "--env.context", "signal", "--env.days", "4", "--no-compile", "--limits.sessions", "64")


def settings(*args: str) -> ServeSettings:
    """Return the settings of the small market, as the command line makes them."""
    given = ServeSettings.defaults(args)
    config = replace(given.env, context=("signal",), days=4)
    return replace(given, env=config, market="planted", num_paths=8, num_days=330, compile=False)


@contextmanager
def serving(*args: str) -> Iterator[tuple[subprocess.Popen[str], str, IO[str]]]:
    """Run ``vecenv serve`` and yield its process, URL and log."""
    command = [sys.executable, "-m", "vecenv.tasks.commands.cli", "serve", "--port", "0", *SMALL, *args]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            told = ""
            for line in process.stdout:
                told += line
                if line.startswith("Serving"):
                    break
            else:
                log.seek(0)
                raise AssertionError(f"the server did not start: {told}{log.read()}")
            yield process, line.split(" on ")[1].split(",")[0], log
        finally:
            if process.poll() is None:
                process.kill()


def reset(connection: object, **options: object) -> dict:
    connection.send(json.dumps({"type": "reset", "data": options}))
    return json.loads(connection.recv(timeout=30))


@pytest.mark.nightly
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_sessions_and_the_server(sent: signal.Signals):
    with serving("--splits", "train") as (process, url, log):
        assert url.startswith("http://127.0.0.1:")
        address = f"{url.replace('http', 'ws')}/ws"
        with connect(address) as first, connect(address) as second:
            assert reset(first, index=1)["data"]["observation"]["text"].startswith("Day 1 of 4")
            process.send_signal(sent)
            for connection in (first, second):
                with pytest.raises(ConnectionClosed) as closed:
                    connection.recv(timeout=20)
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
        assert process.wait(timeout=20) == (0 if sent == signal.SIGTERM else 130)
        log.seek(0)
        assert log.read() == "Making the market planted …\nPreparing the step of train …\n"


@pytest.mark.nightly
def test_two_interrupts_end_the_server_at_once():
    """Whoever is connected, and however often and fast it is told."""
    with serving("--splits", "train", "--host", "localhost") as (process, url, log):
        # The address is the one that is bound, not the name that was given.
        assert url.startswith("http://127.0.0.1:")
        address = urlsplit(url)
        with connect(f"{url.replace('http', 'ws')}/ws") as session, socket.socket() as unfinished:
            reset(session)
            unfinished.connect((address.hostname, address.port))
            unfinished.sendall(b"POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            while process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            assert process.wait() == 130
        log.seek(0)
        assert log.read() == "Making the market planted …\nPreparing the step of train …\n"


def test_splits_of_a_generated_market_share_no_path():
    given = settings("--task", "single_stock_costs")
    tape = given.tape(given.env)
    parts = given.parts(tape)
    assert list(parts) == ["train", "validation", "test"]
    spans = [parts[name].path_span for name in parts]
    assert spans == [(0, 5), (5, 6), (6, 8)]
    assert [given.training(tape).path_span, given.test(tape).path_span] == [(0, 6), (6, 8)]


def test_splits_of_a_history_share_no_day():
    given = replace(settings("--task", "single_stock_costs"), num_paths=1, num_days=1500)
    tape = given.tape(given.env)
    parts = given.parts(tape)
    days = [part.dates[part.first_day :] for part in parts.values()]
    for earlier, later in pairwise(days):
        between = np.searchsorted(tape.dates, later[0]) - np.searchsorted(tape.dates, earlier[-1])
        assert between == given.embargo + 1
    whole = given.training(tape)
    assert days[1][-1] == whole.dates[-1] and days[2][-1] == tape.dates[-1]
    assert len(days[1]) == round(given.validation_fraction * (whole.num_days - whole.first_day))
    # The days are those of the market, and so is what is seen of them.
    offset = int(np.searchsorted(tape.dates, parts["test"].dates[0]))
    assert torch.equal(parts["test"].features[:, 30], tape.features[:, 30 + offset])


@pytest.mark.parametrize("task", ["single_stock", "portfolio"])
def test_what_is_offered_to_a_click_can_be_read(task):
    given = ServeSettings.defaults(("--task", task))
    env = vecenv.make(task, market_options={"num_paths": 2, "num_days": 340}, config=given.env, compile=False)
    clicks = env.scenario.text.examples()
    assert (len(clicks) > 1) == (task == "single_stock")
    assert all(bool(TextDoor(env).parse([text], [0])[1]) for text in clicks)


def test_only_the_splits_that_are_asked_for():
    given = replace(settings(), splits=("test", "train"))
    assert list(given.parts(given.tape(given.env))) == ["test", "train"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--task", "stock_trading"), "task 'stock_trading' has no text"),
        (("--task", "moon"), "unknown task 'moon'"),
        (("--host", "0.0.0.0"), "a bearer token is needed, in VECENV_TOKEN"),
        (("--validation-fraction", "1"), "validation_fraction must be between 0 and 1"),
        (("--splits", "train", "train"), "splits must be different"),
        (("--num-tasks", "0"), "num_tasks must be in"),
        (("--seed", "-1"), "seed must be in"),
        (("--port", "70000"), "port must be in"),
        (("--limits.sessions", "0"), "sessions must be positive"),
        (("--text.format-penalty", "1"), "format_penalty must not be positive"),
        ((*SMALL, "--text.tools", "moon"), "moon"),
        ((*MARKET, "--env.days", "400", "--no-compile"), "days"),
    ],
)
def test_bad_input_is_refused(args, message, capsys, monkeypatch):
    monkeypatch.delenv("VECENV_TOKEN", raising=False)
    assert main(["serve", *args]) == 2
    told = capsys.readouterr()
    assert message in told.err and "Serving" not in told.out and "Traceback" not in told.err


def test_a_port_that_is_taken_is_told(capsys, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", *SMALL, "--splits", "train", "--port", str(port)]) == 2
    told = capsys.readouterr()
    # Before any work.
    assert f"cannot serve on 127.0.0.1, port {port}: Address already in use" in told.err and "Making" not in told.err


def test_text_rows_of_a_served_split_are_the_tasks_own():
    from vecenv.tasks.commands.comparison import wide_console
    from vecenv.tasks.commands.serve import SPARE_ROWS, row_pools

    given = replace(settings("--task", "single_stock_costs"), splits=("test",))
    pools = row_pools(given, wide_console())
    (pool,) = pools.values()
    assert pool.free == given.limits.sessions + SPARE_ROWS
    assert isinstance(pool._rows, TextRows) and pool._rows.rules == given.text
    assert pool._rows.env.scenario.tape.path_span == (6, 8)


@pytest.mark.parametrize("task", ["agent_market", "execution", "market_making"])
def test_splits_of_a_simulated_market_have_random_numbers_of_their_own(task):
    given = replace(ServeSettings.defaults(("--task", task)), compile=False, limits=Limits(sessions=1))
    pools = row_pools(given, Console(quiet=True))
    opened = {name: [pool.serve([Opening(0, 7, index)])[0] for index in (0, 1, 0)] for name, pool in pools.items()}
    assert list(opened) == ["train", "validation", "test"]
    assert all(first == again != other for first, other, again in opened.values())
    assert len({first.shown for first, _, _ in opened.values()}) == 3
    (turn,) = pools["test"].serve([Answer(0, pools["test"].examples[1])])
    assert turn.valid and turn.acted and turn.shown.startswith("Step 2 of 20")


def test_settings_of_bars_are_not_those_of_a_simulated_market():
    given = ServeSettings.defaults(("--task", "execution"))
    assert {"market", "num_days", "test_start", "validation_fraction"} <= set(given.inapplicable())
    with pytest.raises(ValueError, match="num_tasks must be at most 1,073,741,824 for execution"):
        replace(given, num_tasks=2**30 + 1)
