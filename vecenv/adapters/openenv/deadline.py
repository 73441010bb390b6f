"""Uvicorn HTTP protocol with a timeout for incomplete requests (slow headers or body)."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vecenv.adapters.guard import MessageFault


class DeadlineProtocol(H11Protocol):
    """Uvicorn's HTTP protocol of one connection, with a time limit for each request to arrive completely.

    The time runs from the start of the connection or the end of the previous answer to the last byte of the body, also
    if the request was answered before. A late request is answered by 408 and its connection closed.
    """

    def __init__(self, seconds: float, **given: Any) -> None:  # noqa: ANN401
        super().__init__(**given)
        self._seconds = seconds
        self._deadline: asyncio.TimerHandle | None = None

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
        """Stop the timer: WebSockets have separate limits."""
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
        if self.transport.is_closing() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
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
