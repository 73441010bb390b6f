"""Whatever a client sends, it is told what is wrong and its session lives on; what it may use up is bounded."""

import asyncio
import json
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
import requests

pytest.importorskip("openenv", reason="the door to OpenEnv needs vecenv[openenv]")

from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.adapters.served_market import TOKEN, Lone, Served, logged, reset, running, said, served, step, waited_for
from vecenv.adapters.guard import DEEPEST, Guard, Limits, MessageFault, read_message
from vecenv.adapters.openenv.server import build_app
from vecenv.adapters.sessions import http_server as server
from vecenv.adapters.sessions.pool import RowPool
from vecenv.adapters.sessions.service import TextService
from vecenv.registry import make_spoken
from vecenv.text.dialogue import Dialogue
from vecenv.text.tensor_interaction import TensorInteraction

SMALL = 4096
DEEP = '{"type": "step", "data": {"text": "HOLD", "more": ' + "[" * 900 + "]" * 900 + "}}"


@pytest.fixture(scope="module")
def market() -> Iterator[Served]:
    with served() as running:
        yield running


def code(told: dict) -> str:
    assert told["type"] == "error" and set(told["data"]) >= {"message", "code"}
    assert not re.search(r"Traceback|\.py\b", json.dumps(told))
    return told["data"]["code"]


LONG = '{"type": "reset", "data": {"seed": ' + "9" * 5000 + "}}"
BAD = {"seed": (-1, 1 << 63, 1.5, True, "7"), "index": (-1, 50, []), "split": ("moon", 4, ["train"])}
BAD |= {"episode_id": (4, "x" * 256, "x" * 70_000), "self": (1,), "market": ("/etc/passwd",)}
WRONG = {
    "INVALID_JSON": [
        *("", "{", "{'type': 'step'}", b"\xff\xfe{}", LONG),
        *(f'{{"type": "step", "data": {{"text": {value}}}}}' for value in ("NaN", "Infinity", '"\\ud800"')),
    ],
    "MESSAGE_TOO_LARGE": [
        {"type": "reset", "data": {"episode_id": ["x"] * 20_000}},
        {"type": "step", "data": {"text": "", "more": ["é" * 33_000]}},
        {"type": "step", "data": {"text": "x" * (1 << 21)}},
        {"type": "step", "data": {"text": "é" * (1 << 21)}},
    ],
    "UNKNOWN_TYPE": [{}, {"type": "fly"}, {"type": ["step"]}, {"type": None}],
    "VALIDATION_ERROR": [
        *("[]", "null", '"reset"', "7", DEEP, "[" * 60_000, {"type": "step"}),
        {"type": "step", "data": {"text": "HOLD"}, "more": 1},
        {"type": "reset", "data": 3},
        *({"type": "step", "data": data} for data in (None, [], {}, {"text": 5}, {"text": "HOLD", "more": 1})),
        {"type": "step", "data": ["x" * 70_000]},
        {"type": "step", "data": {"text": "x" * 70_000, "more": "x" * 70_000}},
    ],
    "EXECUTION_ERROR": [{"type": "reset", "data": {name: value}} for name, values in BAD.items() for value in values],
}


def test_the_session_lives_on_whatever_is_sent(market: Served):
    alone = Lone(market.tapes["train"], market.service.seed, 4)
    with market.connected(max_size=None) as connection:
        assert code(step(connection, "BUY")) == "EXECUTION_ERROR"
        reset(connection, index=4)
        before = said(connection, {"type": "state"})
        for expected, messages in WRONG.items():
            for message in messages:
                told = said(connection, message)
                assert code(told) == expected, message
                assert len(json.dumps(told)) < 70_000
        assert said(connection, {"type": "state"}) == before
        for answer in ("BUY", "HOLD", "HOLD", "SELL"):
            told, turn = step(connection, answer)["data"], alone.answer(answer)
            assert (told["observation"]["text"], told["reward"]) == (turn.message, turn.reward)
        assert told["done"]
        assert code(step(connection, "BUY")) == "EXECUTION_ERROR"
        assert reset(connection, index=4)["type"] == "observation"


@pytest.mark.parametrize("size", [49_153, 60_000, 200_000, 1 << 20])
@pytest.mark.parametrize("character", ["x", "é", "BUY 0.5\n"])
def test_an_endless_answer_is_an_invalid_one(market: Served, size: int, character: str):
    with market.connected() as connection:
        reset(connection, index=4)
        told = step(connection, (character * size)[: size if character != "é" else min(size, 330_000)])
        assert told["type"] == "observation", told
        seen = told["data"]["observation"]
        assert not seen["valid"] and seen["text"].endswith("did nothing: an answer may have 49,152 characters.")
        assert step(connection, "BUY 0.5" + " " * 40_000)["data"]["observation"]["valid"]


def test_what_a_smaller_limit_cuts_off_is_not_played():
    with served(Limits(sessions=1, message_bytes=SMALL)) as market, market.connected() as connection:
        reset(connection)
        assert code(step(connection, "BUY 0.5;" * SMALL)) == "MESSAGE_TOO_LARGE"
        assert code(step(connection, "BUY 0.5" + " " * SMALL + ".")) == "MESSAGE_TOO_LARGE"


def test_depth_size_and_urls_to_the_letter_and_limits_above_zero():
    def nested(levels: int) -> str:
        return '{"a":' * levels + "1" + "}" * levels

    assert read_message("{}" + " " * (SMALL - 2), SMALL) == {}
    # Two bytes each.
    for raw in (nested(DEEPEST), json.dumps({"a": [[]] * 200}), '{"a":"' + "é" * 2044 + '"}'):
        assert read_message(raw, SMALL)
    for raw, told in (
        (nested(DEEPEST + 1), "levels deep"),
        ('{"a":"' + "é" * 2045 + '"}', "may have 4096 bytes"),
        ("{}" + " " * (SMALL - 1), "may have 4096 bytes"),
    ):
        with pytest.raises(MessageFault, match=told):
            read_message(raw, SMALL)
    for item in fields(Limits):
        with pytest.raises(ValueError, match=f"{item.name} must be (positive|at least 1), got 0"):
            Limits(**{item.name: 0})
    # The URL is what is bound.
    for host, shown in (("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "[::1]")):
        with suppress(OSError), server.bound_socket(host, 0) as bound:
            assert server.served_url(bound) == f"http://{shown}:{bound.getsockname()[1]}"


def test_who_goes_without_a_word_leaves_nothing_behind(market: Served):
    before = 3 * 8
    waited_for(lambda: market.free() == before)
    with logged() as told:
        for _ in range(5):
            with market.connected() as connection:
                reset(connection, index=0)
                assert market.free() == before - 1
                connection.send(json.dumps({"type": "step", "data": {"text": "HOLD"}}))
                # As when its process is killed: no closing handshake.
                connection.socket.shutdown(socket.SHUT_RDWR)
                waited_for(lambda: market.free() == before)
    assert told == []
    # A frame beyond all bounds ends its connection alone.
    with market.connected() as connection, market.connected() as other:
        reset(other, index=1)
        reset(connection, index=0)
        with pytest.raises(ConnectionClosed):
            said(connection, "x" * (1 << 25))
        assert step(other, "HOLD")["type"] == "observation"
    waited_for(lambda: market.free() == before)


def test_requests_that_cannot_be_served_and_pages_of_other_servers(market: Served):
    for body, status in (
        *((body, 400) for body in (b'{"seed": NaN}', b"[1]", b"\xff", DEEP.encode(), b'{"split": "moon"}')),
        *((body, 422) for body in (b'{"seed": -3}', b'{"seed": "x"}', b'{"episode_id": "' + b"x" * 70_000 + b'"}')),
        *((body, 413) for body in (b'{"a": ["' + b'x","' * 20_000 + b'"]}', b'{"a": "' + b"x" * (1 << 21) + b'"}')),
        (b'{"episode_id": "\\ud800"}', 400),
    ):
        told = requests.post(
            f"{market.url}/reset", data=body, headers={"content-type": "application/json"}, timeout=100
        )
        assert told.status_code == status and "Traceback" not in told.text and "json" in told.headers["content-type"]
        assert requests.get(f"{market.url}/health", timeout=100).json() == {"status": "healthy"}
    # Without a socket there is no episode, however long the answer to it.
    for size in (4, 60_000, 200_000):
        told = requests.post(f"{market.url}/step", json={"action": {"text": "é" * size}}, timeout=100)
        assert told.status_code == 400 and "there is no episode yet" in told.text and len(told.text) < 200
    told = requests.post(f"{market.url}/step", data="x" * 70_000, headers={"content-type": "text/plain"}, timeout=100)
    assert told.status_code == 413 and code(told.json()) == "MESSAGE_TOO_LARGE"
    # No place is held without a socket.
    created = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}
    told = requests.post(f"{market.url}/mcp", json=created, timeout=100)
    assert told.status_code == 400 and "WebSocket" in told.text
    assert requests.post(f"{market.url}/mcp", json={}, timeout=100).json()["jsonrpc"] == "2.0"
    # Pages of other servers may not connect.
    with pytest.raises(InvalidStatus):
        connect(market.socket_url, origin="http://evil.example")
    with connect(market.socket_url, origin=market.url) as connection:
        assert reset(connection)["type"] == "observation"
    for origin in ("http://evil.example", "null"):
        told = requests.post(f"{market.url}/reset", json={}, headers={"Origin": origin}, timeout=100)
        assert told.status_code == 403 and f"this is {market.url}" in told.text
    # Somebody's name that points to this machine.
    told = requests.get(f"{market.url}/metadata", headers={"Host": "evil.example"}, timeout=100)
    assert told.status_code == 400 and "single_stock" not in told.text
    assert code(told.json()) == "UNKNOWN_HOST" and f"this is {market.url}" in told.text
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80"):
        assert requests.get(f"{market.url}/health", headers={"Host": host}, timeout=100).status_code == 200
    for host in ("", "[", "::1", "127.0.0.1.evil.example", "evil.example:80", "user@evil.example"):
        assert requests.get(f"{market.url}/health", headers={"Host": host}, timeout=100).status_code == 400


def test_no_more_sessions_than_there_may_be():
    with served(Limits(sessions=2), rows=4) as market:

        def one_more() -> bool:
            with market.connected() as another:
                return reset(another)["type"] == "observation"

        with market.connected() as first:
            reset(first)
            with market.connected() as second, market.connected() as third:
                reset(second)
                # Who listens is told at once, and who speaks first just as well.
                assert code(json.loads(third.recv(timeout=100))) == "CAPACITY_REACHED"
                with pytest.raises(ConnectionClosed):
                    reset(third)
                for _ in range(20):
                    with market.connected() as another:
                        assert code(reset(another)) == "CAPACITY_REACHED"
                client = GenericEnvClient(base_url=market.url).sync()
                with pytest.raises(RuntimeError, match="CAPACITY_REACHED"), client:
                    client.reset()
            waited_for(one_more)


def test_silence_age_and_steps_are_bounded():
    def silent(connection) -> dict:
        return json.loads(connection.recv(timeout=100))

    def asking(connection) -> dict:
        while (told := said(connection, {"type": "state"}))["type"] != "error":
            pass
        return told

    def stepping(connection) -> dict:
        told = [step(connection, "HOLD") for _ in range(3)]
        reset(connection)
        told += [step(connection, "HOLD") for _ in range(3)]
        assert [one["type"] for one in told[:5]] == ["observation"] * 5
        return told[5]

    for limit, use, reason in (
        ({"idle_seconds": 1.5}, silent, "LIMIT_IDLE"),
        ({"lifetime_seconds": 1.5}, asking, "LIMIT_LIFETIME"),
        ({"session_steps": 5}, stepping, "LIMIT_STEPS"),
    ):
        with served(Limits(sessions=4, **limit)) as market:
            with market.connected() as connection:
                reset(connection)
                assert code(use(connection)) == reason
                with pytest.raises(ConnectionClosed) as closed:
                    connection.recv(timeout=100)
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
            waited_for(lambda market=market: market.free() == 3 * 8)


FAMILIES = {
    "news_signals": {"market": "news", "market_options": {"num_paths": 3, "num_days": 60, "symbols": ("A", "B")}},
    "crypto_lob": {"synthetic_hours": 0.5},
    "market_making": {"max_ticks": 40, "ticks_per_step": 10},
}


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")
@pytest.mark.parametrize("task", FAMILIES)
def test_clients_that_vanish_or_never_end_a_message_hold_no_row(task):
    pool = RowPool(Dialogue(TensorInteraction(make_spoken(task, 2, **FAMILIES[task]))))
    service, limits = TextService(task, {"train": pool}), Limits(sessions=2, idle_seconds=0.5, request_seconds=0.5)
    with running(lambda url: build_app(service, limits, url), limits) as url:
        market = Served(url, service, {})
        vanishing, slow = market.connected(), market.connected()
        for connection in (vanishing, slow):
            assert reset(connection)["type"] == "observation"
        assert pool.free == 0
        # No closing handshake, and the head of a frame of a kilobyte of which nothing follows.
        vanishing.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        vanishing.socket.shutdown(socket.SHUT_RDWR)
        slow.socket.sendall(b"\x81\xfe\x04\x00abcd{")
        waited_for(lambda: pool.free == 2)
        with market.connected() as other:
            assert reset(other)["type"] == "observation" and step(other, "HOLD")["type"] == "observation"


def test_who_has_the_token_may_enter():
    with served(token=TOKEN) as market:
        entering = {"Authorization": f"Bearer {TOKEN}"}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": "Bearer "}):
            with pytest.raises(InvalidStatus) as refused:
                connect(market.socket_url, additional_headers=headers)
            assert refused.value.response.status_code == 403
            told = requests.post(f"{market.url}/reset", json={}, headers=headers, timeout=100)
            assert told.status_code == 401 and told.headers["www-authenticate"] == "Bearer"
            assert requests.get(f"{market.url}/metadata", headers=headers, timeout=100).status_code == 401
        assert requests.get(f"{market.url}/health", timeout=100).status_code == 200
        with market.connected(additional_headers=entering) as connection:
            assert reset(connection)["type"] == "observation"
        assert len(requests.get(f"{market.url}/single_stock_costs/splits", headers=entering, timeout=100).json()) == 3


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
    url: str
    logged: list[str]

    def opened(self, sent: bytes = b"") -> socket.socket:
        split = urlsplit(self.url)
        connection = socket.create_connection((split.hostname, split.port), timeout=100)
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
            while not told:
                connection.sendall(b"x")
                with suppress(TimeoutError):
                    told += connection.recv(65_536)
        # Whole it would be answered by 200.
        assert not told or told.startswith(b"HTTP/1.1 408 ")


def test_who_has_not_gone_does_not_keep_a_server_that_ends(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch, guarded(Limits()) as ending:
        cut_off: list[object] = []
        patch.setattr(server.Server, "_cut_off", cut_off.append)
        left = [ending.opened(sent) for sent in (b"", *UNFINISHED)]
        # A silent client that is turned away is closed.
        with connect(f"{ending.url.replace('http', 'ws')}/ws") as connection:
            assert connection.recv(timeout=100) == "no"
            with pytest.raises(ConnectionClosed):
                connection.recv(timeout=100)
    assert [heard(connection) for connection in left] == [b""] * 6
    assert ending.logged == cut_off == []
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS", 0.5)
    with guarded(Limits()) as ending:
        endless = ending.opened(WHOLE.replace(b"/echo", b"/endless"))
        assert endless.recv(1)
    heard(endless)
    # No task was cancelled, which would leave a traceback.
    assert ending.logged == []
