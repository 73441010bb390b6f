"""MCP: a server on which any client plays a task, through fastmcp; sessions are rows of one world.

The protocol of 2026-07-28 has no sessions, and each request may come by a connection of its own. So a session is a
handle: ``begin_episode`` returns it, and every other tool takes it. Over standard input and output a process has one
client: there a session has no handle, and the tools of the task have exactly the schemas of their declarations.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_urlsafe
from typing import Any

from fastmcp import FastMCP
from fastmcp.tools import Tool, ToolResult
from pydantic import Field

import vecenv
from vecenv.adapters.guard import App, Limits
from vecenv.adapters.sessions.http_server import guarded
from vecenv.adapters.sessions.service import SessionError, TextService
from vecenv.adapters.sessions.session import RowSession
from vecenv.text.interaction import Turn
from vecenv.text.tool_calls import FAILURE, FAULT, LONGEST_CALL, ToolCall
from vecenv.tools.schemas import parameters
from vecenv.tools.tool_set import ToolSet

PATH = "/mcp"
"""Of the server over HTTP."""

SESSION = "session"
"""Argument that has the handle of a session."""

HOW = (
    "An environment of episodes. begin_episode shows the instructions and what is seen first; answer gives an answer "
    "in the words that they ask for; the tools of the task help before it. A reward stands in each result, and the "
    "grade, in [0, 1], in the last."
)

_ONLY = "only"
_WHOLE = {"type": "integer", "minimum": 0}


class RowTool(Tool):
    """A tool whose calls are carried out by a coroutine of their arguments."""

    carried: Callable[[dict[str, Any]], Awaitable[ToolResult]] = Field(exclude=True)

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        return await self.carried(arguments)


@dataclass
class Place:
    """A session: when it was opened and last heard of, in seconds, its messages, and what it was told last."""

    session: RowSession
    opened: float
    heard: float
    messages: int = 0
    instructions: str = ""
    shown: str = ""


class Places:
    """Sessions by handle, within the limits.

    No connection tells that a client is gone: a session that is silent or old ends once another wants its place.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, service: TextService, limits: Limits) -> None:
        self.service, self.limits = service, limits
        self._places: dict[str, Place] = {}

    def __contains__(self, handle: str) -> bool:
        place = self._places.get(handle)
        return place is not None and not self._ended(place)

    def open(self, handle: str) -> Place:
        """Return a new session under a handle; SessionError if there are as many as there may be."""
        for name in [name for name in self._places if name not in self]:
            self.close(name)
        if len(self._places) >= self.limits.sessions:
            raise SessionError(f"all {self.limits.sessions} sessions of the server are taken; try again later")
        now = self.clock()
        self._places[handle] = place = Place(RowSession(self.service), now, now)
        return place

    def at(self, handle: str) -> Place:
        """Return the session of a handle, for a message; SessionError if there is none, or no message is left."""
        if handle not in self:
            raise SessionError("there is no such session, or it has ended: begin_episode opens one")
        place = self._places[handle]
        if place.messages == self.limits.session_steps:
            raise SessionError(f"a session may have {self.limits.session_steps} messages")
        place.messages += 1
        place.heard = self.clock()
        return place

    def close(self, handle: str) -> None:
        if (place := self._places.pop(handle, None)) is not None:
            place.session.close()

    def _ended(self, place: Place) -> bool:
        now, limits = self.clock(), self.limits
        late = now - place.heard > limits.idle_seconds or now - place.opened > limits.lifetime_seconds
        return late and not place.session.busy


class Desk:
    """The tools by which clients play a served world.

    Args:
        service: whose rows are lent.
        limits: of sessions.
        handles: whether sessions have handles; without, there is one session.

    Raises:
        ValueError: a tool of the task has a name, or an argument, that the server needs itself.
    """

    def __init__(self, service: TextService, limits: Limits, handles: bool = True) -> None:
        self.places, self.handles = Places(service, limits), handles
        dialogue = next(iter(service.pools.values())).dialogue
        self.calls = dialogue.rules.turns - 1
        splits = {"type": "string", "enum": list(service.pools)}
        names = {"split": splits, "index": _WHOLE | {"maximum": service.num_tasks - 1}, "seed": _WHOLE}
        begins = (
            f"{dialogue.interaction.description}. Begins an episode, also where one runs: tells what to do and shows "
            "what is seen first. Equal names are equal episodes; without a name the next one begins."
        )
        answers = "Gives an answer, written as the instructions tell, and shows what comes of it."
        self.tools = [
            self._tool("begin_episode", begins, schema(names), self._begin, opens=True),
            self._tool("answer", answers, schema({"text": {"type": "string"}}, ["text"]), self._answer),
            self._tool("observe", "Shows the instructions and what was seen last again.", schema({}), self._observe),
        ]
        if handles:
            self.tools.append(self._tool("end_session", "Ends a session and frees its place.", schema({}), self._end))
        taken = {tool.name for tool in self.tools}
        offered = dialogue.tools if isinstance(dialogue.tools, ToolSet) else None
        # Tools without declarations are called in the text of an answer.
        for tool in [offered.tools[name] for name in offered.offered] if offered is not None else ():
            name = tool.name
            if name in taken or (handles and SESSION in tool.arguments):
                raise ValueError(f"tool {name!r} has the name, or an argument, of what the server offers itself")
            self.tools.append(self._tool(name, tool.usage, parameters(tool), partial(self._call, name)))
        self.told = len(self.tools) > len(taken)

    def _tool(
        self,
        name: str,
        description: str,
        form: dict[str, Any],
        carried: Callable[[str, dict[str, Any]], Awaitable[ToolResult]],
        opens: bool = False,
    ) -> RowTool:
        """Return a tool of sessions, with their handle among its arguments if they have one."""
        if self.handles:
            handle = {"type": "string", "description": "What begin_episode returned" + ("; without, a new one" * opens)}
            form = schema(form["properties"] | {SESSION: handle}, [] if opens else [*form["required"], SESSION])

        async def run(arguments: dict[str, Any]) -> ToolResult:
            given = dict(arguments)
            handle = given.pop(SESSION, "") if self.handles else _ONLY
            try:
                if not isinstance(handle, str):
                    raise SessionError("session must be a text")
                # A turn that has begun ends, also where its client is gone: no session is behind its row.
                return await asyncio.shield(asyncio.ensure_future(carried(handle, given)))
            except (SessionError, RuntimeError) as error:
                return ToolResult(content=f"{FAULT}{error}", is_error=True)

        return RowTool(name=name, description=description, parameters=form, carried=run)

    async def _begin(self, handle: str, given: dict[str, Any]) -> ToolResult:
        opens = not handle or (not self.handles and handle not in self.places)
        handle = handle or token_urlsafe(16)
        place = self.places.open(handle) if opens else self.places.at(handle)
        try:
            opened = await place.session.begin(given.pop("seed", None), given)
        except BaseException:
            if opens:
                self.places.close(handle)
            raise
        session = place.session
        assert session.pool is not None
        place.instructions = opened.instructions
        if self.told:
            # The loop's own words tell how calls are written in a text.
            dialogue = session.pool.dialogue
            (place.instructions,) = dialogue.interaction.instructions([session.row])
            assert isinstance(dialogue.tools, ToolSet)
            tools = dialogue.tools
            (names,) = tools.offers(dialogue.names([session.row]))
            if telling := [name for name in names if not tools.tools[name].acts]:
                told = f"Before an answer you may call {', '.join(telling)}, at most {self.calls} times."
                place.instructions += f"\n{told}"
            place.instructions += "".join(f"\n{line}" for line in tools.acting_told(names))
        return self._result(place, opened.turn, {SESSION: handle} if self.handles else {})

    async def _answer(self, handle: str, given: dict[str, Any]) -> ToolResult:
        place, text = self.places.at(handle), given.pop("text", None)
        if given or not isinstance(text, str):
            raise SessionError("answer takes a text, and nothing else")
        return self._result(place, await place.session.say(text))

    async def _call(self, name: str, handle: str, given: dict[str, Any]) -> ToolResult:
        place = self.places.at(handle)
        long = len(json.dumps(given, ensure_ascii=False)) > LONGEST_CALL
        call = ToolCall(
            "" if long else name, {} if long else given, f"a call may have {LONGEST_CALL} characters" * long
        )
        return self._result(place, await place.session.say(call))

    async def _observe(self, handle: str, given: dict[str, Any]) -> ToolResult:
        place = self.places.at(handle)
        return ToolResult(content=f"{place.instructions}\n\n{place.shown}")

    async def _end(self, handle: str, given: dict[str, Any]) -> ToolResult:
        if self.places.at(handle).session.busy:
            # Its row is not free before the turn has ended.
            raise SessionError("a turn of this session is under way")
        self.places.close(handle)
        return ToolResult(content="The session has ended.")

    def _result(self, place: Place, turn: Turn, begun: Mapping[str, str] | None = None) -> ToolResult:
        """Return what a message, or the beginning of an episode, came to: in words and by name."""
        known, words, is_call = place.session.state, [turn.message], turn.outcomes is None
        if not is_call:
            place.shown = turn.message
        if begun is not None:
            words = [place.instructions, *(f"{name}: {value}" for name, value in begun.items()), turn.message]
        if turn.done:
            grade = "there is no grade, since the world failed" if turn.failed else f"the grade is {turn.grade:.4g}"
            words.append(f"The episode is over: {grade}.")
        told: dict[str, Any] = dict(begun or {})
        told |= {name: getattr(turn, name) for name in ("valid", "acted", "reward", "done", "grade", "failed")}
        told |= {name: getattr(known, name) for name in ("answers", "total_reward", "outcomes")}
        # What a tool refuses is an error to whoever called it; an invalid answer is an answer.
        is_fault = is_call and turn.message.startswith((FAULT, FAILURE))
        return ToolResult(content="\n\n".join(words), structured_content=told, is_error=is_fault)


def schema(properties: Mapping[str, Any], needed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON schema of arguments by name."""
    return {"type": "object", "properties": dict(properties), "required": [*needed], "additionalProperties": False}


def mcp_server(desk: Desk) -> FastMCP:
    """Return the server of the tools, over any transport."""
    return FastMCP(desk.places.service.task, HOW, version=vecenv.__version__, tools=desk.tools)


def build_app(service: TextService, limits: Limits, url: str, token: str | None = None) -> App:
    """Return the ASGI application of the server at `PATH`, within the limits, as `guarded`."""
    # Sessions have handles: neither a connection nor the server keeps one.
    app = mcp_server(Desk(service, limits)).http_app(PATH, stateless_http=True, json_response=True)
    return guarded(app, limits, url, token)


async def serve_stdio(service: TextService, limits: Limits) -> None:
    """Serve one session on standard input and output, until the input ends."""
    await mcp_server(Desk(service, limits, handles=False)).run_stdio_async(show_banner=False)
