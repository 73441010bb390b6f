"""ASGI middleware with authentication, message-size limits and connection timeouts.

OpenEnv's routes end the session on a message that is not a JSON object or not valid Unicode, and do not limit size, age
or idle time of a WebSocket. Only JSON objects of bounded size and depth pass, so that the routes can answer any other
error.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import SplitResult, urlsplit

from vecenv.core.foreign_json import check_depth
from vecenv.system.settings import Count, Positive, Settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Raw = TypeVar("Raw", str, bytes)

DEEPEST = 32
"""Maximum nesting depth of a message."""

NO_JSON = "a message must be JSON, of Unicode text and finite numbers"

POLICY_VIOLATION = 1008
"""WebSocket close code after a limit is reached."""

REFUSED = {"UNAUTHORIZED": 401, "FORBIDDEN": 403, "UNKNOWN_HOST": 400}
"""HTTP status by reason of refusal."""

OPEN_PATHS = ("/health",)
"""Paths without authentication, for health checks."""

LONGEST_TEXT = 49_152
"""Maximum characters of an answer, its reasoning included; a longer one is an invalid answer."""

LARGEST_READ = 32
"""Up to this multiple of the size limit a message is read for an answer that is too long; above it is an error."""


@dataclass(frozen=True)
class Limits(Settings):
    """Limits per client and connection."""

    sessions: Count = 64
    """Concurrent sessions."""
    message_bytes: Count = 65_536
    """Largest message; a larger one is rejected, but an answer beyond `LONGEST_TEXT` is an invalid one."""
    request_seconds: Positive = 30.0
    """Time limit for a complete HTTP request, headers and body, and for the first message of a client without a free
    session; then the connection is closed."""
    idle_seconds: Positive = 600.0
    """Idle time after which a connection is closed."""
    lifetime_seconds: Positive = 86_400.0
    """Maximum age of a connection."""
    session_steps: Count = 1_000_000
    """Maximum number of steps of a session."""


class MessageFault(ValueError):
    """Protocol error with a machine-readable code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    def as_json(self) -> str:
        return json.dumps({"type": "error", "data": {"message": str(self), "code": self.code}})


class Guard:
    """ASGI middleware that enforces the limits.

    ``token`` is required as ``Authorization: Bearer TOKEN``, if any; ``names`` are allowed host names, by default any.
    """

    def __init__(
        self, app: App, limits: Limits, token: str | None = None, url: str = "", names: Collection[str] | None = None
    ) -> None:
        self.app, self.limits, self.url, self.names = app, limits, url, names
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        refusal = self._refusal(scope["path"], headers)
        if scope["type"] == "websocket":
            if refusal is not None:
                await receive()
                # A close before the WebSocket is accepted is answered with status 403.
                await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": str(refusal)})
                return
            await GuardedSocket(self, receive, send).run(scope)
        elif refusal is not None:
            await _answer(send, REFUSED[refusal.code], refusal)
        else:
            await self._request(scope, headers, receive, send)

    def _refusal(self, path: str, headers: MutableMapping[bytes, bytes]) -> MessageFault | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self.names is not None and _split_url(f"//{host}").hostname not in self.names:
            return MessageFault("UNKNOWN_HOST", f"unknown host name; this is {self.url}")
        # Browsers send the page's origin; cross-origin requests are refused.
        origin = headers.get(b"origin")
        if origin is not None and _split_url(origin.decode("latin-1")).netloc != host:
            return MessageFault("FORBIDDEN", f"cross-origin requests are refused; this is {self.url}")
        if self._expected is None or path in OPEN_PATHS:
            return None
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            return MessageFault("UNAUTHORIZED", "a valid bearer token is needed")
        return None

    async def _request(
        self, scope: Message, headers: MutableMapping[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Read a request's body up to the size limit and forward the request if it is valid."""
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > LARGEST_READ * self.limits.message_bytes or not message.get("more_body"):
                break
        is_json = b"json" in headers.get(b"content-type", b"json")
        if body and (is_json or len(body) > self.limits.message_bytes):
            try:
                value, body = _understood(body, self.limits.message_bytes, is_json)
            except MessageFault as fault:
                await _answer(send, 413 if fault.code == "MESSAGE_TOO_LARGE" else 400, fault)
                return
            if scope["path"] == "/mcp" and value.get("method") == "openenv/session/create":
                # A session opened over HTTP would not end with a connection.
                await _answer(send, 400, MessageFault("UNKNOWN_TYPE", "sessions are opened by WebSocket, at /ws"))
                return
        sent = False

        async def replayed() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replayed, send)


class GuardedSocket:
    """One WebSocket with limits."""

    def __init__(self, guard: Guard, receive: Receive, send: Send) -> None:
        self._guard, self._receive, self._send = guard, receive, send
        self._limits = guard.limits
        self._deadline = asyncio.get_running_loop().time() + self._limits.lifetime_seconds
        self._steps = 0
        self._ended = False
        self._heard = True

    async def run(self, scope: Message) -> None:
        await self._guard.app(scope, self._next, self._told)

    async def _told(self, message: Message) -> None:
        """Send the routes' messages; a rejection waits for the client's first message.

        OpenEnv's clients send first, and on a closed connection would never read the reason.
        """
        if message["type"] == "websocket.accept":
            self._heard = False
        elif message["type"] == "websocket.close" and not self._heard:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.request_seconds):
                    await self._receive()
        await self._forward(message)

    async def _forward(self, message: Message) -> None:
        """Send a message and ignore a disconnected client: the routes learn of it from their next receive."""
        if self._ended:
            return
        try:
            await self._send(message)
        except OSError:
            self._ended = True

    async def _next(self) -> Message:
        """Return the next valid message; answer invalid ones with an error."""
        while not self._ended:
            now = asyncio.get_running_loop().time()
            wait = min(self._limits.idle_seconds, self._deadline - now)
            try:
                async with asyncio.timeout(wait):
                    message = await self._receive()
            except TimeoutError:
                if asyncio.get_running_loop().time() >= self._deadline:
                    await self._end("LIMIT_LIFETIME", f"a connection may live {self._limits.lifetime_seconds:g} s")
                else:
                    await self._end("LIMIT_IDLE", f"a connection may be silent for {self._limits.idle_seconds:g} s")
                break
            if message["type"] == "websocket.connect":
                return message
            self._heard = True
            if message["type"] != "websocket.receive":
                return message
            raw = message.get("text") or message.get("bytes") or b""
            try:
                value, raw = _understood(raw, self._limits.message_bytes)
            except MessageFault as fault:
                await self._forward({"type": "websocket.send", "text": fault.as_json()})
                continue
            if value.get("type") == "step":
                self._steps += 1
                if self._steps > self._limits.session_steps:
                    await self._end("LIMIT_STEPS", f"a session may take {self._limits.session_steps} steps")
                    break
            # Binary messages are forwarded as the text that the routes read.
            return {"type": "websocket.receive", "text": raw if isinstance(raw, str) else raw.decode()}
        return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}

    async def _end(self, code: str, reason: str) -> None:
        await self._forward({"type": "websocket.send", "text": MessageFault(code, reason).as_json()})
        await self._forward({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
        self._ended = True


def read_message(raw: str | bytes, most_bytes: int) -> dict[str, Any]:
    """Parse a JSON object; MessageFault for anything else, and if it is too large, too deep or not valid Unicode."""
    if len(raw) > most_bytes or (isinstance(raw, str) and len(raw.encode()) > most_bytes):
        raise MessageFault("MESSAGE_TOO_LARGE", f"a message may have {most_bytes} bytes")
    try:
        text = raw if isinstance(raw, str) else raw.decode()
    except UnicodeDecodeError:
        raise MessageFault("INVALID_JSON", NO_JSON) from None
    try:
        check_depth(text, deepest=DEEPEST)
    except ValueError:
        raise MessageFault("VALIDATION_ERROR", f"a message may be {DEEPEST} levels deep") from None
    try:
        value = _DECODER.decode(text)
        if "\\u" in text:
            # JSON can hold lone surrogates, which cannot be encoded in an answer.
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        raise MessageFault("INVALID_JSON", NO_JSON) from None
    if not isinstance(value, dict):
        raise MessageFault("VALIDATION_ERROR", "a message must be a JSON object")
    return value


def _understood(raw: Raw, most_bytes: int, cuts: bool = True) -> tuple[dict[str, Any], Raw]:
    """Return a message as JSON and as it was sent; MessageFault as `read_message`.

    Of one that is too large texts are cut off behind what an answer may have, so that an endless answer reaches the
    session, to which it is an invalid one. It raises the fault if it is too large without them, if the session would
    read what was cut off, or without ``cuts``.
    """
    try:
        return read_message(raw, most_bytes), raw
    except MessageFault as fault:
        largest = LARGEST_READ * most_bytes
        if fault.code != "MESSAGE_TOO_LARGE" or not cuts or len(raw) > largest or most_bytes <= LONGEST_TEXT:
            raise
        value = read_message(raw, 4 * largest)
    read_message(json.dumps(_cut(value, 0)), most_bytes)
    value = _cut(value, LONGEST_TEXT + 1)
    text = json.dumps(value)
    return value, text if isinstance(raw, str) else text.encode()


def _cut(value: Any, length: int) -> Any:  # noqa: ANN401
    """Return a JSON value whose texts of more than `LONGEST_TEXT` characters have a given length."""
    if isinstance(value, dict):
        return {name: _cut(inner, length) for name, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner, length) for inner in value]
    return value[:length] if isinstance(value, str) and len(value) > LONGEST_TEXT else value


def _split_url(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
"""`json.loads` would make one for each message."""


async def _answer(send: Send, status: int, fault: MessageFault) -> None:
    body = fault.as_json().encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
