"""Models by name: a hub that refuses, fails, hangs or answers, and the cache."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from tests.language.tiny import small_model
from vecenv.language import hub
from vecenv.language.hub import found_model, hub_fault
from vecenv.language.models import load_model, save_model
from vecenv.tasks.commands.cli import BAD_INPUT, main

NAME, REVISION = "someone/some-model", "0" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Give each test an empty cache, and no proxy between it and its hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache"


def answering(monkeypatch, answer):
    """Let the hub answer every question by a function of its address; return the addresses."""
    asked = []

    def head(address, timeout):
        asked.append((address, timeout))
        return answer()

    monkeypatch.setattr(hub, "get_session", lambda: SimpleNamespace(head=head))
    return asked


def test_a_hub_that_refuses_is_told_before_any_work(monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    assert main(["evaluate", "--task", "single_stock", "--model", NAME]) == BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"{NAME}: neither a folder nor a model in this machine's cache, and the hub {address} cannot" in captured.err


def test_a_hub_that_answers_is_asked_once_for_the_model_and_not_waited_for(monkeypatch):
    """Whatever it says of the model: that is for the library to read. A name may be looked up for ever."""
    for status, fault in ((200, None), (401, None), (404, None), (499, None), (500, "it answers 500")):
        asked = answering(monkeypatch, lambda status=status: SimpleNamespace(status_code=status))
        assert hub_fault(NAME) == fault
        assert asked == [(f"{constants.ENDPOINT}/api/models/{NAME}", hub.WAIT)] and hub.WAIT == 1.5

    def failing(error):
        def fail():
            raise error

        return fail

    for error, fault in ((OSError(" no route\nmore"), "no route"), (TimeoutError(), "TimeoutError")):
        answering(monkeypatch, failing(error))
        assert hub_fault(NAME) == fault
    over = threading.Event()
    answering(monkeypatch, lambda: over.wait(20))
    monkeypatch.setattr(hub, "WAIT", 0.1)
    try:
        assert hub_fault(NAME) == "no answer within 0.1 seconds"
    finally:
        over.set()


def test_a_cached_model_loads_without_a_network(cache, monkeypatch):
    place = cache / f"models--{NAME.replace('/', '--')}" / "snapshots" / REVISION
    save_model(*small_model(), place)
    (place.parents[1] / "refs").mkdir()
    (place.parents[1] / "refs" / "main").write_text(REVISION)
    monkeypatch.setattr(hub, "hub_fault", lambda name: "nobody is there")
    assert found_model(NAME) == str(place)
    model, tokenizer = load_model(NAME)
    expected, _ = small_model()
    assert all((a == b).all() for a, b in zip(model.parameters(), expected.parameters(), strict=True))
    assert len(tokenizer) > 0


def test_what_is_here_is_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "hub_fault", lambda name: pytest.fail("the hub was asked"))
    assert found_model(str(tmp_path)) == str(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=f"{NAME}: .* cannot be reached: HF_HUB_OFFLINE is set"):
        found_model(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "hub_fault", lambda name: None)
    assert found_model(NAME) == NAME
