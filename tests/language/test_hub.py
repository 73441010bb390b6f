"""Models by name on a hub that refuses, hangs, fails or answers, all on this machine, and in the cache."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from tests.language.tiny import small_model
from vecenv.language import hub
from vecenv.language.hub import found_model, hub_fault
from vecenv.language.models import load_model, save_model
from vecenv.tasks.commands.cli import BAD_INPUT, main

NAME, REVISION = "someone/some-model", "0" * 40
TRAIN = ("train", "--algorithm", "grpo", "--task", "single_stock", "--model", NAME)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Give each test an empty cache, and no proxy between it and its hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def refusing(monkeypatch):
    """A hub that nobody listens for."""
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed_port()}")


@contextmanager
def hanging() -> Iterator[tuple[str, list[socket.socket]]]:
    """A hub that accepts connections and says nothing; yields its address and who came."""
    came: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    came.append(server.accept()[0])
                except OSError:
                    return

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", came
        finally:
            server.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in came:
                connection.close()


@contextmanager
def answering(status: int) -> Iterator[tuple[str, list[str]]]:
    """A hub that answers everything with a status; yields its address and what was asked for."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


def cache_folder(cache):
    """The folder of the model in a cache."""
    return cache / f"models--{NAME.replace('/', '--')}" / "snapshots" / REVISION


def cache_model(cache) -> None:
    """Put a model into the cache as a download leaves it."""
    place = cache_folder(cache)
    save_model(*small_model(), place)
    references = place.parents[1] / "refs"
    references.mkdir()
    (references / "main").write_text(REVISION)


def test_a_hub_that_refuses_is_told_before_any_work(refusing, capsys):
    assert main(list(TRAIN)) == BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"{NAME}: neither a folder nor a model in this machine's cache" in captured.err
    assert f"the hub {constants.ENDPOINT} cannot be reached: " in captured.err


@pytest.mark.nightly
def test_a_hub_that_hangs_is_asked_once_and_left(monkeypatch, capsys):
    """It never answers, so whoever waits for it does not come here."""
    with hanging() as (address, came):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        assert main(["evaluate", "--model", NAME, "--task", "single_stock"]) == BAD_INPUT
        assert len(came) == 1 and hub.WAIT < 2
        with pytest.raises(ValueError, match="cannot be reached"):
            load_model(NAME)
        assert len(came) == 2
    assert f"the hub {address} cannot be reached: " in capsys.readouterr().err


def test_a_name_that_is_looked_up_for_ever_is_not_waited_for(monkeypatch):
    """As without a network, where a resolver keeps on trying."""
    over = threading.Event()
    monkeypatch.setattr(hub, "get_session", lambda: over.wait(20))
    monkeypatch.setattr(hub, "WAIT", 0.1)
    try:
        assert hub_fault(NAME) == "no answer within 0.1 seconds"
    finally:
        over.set()


@pytest.mark.parametrize("network", ["refuses", "hangs", "offline"])
@pytest.mark.nightly
def test_a_cached_model_loads_without_a_network(network, tmp_path, monkeypatch):
    cache_model(tmp_path / "cache")
    with hanging() as (address, came):
        if network != "refuses":
            monkeypatch.setattr(constants, "ENDPOINT", address)
        else:
            monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed_port()}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", network == "offline")
        assert found_model(NAME) == str(cache_folder(tmp_path / "cache"))
        model, tokenizer = load_model(NAME)
        # Once by each of the two calls above, and by no library.
        assert len(came) == (2 if network == "hangs" else 0)
    expected, _ = small_model()
    assert all((a == b).all() for a, b in zip(model.parameters(), expected.parameters(), strict=True))
    assert len(tokenizer) > 0


@pytest.mark.nightly
def test_a_hub_that_answers_is_asked_for_the_model(tmp_path, monkeypatch):
    """Whatever it says of the model: that is for the library to read."""
    for status in (200, 401, 404):
        with answering(status) as (address, asked):
            monkeypatch.setattr(constants, "ENDPOINT", address)
            assert found_model(NAME) == NAME and asked == [f"/api/models/{NAME}"]
    with answering(503) as (address, _):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        with pytest.raises(ValueError, match="cannot be reached: it answers 503"):
            found_model(NAME)


def test_what_is_here_is_not_asked_for(tmp_path, refusing, monkeypatch):
    monkeypatch.setattr(hub, "get_session", lambda: pytest.fail("the hub was asked"))
    assert found_model(str(tmp_path)) == str(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=f"{NAME}: .* cannot be reached: HF_HUB_OFFLINE is set"):
        found_model(NAME)


def test_a_proxy_is_asked_in_the_place_of_the_hub(monkeypatch):
    with answering(200) as (proxy, asked):
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
        from huggingface_hub.utils import close_session

        close_session()
        try:
            assert found_model(NAME) == NAME
        finally:
            close_session()
    assert asked == [f"http://hub.invalid/api/models/{NAME}"]
