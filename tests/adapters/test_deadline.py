"""HTTP requests that never arrive whole, clients that are turned away, and connections that outlive their server."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import requests

pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.adapters.served_market import running
from vecenv.adapters.guard import Guard, Limits
from vecenv.adapters.openenv import server
from vecenv.adapters.openenv.server import bound_socket, served_url

SHORT = Limits(request_seconds=1.5)
HEAD = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"


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
        body = (await receive())["body"]
        if scope["path"] == "/slow":
            await asyncio.sleep(2 * SHORT.request_seconds)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        endless = scope["path"] == "/endless"
        await send({"type": "http.response.body", "body": body or b"-", "more_body": endless})
        if endless:
            while (await receive())["type"] != "http.disconnect":
                pass


@contextmanager
def guarded(limits: Limits = SHORT, host: str = "127.0.0.1") -> Iterator[str]:
    with running(lambda url: Guard(app, limits, url=url), limits, host) as url:
        yield url


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with guarded() as served:
        yield served


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What the server says in its log."""
    told: list[str] = []
    log, listening = logging.getLogger("uvicorn.error"), logging.Handler()
    listening.emit = lambda record: told.append(record.getMessage())
    log.addHandler(listening)
    yield told
    log.removeHandler(listening)


def opened(url: str, sent: bytes = b"") -> socket.socket:
    split = urlsplit(url)
    connection = socket.create_connection((split.hostname, split.port), timeout=20)
    connection.sendall(sent)
    return connection


def heard(connection: socket.socket) -> bytes:
    """Return all that the server says until it closes the connection."""
    with connection:
        told = b""
        while more := connection.recv(65_536):
            told += more
    return told


UNFINISHED = (b"P", HEAD, HEAD + b"\r\n", HEAD + b"\r\nabc", HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
WHOLE = HEAD.replace(b"1000", b"2") + b"\r\n{}"


def test_three_hundred_unfinished_requests_are_closed(url: str, logged: list[str]):
    unfinished = [opened(url, sent) for _ in range(60) for sent in UNFINISHED]
    silent = opened(url)
    # Answered before it has arrived.
    foreign = opened(url, HEAD + b"Origin: http://evil.example\r\n\r\n")
    # Each request of a connection has its own time.
    third = opened(url, WHOLE + WHOLE + HEAD + b"\r\n")
    # Answers may take longer.
    slow = opened(url, WHOLE.replace(b"/echo", b"/slow"))
    for connection in unfinished:
        head, _, body = heard(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ") and json.loads(body)["data"]["code"] == "LIMIT_REQUEST"
        assert f"{SHORT.request_seconds:g} s" in body.decode()
    assert heard(silent) == b""
    told = heard(foreign)
    assert told.startswith(b"HTTP/1.1 403 ") and b"408" not in told
    told = heard(third)
    assert told.count(b"HTTP/1.1 200 ") == 2 and told.count(b"HTTP/1.1 408 ") == 1
    told = heard(slow)
    assert told.startswith(b"HTTP/1.1 200 ") and b"{}" in told
    assert logged == []


def test_drops_do_not_keep_a_request_alive(url: str):
    with opened(url, HEAD + b"\r\n") as connection:
        connection.settimeout(0.05)
        sent, told = 0, b""
        while not told.startswith(b"HTTP/1.1 408 "):
            assert sent < 999
            connection.sendall(b"x")
            sent += 1
            try:
                told += connection.recv(65_536)
            except TimeoutError:
                continue


def test_a_silent_client_that_is_turned_away_is_closed(url: str):
    with connect(f"{url.replace('http', 'ws')}/ws") as connection:
        assert connection.recv(timeout=20) == "no"
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=20)


def test_who_has_not_gone_when_the_server_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch, logged: list[str]):
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS", 0.3)
    with guarded(Limits()) as url:
        left = [opened(url, sent) for sent in (b"", b"P", HEAD, HEAD + b"\r\nabc")]
        endless = requests.get(f"{url}/endless", stream=True, timeout=20)
        assert endless.raw.read(1) is not None
        with connect(f"{url.replace('http', 'ws')}/ws") as connection:
            assert connection.recv(timeout=20) == "no"
    # It has ended: who had not said all hears nothing more, and no traceback is left.
    assert [heard(connection) for connection in left] == [b""] * 4
    with pytest.raises(requests.RequestException):
        endless.content  # noqa: B018
    assert logged == []


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "[::1]")])
def test_the_url_is_what_is_bound(host: str, shown: str):
    try:
        bound = bound_socket(host, 0)
    except OSError as error:
        pytest.skip(str(error))
    with bound:
        assert served_url(bound) == f"http://{shown}:{bound.getsockname()[1]}"
