"""HTTP requests that never arrive whole, clients that are turned away, and connections that outlive their server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.adapters.served_market import logged, running
from vecenv.adapters.guard import Guard, Limits
from vecenv.adapters.openenv import server
from vecenv.adapters.openenv.server import bound_socket, served_url

SHORT = Limits(request_seconds=1.5)
HEAD = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
UNFINISHED = (b"P", HEAD, HEAD + b"\r\n", HEAD + b"\r\nabc", HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
WHOLE = HEAD.replace(b"1000", b"2") + b"\r\n{}"


async def app(scope: dict, receive: object, send: object) -> None:
    """Send bodies back; at /slow after some time, at /endless never all of it; turn every WebSocket away."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "no"})
        await send({"type": "websocket.close", "code": 1000})
    else:
        body, endless = (await receive())["body"], scope["path"] == "/endless"
        if scope["path"] == "/slow":
            await asyncio.sleep(2 * SHORT.request_seconds)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body or b"-", "more_body": endless})
        while endless and (await receive())["type"] != "http.disconnect":
            pass


class Guarded(NamedTuple):
    """A running server, and what it has said in its log."""

    url: str
    logged: list[str]

    def opened(self, sent: bytes = b"") -> socket.socket:
        split = urlsplit(self.url)
        connection = socket.create_connection((split.hostname, split.port), timeout=20)
        connection.sendall(sent)
        return connection


@contextmanager
def guarded(limits: Limits) -> Iterator[Guarded]:
    """Serve the application until the context ends; what the server says while it ends is kept too."""
    with ExitStack() as ended, running(lambda url: Guard(app, limits, url=url), limits) as url:
        yield Guarded(url, ended.enter_context(logged()))


@pytest.fixture(scope="module")
def short() -> Iterator[Guarded]:
    with guarded(SHORT) as served:
        yield served


def heard(connection: socket.socket) -> bytes:
    """Return all that the server says until it closes the connection."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.nightly
def test_three_hundred_unfinished_requests_are_closed(short: Guarded):
    unfinished = [short.opened(sent) for _ in range(60) for sent in UNFINISHED]
    silent = short.opened()
    # Answered before it has arrived.
    foreign = short.opened(HEAD + b"Origin: http://evil.example\r\n\r\n")
    # Each request of a connection has its own time.
    third = short.opened(WHOLE + WHOLE + HEAD + b"\r\n")
    # Answers may take longer.
    slow = short.opened(WHOLE.replace(b"/echo", b"/slow"))
    for connection in unfinished:
        head, _, body = heard(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ") and json.loads(body)["data"]["code"] == "LIMIT_REQUEST"
        assert f"{SHORT.request_seconds:g} s" in body.decode()
    assert heard(silent) == b""
    told = heard(foreign)
    assert told.startswith(b"HTTP/1.1 403 ") and b"HTTP/1.1 408" not in told
    told = heard(third)
    assert told.count(b"HTTP/1.1 200 ") == 2 and told.count(b"HTTP/1.1 408 ") == 1
    told = heard(slow)
    assert told.startswith(b"HTTP/1.1 200 ") and b"{}" in told
    assert short.logged == []


def test_drops_do_not_keep_a_request_alive(short: Guarded):
    with short.opened(HEAD + b"\r\n") as connection:
        connection.settimeout(0.05)
        told = b""
        # A drop that crosses the server's end of the connection is an error of the connection.
        with suppress(ConnectionError):
            for _ in range(999):
                connection.sendall(b"x")
                with suppress(TimeoutError):
                    told += connection.recv(65_536)
                if told:
                    break
            else:
                raise AssertionError("the request went on")
        assert not told or told.startswith(b"HTTP/1.1 408 ")


def test_unfinished_requests_do_not_keep_a_server_that_ends(monkeypatch: pytest.MonkeyPatch):
    cut_off = []
    monkeypatch.setattr(server.Server, "_cut_off", cut_off.append)
    with guarded(Limits()) as ending:
        left = [ending.opened(sent) for sent in (b"", *UNFINISHED)]
        # A silent client that is turned away is closed.
        with connect(f"{ending.url.replace('http', 'ws')}/ws") as connection:
            assert connection.recv(timeout=20) == "no"
            with pytest.raises(ConnectionClosed):
                connection.recv(timeout=20)
    assert [heard(connection) for connection in left] == [b""] * 6
    assert ending.logged == cut_off == []


def test_who_has_not_gone_when_the_server_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS", 0.5)
    with guarded(Limits()) as ending:
        endless = ending.opened(WHOLE.replace(b"/echo", b"/endless"))
        assert endless.recv(1)
    heard(endless)
    # No task was cancelled, which would leave a traceback.
    assert ending.logged == []


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "[::1]")])
def test_the_url_is_what_is_bound(host: str, shown: str):
    try:
        bound = bound_socket(host, 0)
    except OSError as error:
        pytest.skip(str(error))
    with bound:
        assert served_url(bound) == f"http://{shown}:{bound.getsockname()[1]}"
