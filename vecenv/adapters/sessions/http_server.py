"""HTTP and WebSocket server of an application behind the guard middleware, run by uvicorn."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from vecenv.adapters.guard import App, Guard, Limits, MessageFault
from vecenv.system.interrupts import end_at_interrupt, end_process

LARGEST_FRAME = 256
"""A WebSocket message above this multiple of the size limit closes the connection; below, it gets an error answer."""

SHUTDOWN_SECONDS = 5
"""Time limit for connections to close at shutdown."""

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def is_local(host: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, token: str | None, web: bool) -> None:
    """Raise ValueError for a public address without a token, or a token with the web page, which cannot send it."""
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable()):
        raise ValueError("a token needs at least 16 printable ASCII characters")
    if not is_local(host) and token is None:
        raise ValueError(f"{host} can be reached by others: a bearer token is needed, in VECENV_TOKEN")
    if web and token is not None:
        raise ValueError("the web interface cannot send a token: serve it on 127.0.0.1 without one")


def guarded(app: App, limits: Limits, url: str, token: str | None = None) -> Guard:
    """Return an application behind the limits.

    On a loopback address it answers only to local host names, which protects against DNS rebinding.
    """
    host = urlsplit(url).hostname or ""
    return Guard(app, limits, token, url, {*LOCAL_NAMES, host} if is_local(host) else None)


class DeadlineProtocol(H11Protocol):
    """Uvicorn's HTTP protocol of one connection, with a time limit for each request to arrive completely.

    The time runs from the start of the connection or the end of the previous answer to the last byte of the body, also
    if the request was answered before. A late request is answered by 408 and its connection closed.
    """

    def __init__(self, seconds: float, **given: Any) -> None:  # noqa: ANN401
        super().__init__(**given)
        self._seconds = seconds
        self._deadline: asyncio.TimerHandle | None = None
        self._upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Stop the timer for good: WebSockets have separate limits, and take no answer of HTTP."""
        self._upgraded = True
        self._stop_watching()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection after an answer in progress; an incomplete request gets no answer."""
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()
        else:
            super().shutdown()

    def _watch(self) -> None:
        """Start the timer while a request is awaited, and stop it when it has arrived."""
        if self._upgraded or self.transport.is_closing() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._seconds, self._late)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        """Close the connection; answer 408 if a request has begun and no answer to it has."""
        begun = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        if begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            fault = MessageFault("LIMIT_REQUEST", f"a request may take {self._seconds:g} s to arrive")
            body = fault.as_json().encode()
            head = (
                "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            # Tell the application, which still waits for the body, of the disconnect.
            self.transport.write(head.encode() + body)
        self.transport.close()


class SocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's WebSocket protocol of one connection, which stops reading behind a message that waits, not at each.

    Two system calls less for each turn of a client that waits for its answers.
    """

    def send_receive_event_to_app(self) -> None:
        awaited = self.queue.empty() and not self.read_paused
        # Of a paused connection the message is only queued.
        self.read_paused |= awaited
        super().send_receive_event_to_app()
        self.read_paused &= not awaited


class Server(uvicorn.Server):
    """Uvicorn's server, ended without log output by SIGTERM or by SIGINT, which sets ``interrupted``."""

    interrupted = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin shutdown; a second SIGINT ends the process. Uvicorn's handler would re-raise the signals afterwards."""
        if sig == signal.SIGINT:
            if self.should_exit:
                end_process()
            self.interrupted = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close every connection; abort those that are still open after the time limit."""
        cut_off = asyncio.get_running_loop().call_later(SHUTDOWN_SECONDS, self._cut_off)
        try:
            await super().shutdown(sockets)
        finally:
            cut_off.cancel()

    def _cut_off(self) -> None:
        # Report the disconnect to waiting tasks; uvicorn would cancel them, with a traceback in the log.
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def uvicorn_server(app: App, limits: Limits) -> Server:
    """Return the HTTP server of an application."""
    config = uvicorn.Config(
        app,
        http=partial(DeadlineProtocol, limits.request_seconds),  # type: ignore[arg-type]
        ws=SocketProtocol,
        log_level="warning",
        access_log=False,
        ws_max_size=LARGEST_FRAME * limits.message_bytes,
        # Texts of a kilobyte: compressing one costs more time than sending it.
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2 * SHUTDOWN_SECONDS,
    )
    return Server(config)


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket, so that the address stays reserved while the market is made; port 0 for any free one.

    Raises:
        OSError: the address cannot be used.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(f"cannot serve on {host}, port {port}: {error.strerror or error}") from error
    return bound


def served_url(bound: socket.socket) -> str:
    """Return the address that a socket is bound to, as a URL."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(app: App, limits: Limits, bound: socket.socket, started: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; then close every connection and end every session.

    A second SIGINT ends the process at once, with exit code 130.

    Raises:
        KeyboardInterrupt: ended by SIGINT.
    """
    bound.listen()
    # SIGTERM is a regular end.
    signal.signal(signal.SIGTERM, lambda *_: None)
    end_at_interrupt()
    server = uvicorn_server(app, limits)
    started()
    server.run(sockets=[bound])
    if server.interrupted:
        raise KeyboardInterrupt
