"""Whatever a client sends, it is told what is wrong and its session lives on; what it may use up is bounded."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("openenv", reason="the door to OpenEnv needs vecenv[openenv]")

from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.adapters.served_market import TASK, TOKEN, Lone, Served, logged, reset, said, served, step, waited_for
from vecenv.adapters.guard import DEEPEST, Limits, MessageFault, read_message

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
WRONG = {
    "INVALID_JSON": [
        *("", "{", "{'type': 'step'}", "[" * 60_000, b"\xff\xfe{}", LONG),
        '{"type": "step", "data": {"text": NaN}}',
        '{"type": "reset", "data": {"seed": Infinity}}',
        '{"type": "step", "data": {"text": "\\ud800"}}',
    ],
    "MESSAGE_TOO_LARGE": [{"type": "step", "data": {"text": text}} for text in ("x" * 1_000_000, "é" * 33_000)],
    "UNKNOWN_TYPE": [{}, {"type": "fly"}, {"type": ["step"]}, {"type": None}],
    "VALIDATION_ERROR": [
        *("[]", "null", '"reset"', "7", DEEP, {"type": "step"}),
        {"type": "step", "data": {"text": "HOLD"}, "more": 1},
        {"type": "reset", "data": 3},
        *({"type": "step", "data": data} for data in (None, [], {}, {"text": 5}, {"text": "HOLD", "more": 1})),
        {"type": "step", "data": {"text": "x" * 50_000}},
    ],
    "EXECUTION_ERROR": [
        {"type": "reset", "data": {name: value}}
        for name, values in {
            "seed": (-1, 1 << 63, 1.5, True, "7"),
            "index": (-1, 50, []),
            "split": ("moon", 4, ["train"]),
            "episode_id": (4, "x" * 256),
            "self": (1,),
            "market": ("/etc/passwd",),
        }.items()
        for value in values
    ],
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


def test_who_goes_without_a_word_leaves_nothing_behind(market: Served):
    before = market.free()
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
                for _ in range(20):
                    with market.connected() as another:
                        assert code(reset(another)) == "CAPACITY_REACHED"
                client = GenericEnvClient(base_url=market.url).sync()
                with pytest.raises(RuntimeError, match="CAPACITY_REACHED"), client:
                    client.reset()
            waited_for(one_more)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"idle_seconds": 0.4}, "LIMIT_IDLE"),
        ({"lifetime_seconds": 0.4}, "LIMIT_LIFETIME"),
        ({"session_steps": 5}, "LIMIT_STEPS"),
    ],
)
def test_silence_age_and_steps_are_bounded(limit: dict, reason: str):
    """Of clients that are silent, that ask for ever, and that take steps in several episodes."""
    with served(Limits(sessions=4, **limit)) as market:
        before, told = market.free(), []
        with market.connected() as connection:
            reset(connection)
            while "LIFE" in reason and not told:
                told = [one for one in [said(connection, {"type": "state"})] if one["type"] == "error"]
            if "IDLE" in reason:
                told = [json.loads(connection.recv(timeout=20))]
            if "STEPS" in reason:
                told = [step(connection, "HOLD") for _ in range(3)]
                reset(connection)
                told += [step(connection, "HOLD") for _ in range(3)]
                assert [one["type"] for one in told[:5]] == ["observation"] * 5
            assert code(told[-1]) == reason
            with pytest.raises(ConnectionClosed) as closed:
                connection.recv(timeout=20)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
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
        assert len(requests.get(f"{market.url}/{TASK}/splits", headers=entering, timeout=10).json()) == 3


def test_pages_of_other_servers_may_not_connect(market: Served):
    with pytest.raises(InvalidStatus):
        connect(market.socket_url, origin="http://evil.example")
    with connect(market.socket_url, origin=market.url) as connection:
        assert reset(connection)["type"] == "observation"
    for origin in ("http://evil.example", "null"):
        told = requests.post(f"{market.url}/reset", json={}, headers={"Origin": origin}, timeout=10)
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
