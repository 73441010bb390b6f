"""The server as a command: what it refuses, what its splits hold, and how it ends."""

import re
import signal
import socket
import sys
import time
from dataclasses import replace
from itertools import pairwise
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from rich.console import Console

pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.adapters import served_market
from tests.adapters.served_market import reset
from tests.tasks.commands.small_runs import changed
from vecenv.adapters.guard import Limits
from vecenv.adapters.sessions.http_server import bound_socket
from vecenv.adapters.sessions.pool import Message, Opening
from vecenv.registry import task_named
from vecenv.tasks.commands.cli import main
from vecenv.tasks.commands.serve import ServeSettings
from vecenv.tasks.commands.serve import main as serve_command
from vecenv.tasks.commands.serving import row_pools
from vecenv.tasks.experiment.splits import TapeSplits
from vecenv.text.dialogue import TextRules

MARKET = ("--task", "single_stock_costs", "--market", "planted", "--num-paths", "8", "--num-days", "330")
SMALL = (*MARKET, "--env.context", "signal", "--env.days", "4", "--no-compile", "--limits.sessions", "64")
QUIET = Console(quiet=True)


def settings(*args: str) -> ServeSettings:
    given = ServeSettings.defaults((*args, "--market", "planted"))
    config = replace(given.env, context=("signal",), days=4)
    return changed(given, env=config, num_paths=8, num_days=330, compile=False)


def splits_on(given: ServeSettings) -> TapeSplits:
    share = given.validation.validation_fraction
    tape = given.source.tape(given.env, torch.device("cpu"))
    return TapeSplits(task_named(given.task), given.source, tape, share)


def serving(*args: str):
    return served_market.serving("--port", "0", *SMALL, *args)


@pytest.mark.assembly
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_all_sessions_and_the_server(sent: signal.Signals):
    """At once if they are told often, whoever is connected; the address is the one that is bound."""
    with serving("--splits", "train", "--host", "localhost") as (process, url, log):
        assert url.startswith("http://127.0.0.1:")
        address = urlsplit(url)
        with connect(f"{url.replace('http', 'ws')}/ws") as session, socket.socket() as unfinished:
            assert reset(session, index=1)["data"]["observation"]["text"].startswith("Day 1 of 4")
            if sent == signal.SIGTERM:
                process.send_signal(sent)
                with pytest.raises(ConnectionClosed) as closed:
                    session.recv(timeout=100)
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
            else:
                unfinished.connect((address.hostname, address.port))
                unfinished.sendall(b"POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
                while process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    time.sleep(0.05)
        assert process.wait(timeout=100) == (0 if sent == signal.SIGTERM else 130)
        log.seek(0)
        first = "Loading PyTorch, to serve single_stock_costs …\n"
        assert log.read() == f"{first}Making the market planted …\nPreparing the step of train …\n"


def test_splits_share_no_path_no_day_or_no_random_numbers():
    (pool,) = row_pools(replace(settings(), splits=("test",), seed=3), QUIET).values()
    env, given = pool.dialogue.interaction.env, settings("--task", "single_stock_costs")
    assert pool.free == given.limits.sessions + 2
    assert env.scenario.tape.path_span == (6, 8) and set(env.seed_tensor.tolist()) == {3}
    splits = splits_on(given)
    spans = {name: splits.part(name).path_span for name in given.splits}
    assert spans == {"train": (0, 5), "validation": (5, 6), "test": (6, 8)}
    splits = splits_on(changed(given, num_paths=1, num_days=1500))
    tape, parts = splits.tape, {name: splits.part(name) for name in given.splits}
    whole = splits.market.split.training(tape)
    days = [part.dates[part.first_day :] for part in parts.values()]
    for earlier, later in pairwise(days):
        between = np.searchsorted(tape.dates, later[0]) - np.searchsorted(tape.dates, earlier[-1])
        assert between == splits.market.split.embargo + 1
    assert days[1][-1] == whole.dates[-1] and days[2][-1] == tape.dates[-1]
    assert len(days[1]) == round(splits.validation_fraction * (whole.num_days - whole.first_day))
    # The days are those of the market, and so is what is seen of them.
    offset = int(np.searchsorted(tape.dates, parts["test"].dates[0]))
    assert torch.equal(parts["test"].features[:, 30], tape.features[:, 30 + offset])
    # Those of a simulated market have random numbers of their own.
    given = replace(ServeSettings.defaults(("--task", "execution")), compile=False, limits=Limits(sessions=1))
    pools = row_pools(given, QUIET)
    opened = {name: [pool.serve([Opening(0, 7, index)])[0] for index in (0, 1, 0)] for name, pool in pools.items()}
    assert list(opened) == ["train", "validation", "test"]
    assert all(first == again != other for first, other, again in opened.values())
    assert len({first.turn.shown for first, _, _ in opened.values()}) == 3
    # Those of recorded books are spans of them.
    rules = replace(ServeSettings.defaults(("--task", "crypto_lob")).env, synthetic_hours=2.0, embargo=60.0)
    books = replace(given, task="crypto_lob", env=rules)
    assert [pool.dialogue.interaction.env.scenario.config.part for pool in row_pools(books, QUIET).values()] == list(
        opened
    )
    dialogue = pools["test"].dialogue
    assert dialogue.rules == given.text and not dialogue.interaction.env.compiled
    (turn,) = pools["test"].serve([Message(0, pools["test"].examples[1])])
    assert turn.valid and turn.acted and turn.shown.startswith("Step 2 of 20")


def test_what_cannot_be_served_is_refused_before_any_work(capsys, monkeypatch):
    given = settings()
    replace(given, num_tasks=(1 << 32) - 1, seed=(1 << 63) - 1, port=65535, splits=("test",))
    own = ServeSettings.defaults(("--task", "execution"))
    replace(own, num_tasks=2**30)
    with pytest.raises(ValueError, match="num_tasks must be at most 1,073,741,824 for execution, got"):
        replace(own, num_tasks=2**30 + 1)
    for changes, message in (
        *(({"validation_fraction": own}, rf"validation_fraction must be in \(0, 1\), got {own}") for own in (0, 1)),
        ({"splits": ("train", "train")}, r"splits must be different, got"),
        ({"splits": ()}, "splits must have at least 1, got"),
        *(({"num_tasks": own}, rf"num_tasks must be in \[1, 2\^32\), got {own}") for own in (0, 1 << 32)),
        *(({"seed": own}, rf"seed must be in \[0, 2\^63\), got {own}") for own in (-1, 1 << 63)),
        *(({"port": own}, rf"port must be in \[0, 65,536\), got {own}") for own in (-1, 65536)),
    ):
        with pytest.raises(ValueError, match=message):
            changed(given, **changes)
    for changes, message in (
        ({"limits": Limits(sessions=1)}, "workers must be at most limits.sessions, 1, got 2"),
        ({"device": "cuda"}, "--engine ray plays on processors: device must be cpu, got 'cuda'"),
    ):
        with pytest.raises(ValueError, match=message):
            changed(given, engine="ray", **changes)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape("--engine ray needs Ray: pip install 'vecenv[ray]'")):
        serve_command(changed(given, engine="ray", port=0))
    monkeypatch.delenv("VECENV_TOKEN", raising=False)
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot serve on 127.0.0.1, port {port}: Address already in use"):
            serve_command(replace(settings(), port=port))
    with pytest.raises(ValueError, match="a bearer token is needed, in VECENV_TOKEN"):
        serve_command(replace(settings(), host="0.0.0.0"))
    assert main(["serve", "--task", "stock_trading"]) == 2
    told = capsys.readouterr()
    assert told.err == "vecenv serve: error: task 'stock_trading' has no text\n" and "Making" not in told.err
    with pytest.raises(ValueError, match="unknown tools moon"):
        row_pools(replace(settings(), text=TextRules(tools=("moon",)), splits=("test",)), QUIET)
