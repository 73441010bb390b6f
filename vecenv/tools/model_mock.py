"""Replies of tools by a language model behind an OpenAI-compatible address: held to schemas, asked once a call."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vecenv.core.foreign_json import read_json
from vecenv.text.chat_address import UNUSABLE, answered, checked_address
from vecenv.text.tool_calls import FAILURE
from vecenv.tools.declaration import LONGEST_REPLY, Arguments, Reply, Tool
from vecenv.tools.json_values import Schema, canonical, misfit
from vecenv.tools.mocks import check_schemas
from vecenv.tools.recording import Recording
from vecenv.tools.schemas import openai_schema

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
        self.address = checked_address(address)
        self.tools, self.schemas, self.model = dict(tools), dict(schemas), model
        self.cache, self.deadline, self.tries = cache, deadline, tries
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
                said = self._said(name, call)
                fenced = _FENCED.search(said)
                value = read_json(fenced[1] if fenced else said)
                # A text with lone surrogates is none that an agent could be sent.
                canonical(value).encode()
            except UNUSABLE as error:
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
        messages = [{"role": "system", "content": how}, {"role": "user", "content": canonical(call)}]
        return answered(self.address, self.model, messages, self.deadline)
