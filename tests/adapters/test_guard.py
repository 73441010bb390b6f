"""Whatever a client sends, it is told what is wrong and its session lives on; what it may use up is bounded."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("openenv", reason="the door to OpenEnv needs vecenv[openenv]")

from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.adapters.served_market import DAYS, TASK, Lone, Served, reset, said, served, step, waited_for
from vecenv.adapters.guard import DEEPEST, Limits, MessageFault, read_message

TOKEN = "a token of thirty-two characters"
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


WRONG = [
    ("", "INVALID_JSON"),
    ("{", "INVALID_JSON"),
    ("{'type': 'step'}", "INVALID_JSON"),
    ("[" * 60_000, "INVALID_JSON"),
    (b"\xff\xfe{}", "INVALID_JSON"),
    ('{"type": "step", "data": {"text": NaN}}', "INVALID_JSON"),
    ('{"type": "reset", "data": {"seed": Infinity}}', "INVALID_JSON"),
    ('{"type": "reset", "data": {"seed": ' + "9" * 5000 + "}}", "INVALID_JSON"),
    ('{"type": "step", "data": {"text": "\\ud800"}}', "INVALID_JSON"),
    ("[]", "VALIDATION_ERROR"),
    ("null", "VALIDATION_ERROR"),
    ('"reset"', "VALIDATION_ERROR"),
    ("7", "VALIDATION_ERROR"),
    (DEEP, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"text": "x" * 1_000_000}}, "MESSAGE_TOO_LARGE"),
    ({"type": "step", "data": {"text": "é" * 33_000}}, "MESSAGE_TOO_LARGE"),
    ({}, "UNKNOWN_TYPE"),
    ({"type": "fly"}, "UNKNOWN_TYPE"),
    ({"type": ["step"]}, "UNKNOWN_TYPE"),
    ({"type": None}, "UNKNOWN_TYPE"),
    ({"type": "step"}, "VALIDATION_ERROR"),
    ({"type": "step", "data": None}, "VALIDATION_ERROR"),
    ({"type": "step", "data": []}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"text": 5}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"text": None}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"text": "HOLD", "more": 1}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"text": "x" * 50_000}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"text": "HOLD"}, "more": 1}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": 3}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"seed": -1}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"seed": 1 << 63}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"seed": 1.5}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"seed": True}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"seed": "7"}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"seed": 1e308}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"index": -1}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"index": 50}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"index": []}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"split": "moon"}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"split": 4}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"split": ["train"]}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"episode_id": 4}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"episode_id": "x" * 256}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"self": 1}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"market": "/etc/passwd"}}, "EXECUTION_ERROR"),
]


def test_the_session_lives_on_whatever_is_sent(market: Served):
    alone = Lone(market.tapes["train"], market.service.seed, 4)
    with market.connected(max_size=None) as connection:
        assert code(step(connection, "BUY")) == "EXECUTION_ERROR"
        reset(connection, index=4)
        before = said(connection, {"type": "state"})
        for message, expected in WRONG:
            told = said(connection, message)
            assert code(told) == expected, message
            assert len(json.dumps(told)) < 70_000
        assert said(connection, {"type": "state"}) == before
        for answer in ("BUY", "HOLD", "HOLD", "SELL"):
            told, turn = step(connection, answer)["data"], alone.answer(answer)
            assert (told["observation"]["text"], told["reward"]) == (turn.shown, turn.reward)
        assert told["done"]
        assert code(step(connection, "BUY")) == "EXECUTION_ERROR"
        assert reset(connection, index=4)["type"] == "observation"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=200) | st.binary(max_size=200) | JSON.map(json.dumps))
@pytest.mark.assembly
def test_a_message_is_an_object_or_a_fault(raw: str | bytes):
    with suppress(MessageFault):
        value = read_message(raw, SMALL)
        assert isinstance(value, dict) and value == json.loads(raw)
        # It can be written again: finite numbers, Unicode.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def test_depth_and_size_to_the_letter():
    for levels in (DEEPEST, DEEPEST + 1):
        raw = '{"a":' * levels + "1" + "}" * levels
        if levels == DEEPEST:
            assert read_message(raw, SMALL)
        else:
            with pytest.raises(MessageFault, match="levels deep"):
                read_message(raw, SMALL)
    wide = json.dumps({"a": [[]] * 200})
    assert read_message(wide, SMALL)
    assert read_message("{}" + " " * (SMALL - 2), SMALL) == {}
    # Two bytes each.
    assert read_message('{"a":"' + "é" * 2044 + '"}', SMALL)
    with pytest.raises(MessageFault, match="may have 4096 bytes"):
        read_message('{"a":"' + "é" * 2045 + '"}', SMALL)
    with pytest.raises(MessageFault, match="may have 4096 bytes"):
        read_message("{}" + " " * (SMALL - 1), SMALL)


def test_a_frame_beyond_all_bounds_ends_the_connection_alone(market: Served):
    before = market.free()
    with market.connected() as connection, market.connected() as other:
        reset(other, index=1)
        reset(connection, index=0)
        with pytest.raises(ConnectionClosed):
            said(connection, "x" * 3_000_000)
        assert step(other, "HOLD")["type"] == "observation"
    waited_for(lambda: market.free() == before)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"seed": NaN}', 400),
        (b"[1]", 400),
        (b"\xff", 400),
        (DEEP.encode(), 400),
        (b'{"seed": -3}', 422),
        (b'{"seed": "x"}', 422),
        (b'{"split": "moon"}', 400),
        (b'{"a": "' + b"x" * 70_000 + b'"}', 413),
        (b'{"episode_id": "\\ud800"}', 400),
    ],
)
def test_requests_that_cannot_be_served(market: Served, body: bytes, status: int):
    told = requests.post(f"{market.url}/reset", data=body, headers={"content-type": "application/json"}, timeout=10)
    assert told.status_code == status and "Traceback" not in told.text and "json" in told.headers["content-type"]
    assert requests.get(f"{market.url}/health", timeout=10).json() == {"status": "healthy"}


def test_no_place_is_held_without_a_socket(market: Served):
    created = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}
    told = requests.post(f"{market.url}/mcp", json=created, timeout=10)
    assert told.status_code == 400 and "WebSocket" in told.text
    assert requests.post(f"{market.url}/mcp", json={}, timeout=10).json()["jsonrpc"] == "2.0"


def test_a_killed_client_frees_its_row(market: Served):
    before = market.free()
    with market.connected() as connection:
        reset(connection, index=0)
        assert market.free() == before - 1
        # As when its process is killed: no closing handshake.
        connection.socket.shutdown(socket.SHUT_RDWR)
        waited_for(lambda: market.free() == before)


def test_who_goes_without_waiting_for_an_answer_leaves_no_trace_in_the_log(market: Served):
    told: list[logging.LogRecord] = []
    log, listening = logging.getLogger("uvicorn.error"), logging.Handler()
    listening.emit = told.append
    log.addHandler(listening)
    before = market.free()
    try:
        for _ in range(5):
            with market.connected() as connection:
                reset(connection, index=0)
                connection.send(json.dumps({"type": "step", "data": {"text": "HOLD"}}))
                connection.socket.shutdown(socket.SHUT_RDWR)
            waited_for(lambda: market.free() == before)
    finally:
        log.removeHandler(listening)
    assert [record.getMessage() for record in told] == []


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
                assert code(json.loads(third.recv(timeout=10))) == "CAPACITY_REACHED"
                with pytest.raises(ConnectionClosed):
                    reset(third)
                for _ in range(100):
                    with market.connected() as another:
                        assert code(reset(another)) == "CAPACITY_REACHED"
                with ExitStack() as stack:
                    others = [stack.enter_context(market.connected()) for _ in range(20)]
                    for another in others:
                        another.send(json.dumps({"type": "reset", "data": {}}))
                    for another in others:
                        assert code(json.loads(another.recv(timeout=10))) == "CAPACITY_REACHED"
                with (
                    pytest.raises(RuntimeError, match="CAPACITY_REACHED"),
                    GenericEnvClient(base_url=market.url).sync() as client,
                ):
                    client.reset()
            waited_for(one_more)


def ending(connection: ClientConnection) -> tuple[str, float]:
    """Return the code with which the server ends a connection, and after how long."""
    start = time.monotonic()
    told = code(json.loads(connection.recv(timeout=20)))
    with pytest.raises(ConnectionClosed) as closed:
        connection.recv(timeout=20)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    return told, time.monotonic() - start


@pytest.mark.nightly
def test_silence_age_and_steps_are_bounded():
    with served(Limits(sessions=4, idle_seconds=0.6, lifetime_seconds=2.0, session_steps=5)) as market:
        before = market.free()
        with market.connected() as silent:
            reset(silent)
            assert ending(silent)[0] == "LIMIT_IDLE"
        with market.connected() as old:
            start = time.monotonic()
            with suppress(ConnectionClosed):
                while time.monotonic() - start < 10:
                    told = said(old, {"type": "state"})
                    if told["type"] == "error":
                        assert code(told) == "LIMIT_LIFETIME"
                        break
                    time.sleep(0.1)
            assert 1.5 < time.monotonic() - start < 8
        with market.connected() as busy:
            reset(busy)
            for _ in range(DAYS):
                assert step(busy, "HOLD")["type"] == "observation"
            reset(busy)
            assert step(busy, "HOLD")["type"] == "observation"
            assert code(step(busy, "HOLD")) == "LIMIT_STEPS"
            with pytest.raises(ConnectionClosed):
                said(busy, {"type": "state"})
        waited_for(lambda: market.free() == before)


def test_who_has_the_token_may_enter():
    with served(token=TOKEN) as market:
        entering = {"Authorization": f"Bearer {TOKEN}"}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": "Bearer "}):
            with pytest.raises(InvalidStatus) as refused:
                connect(market.socket_url, additional_headers=headers)
            assert refused.value.response.status_code == 403
            told = requests.post(f"{market.url}/reset", json={}, headers=headers, timeout=10)
            assert told.status_code == 401 and told.headers["www-authenticate"] == "Bearer"
            assert requests.get(f"{market.url}/metadata", headers=headers, timeout=10).status_code == 401
        assert requests.get(f"{market.url}/health", timeout=10).status_code == 200
        with market.connected(additional_headers=entering) as connection:
            assert reset(connection)["type"] == "observation"
        told = requests.get(f"{market.url}/{TASK}/splits", headers=entering, timeout=10)
        assert len(told.json()) == 3


def test_pages_of_other_servers_may_not_connect(market: Served):
    own = market.url.removeprefix("http://")
    with pytest.raises(InvalidStatus):
        connect(market.socket_url, origin="http://evil.example")
    with connect(market.socket_url, origin=f"http://{own}") as connection:
        assert reset(connection)["type"] == "observation"
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}):
        told = requests.post(f"{market.url}/reset", json={}, headers=headers, timeout=10)
        assert told.status_code == 403 and f"this is {market.url}" in told.text
    # Somebody's name that points to this machine.
    told = requests.get(f"{market.url}/metadata", headers={"Host": "evil.example"}, timeout=10)
    assert told.status_code == 400 and "single_stock" not in told.text
    # They may know where they are.
    assert code(told.json()) == "UNKNOWN_HOST" and f"this is {market.url}" in told.text
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80"):
        assert requests.get(f"{market.url}/health", headers={"Host": host}, timeout=10).status_code == 200
    for host in ("", "[", "::1", "127.0.0.1.evil.example", "evil.example:80", "user@evil.example"):
        assert requests.get(f"{market.url}/health", headers={"Host": host}, timeout=10).status_code == 400


@pytest.mark.parametrize("name", [item.name for item in fields(Limits)])
def test_limits_are_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
        Limits(**{name: 0})
