"""HTTP connections whose requests have to arrive in time: no headers and no body keep one open that never end."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vecenv.adapters.guard import MessageFault


class DeadlineProtocol(H11Protocol):
    """Uvicorn's HTTP of one connection, each of whose requests has a time to arrive whole.

    The time runs from when the connection is made or the answer before is complete to the last byte of the body; also
    where a request was answered before it had arrived. What is late is answered by 408 and its connection is closed.

    Args:
        seconds: that a request has.
        **given: what uvicorn gives to every connection.
    """

    def __init__(self, seconds: float, **given: Any) -> None:  # noqa: ANN401
        super().__init__(**given)
        self._seconds = seconds
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take in bytes of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to the WebSocket, which has limits of its own."""
        self._stop_watching()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_watching()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection, or let an answer under way come first; a request that has not arrived gets none."""
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()
        else:
            super().shutdown()

    def _watch(self) -> None:
        """Let the time run while a request is awaited, and stop it when it has arrived."""
        if self.transport.is_closing() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._seconds, self._late)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        """Close the connection; say why where a request has begun and no answer to it has."""
        begun = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        if begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            fault = MessageFault("LIMIT_REQUEST", f"a request may take {self._seconds:g} s to arrive")
            body = fault.as_json().encode()
            head = (
                "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            # The application, which still waits for the body, hears that the client has gone.
            self.transport.write(head.encode() + body)
        self.transport.close()
