"""Replies of tools by a language model behind an OpenAI-compatible address: held to schemas, asked once a call."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from vecenv.text.reasoning import without_reasoning
from vecenv.text.tool_calls import FAILURE
from vecenv.tools.declaration import LONGEST_REPLY, Arguments, Reply, Tool
from vecenv.tools.json_values import Schema, canonical, misfit
from vecenv.tools.mocks import check_schemas
from vecenv.tools.recording import Recording
from vecenv.tools.schemas import openai_schema

LARGEST = 1 << 18
"""Maximum bytes of what the address answers."""

API_KEY = "OPENAI_API_KEY"
"""Environment variable of the address's key, if it wants one."""

_UNUSABLE = (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError, RecursionError)
_FENCED = re.compile(r"```(?:json)?\s(.*)```", re.DOTALL)


class Modelled:
    """Replies that a language model makes up, as JSON that fits a schema.

    Args:
        tools: declarations by name.
        schemas: of the reply of each tool.
        address: of the API, such as ``http://127.0.0.1:8001/v1``.
        model: its name there.
        cache: file of the recording in which replies are kept, and from which the mock goes on; None for none.
        deadline: seconds of each question, until its answer is there as a whole.
        tries: questions before the tool has failed.
        concurrent: questions at a time.

    Attributes:
        failed: answers that could not be used, by what was wrong with them. The agent is told that the tool failed,
            which is not kept: the next equal call asks again.

    Raises:
        ValueError: a tool has no schema, or one that is not understood; the address is none; a line of the cache is no
            reply.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        schemas: Mapping[str, Schema],
        address: str,
        model: str,
        cache: Path | None = None,
        deadline: float = 30.0,
        tries: int = 2,
        concurrent: int = 8,
    ) -> None:
        check_schemas(tools, schemas)
        if urlsplit(address).scheme not in ("http", "https"):
            raise ValueError(f"{address!r} is no address that begins with http:// or https://")
        self.tools, self.schemas, self.model = dict(tools), dict(schemas), model
        self.address, self.cache, self.deadline, self.tries = address.rstrip("/"), cache, deadline, tries
        self.concurrent, self.failed = concurrent, Counter[str]()
        is_kept = cache is not None and cache.exists() and cache.stat().st_size > 0
        self.recording = Recording.read(tools, cache) if is_kept and cache is not None else Recording(tools)

    def replies(self, name: str, calls: Sequence[Arguments]) -> list[Reply]:
        known = self.recording.known[name]
        asked = {key: call for call in calls if (key := canonical(call)) not in known}
        with ThreadPoolExecutor(self.concurrent) as pool:
            told = dict(zip(asked, pool.map(lambda call: self._asked(name, call), asked.values()), strict=True))
        new = [call for key, call in asked.items() if not told[key].startswith(FAILURE)]
        for call in new:
            self.recording.note(name, call, told[canonical(call)])
        if self.cache is not None and new:
            self.recording.append(self.cache, name, new)
        return [known[key][1] if (key := canonical(call)) in known else told[key] for call in calls]

    def _asked(self, name: str, call: Arguments) -> str:
        """Return what the model makes up, or a failure after the last try."""
        for _ in range(self.tries):
            try:
                said = _in_time(self.deadline, lambda: self._said(name, call))
                fenced = _FENCED.search(said)
                value = json.loads(fenced[1] if fenced else said)
                # A text with lone surrogates is none that an agent could be sent.
                canonical(value).encode()
            except _UNUSABLE as error:
                self.failed[type(error).__name__] += 1
                continue
            if told := misfit(value, self.schemas[name], "the reply"):
                self.failed[told] += 1
                continue
            if len(canonical(value)) <= LONGEST_REPLY:
                return canonical(value)
            self.failed["the reply is too long"] += 1
        return f"{FAILURE}the tool is not available"

    def _said(self, name: str, call: Arguments) -> str:
        declared, schema = json.dumps(openai_schema(self.tools[name])), json.dumps(self.schemas[name])
        how = (
            f"You stand in for a tool. Its declaration: {declared}\nAnswer a call with what the tool might reply: one "
            f"JSON value of this schema, and nothing else: {schema}"
        )
        asked = {
            "model": self.model,
            "temperature": 0,
            "messages": [{"role": "system", "content": how}, {"role": "user", "content": canonical(call)}],
        }
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(API_KEY):
            headers["Authorization"] = f"Bearer {key}"
        request = Request(f"{self.address}/chat/completions", json.dumps(asked).encode(), headers)
        with urlopen(request, timeout=self.deadline) as answer:
            body = answer.read(LARGEST + 1)
        if len(body) > LARGEST:
            raise ValueError(f"an answer may have {LARGEST} bytes")
        return without_reasoning(json.loads(body)["choices"][0]["message"]["content"]).strip()


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
