"""One question to a language model behind an OpenAI-compatible address."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from http.client import HTTPException
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from vecenv.core.foreign_json import read_json
from vecenv.text.reasoning import without_reasoning

LARGEST = 1 << 18
"""Maximum bytes of what the address answers."""

API_KEY = "OPENAI_API_KEY"
"""Environment variable of the address's key, if it wants one."""

UNUSABLE = (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError)
"""What `answered` raises where there is no answer, or none that can be used."""


def checked_address(address: str) -> str:
    """Return an address such as ``http://127.0.0.1:8001/v1`` without a slash at its end; ValueError if it is none."""
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(f"{address!r} is no address that begins with http:// or https://")
    return address.rstrip("/")


def answered(address: str, model: str, messages: Sequence[Mapping[str, str]], deadline: float) -> str:
    """Return what a model answers at temperature 0, without its reasoning; see `UNUSABLE`.

    Args:
        address: of the API.
        model: its name there.
        messages: with ``role`` and ``content``.
        deadline: seconds until the whole answer is there.
    """
    return _in_time(deadline, lambda: _answered(address, model, messages, deadline))


def _answered(address: str, model: str, messages: Sequence[Mapping[str, str]], deadline: float) -> str:
    asked = {"model": model, "temperature": 0, "messages": list(messages)}
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(API_KEY):
        headers["Authorization"] = f"Bearer {key}"
    request = Request(f"{address}/chat/completions", json.dumps(asked).encode(), headers)
    with urlopen(request, timeout=deadline) as answer:
        body = answer.read(LARGEST + 1)
    if len(body) > LARGEST:
        raise ValueError(f"an answer may have {LARGEST} bytes")
    return without_reasoning(read_json(body)["choices"][0]["message"]["content"]).strip()


def _in_time(seconds: float, asked: Callable[[], str]) -> str:
    """Return what a function returns, or raise TimeoutError; then its thread ends with the reads of its socket.

    The timeout of a socket is one of each read: an answer that drips has none.
    """
    answer: Future[str] = Future()

    def run() -> None:
        try:
            answer.set_result(asked())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return answer.result(seconds)
