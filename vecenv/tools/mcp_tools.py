"""A user's MCP server as a family of tools, through fastmcp: what its server does costs its own row alone."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from threading import Thread
from typing import Any, TypeVar
from weakref import finalize

from vecenv.text.tool_calls import FAILURE
from vecenv.tools.declaration import Arguments, Reply, Tool, ToolFault
from vecenv.tools.json_values import Schema, canonical, check_schema, misfit
from vecenv.tools.schemas import declared

Result = TypeVar("Result")

SLACK = 1.0
"""Seconds beyond the deadline after which a call is given up, whatever the client does."""

_MISFITS = (
    "Invalid structured content returned by tool {}:",
    "Tool {} has an output schema",
    "Invalid schema for tool {}:",
)
"""How the client's errors of a result begin, in the versions of mcp that fastmcp 3.4 and 4.2 use."""

NEEDED = "tools of MCP servers need fastmcp: pip install 'vecenv[mcp]'"


class McpTools:
    """Tools of one MCP server, called for many rows at once.

    All rows share the server: one that keeps a state of its callers mixes their states.

    Args:
        server: what `fastmcp.Client` connects to: an address, a script, a configuration as in ``mcpServers``, a server
            in this process.
        family: name of the family.
        only: tools to take, by default all.
        deadline: seconds of each call.
        patience: seconds until the server is connected and has listed its tools.

    Attributes:
        tools: declarations by name.
        schemas: of replies, of those tools whose server declares them in words that are understood.
        failed: failures of the server: late, misfit or gone. In none of them has the agent failed; its row is told.

    Raises:
        ImportError: fastmcp is not installed.
        OSError: the server does not answer.
        ValueError: a tool has a schema that does not fit, two tools have one name, or there is no such tool.
    """

    def __init__(
        self,
        server: Any,  # noqa: ANN401
        family: str = "mcp",
        only: Sequence[str] = (),
        deadline: float = 10.0,
        patience: float = 60.0,
    ) -> None:
        try:
            from fastmcp import Client
        except ImportError as error:
            raise ImportError(NEEDED) from error
        self.deadline, self.failed = deadline, Counter[str]()
        self._client = Client(server)
        # The client's connection lives in a loop of its own, and so goes on while others wait for replies.
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        self._close = finalize(self, _end, self._loop, self._client)
        self._connecting, self._ending = asyncio.Lock(), set[asyncio.Future[Any]]()
        try:
            listed = self._run(self._listed(patience))
        except Exception as error:
            raise OSError(f"the MCP server {str(server)[:80]!r} does not answer: {_told(error)}") from error
        names = [told["name"] for told in listed]
        if missing := [name for name in only if name not in names]:
            raise ValueError(f"the MCP server has no tool {missing[0]!r}; there are {', '.join(names)}")
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(f"the MCP server has two tools of the name {twice[0]!r}")
        chosen = [told for told in listed if not only or told["name"] in only]
        self.tools: Mapping[str, Tool] = {told["name"]: declared(told, family) for told in chosen}
        self.schemas: dict[str, Schema] = {}
        for told in chosen:
            if (schema := told.get("outputSchema")) is not None:
                check_schema(schema, f"the schema of what {told['name']!r} replies")
                self.schemas[told["name"]] = schema

    def replies(self, name: str, calls: Sequence[Arguments]) -> list[Reply]:
        return self._run(self._replies(name, calls))

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listed(self, patience: float) -> list[dict[str, Any]]:
        async with asyncio.timeout(patience):
            await self._connect()
            return [tool.model_dump(mode="json", by_alias=True) for tool in await self._client.list_tools()]

    async def _connect(self) -> Any:  # noqa: ANN401
        """Return the client, connected, anew if its connection has ended."""
        async with self._connecting:
            if not self._client.is_connected():
                await self._client.__aenter__()
            return self._client

    def _drop(self, client: Any) -> None:  # noqa: ANN401
        """Have the next call connect anew, unless another one has."""
        if self._client is client:
            self._client = client.new()
            self._close.detach()
            self._close = finalize(self, _end, self._loop, self._client)
            ended = asyncio.ensure_future(client.close())
            self._ending.add(ended)
            ended.add_done_callback(self._ending.discard)

    async def _replies(self, name: str, calls: Sequence[Arguments]) -> list[Reply]:
        return list(await asyncio.gather(*(self._reply(name, call) for call in calls)))

    async def _reply(self, name: str, call: Arguments) -> Reply:
        # What was left out, and has no default, is left out.
        given = {each: value for each, value in call.items() if value is not None}
        try:
            canonical(given).encode()
        except (ValueError, RecursionError):
            return ToolFault(f"the arguments of {name} have no JSON in UTF-8")
        client, began = self._client, self._loop.time()
        try:
            # The client's own limit leaves the connection as it is; the other one is for whatever else may hang.
            async with asyncio.timeout(self.deadline + SLACK):
                client = await self._connect()
                result = await client.call_tool(name, given, timeout=self.deadline, raise_on_error=False)
        except (Exception, asyncio.CancelledError) as error:
            # The client itself holds a result to the schema that the server declared.
            if isinstance(error, RuntimeError) and str(error).startswith(tuple(one.format(name) for one in _MISFITS)):
                return self._failure("misfit", "the tool's reply does not fit its schema")
            if isinstance(error, TimeoutError) or self._loop.time() - began >= self.deadline:
                return self._failure("late", f"the tool did not answer within {self.deadline:g} s")
            self._drop(client)
            return self._failure("gone", f"the tool's server is gone: {_told(error)}")
        return self._read(name, result)

    def _failure(self, kind: str, told: str) -> str:
        self.failed[kind] += 1
        return f"{FAILURE}{told}"

    def _read(self, name: str, result: Any) -> Reply:  # noqa: ANN401
        text = "\n".join(block.text for block in result.content if getattr(block, "text", None) is not None)
        if result.is_error:
            # What the tool itself says of the call, such as of wrong arguments.
            return ToolFault(text)
        if name not in self.schemas:
            return text
        value = result.structured_content
        if told := misfit(value, self.schemas[name], "the reply"):
            return self._failure("misfit", f"the tool's reply does not fit its schema: {told}")
        return text or json.dumps(value)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()[:200]


def _end(loop: asyncio.AbstractEventLoop, client: Any) -> None:  # noqa: ANN401
    asyncio.run_coroutine_threadsafe(client.close(), loop).add_done_callback(lambda _: loop.stop())
