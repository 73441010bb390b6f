"""The server: OpenEnv's routes over sessions that share rows, behind a guard."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse

from vecenv.adapters.guard import App, Guard, Limits
from vecenv.adapters.openenv.models import MarketAction, MarketObservation, MarketState
from vecenv.adapters.openenv.service import MarketService, SessionError
from vecenv.adapters.openenv.session import MarketSession

LARGEST_FRAME = 32
"""A WebSocket message of more than so many times the limit ends its connection; up to there it is answered."""

REAPER_SECONDS = 60.0
"""OpenEnv ends a session so long after the guard has closed an idle connection, should one be left."""

SHUTDOWN_SECONDS = 5
"""Time that connections have to end when the server is told to."""

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def is_local(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, token: str | None, web: bool) -> None:
    """Refuse to serve others without a token, and the web interface, which can send none, with one.

    Raises:
        ValueError: it would not be safe, or could not be used.
    """
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable()):
        raise ValueError("a token needs at least 16 printable ASCII characters")
    if not is_local(host) and token is None:
        raise ValueError(f"{host} can be reached by others: a bearer token is needed, in VECENV_TOKEN")
    if web and token is not None:
        raise ValueError("the web interface cannot send a token: serve it on 127.0.0.1 without one")


def build_app(service: MarketService, limits: Limits, token: str | None = None, web: bool = False) -> App:
    """Return the server's ASGI application.

    Args:
        service: what all sessions share.
        limits: of the clients.
        token: bearer token that they need, if any.
        web: offer OpenEnv's web interface at ``/web``.
    """
    # OpenEnv's own switch.
    os.environ["ENABLE_WEB_INTERFACE"] = str(web).lower()
    app = create_app(
        partial(MarketSession, service),
        MarketAction,
        MarketObservation,
        env_name=service.task,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=limits.sessions, session_timeout=limits.idle_seconds + REAPER_SECONDS
        ),
        state_cls=MarketState,
    )
    app.add_exception_handler(SessionError, _session_error)
    return Guard(app, limits, token)


async def _session_error(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"type": "error", "data": {"message": str(error), "code": "EXECUTION_ERROR"}}, 400)


def uvicorn_server(app: App, limits: Limits, host: str) -> uvicorn.Server:
    """Return the HTTP server of an application.

    On an address of this machine it answers to this machine's names alone: a page of another site, whose name somebody
    made point here, is none of its clients.
    """
    config = uvicorn.Config(
        TrustedHostMiddleware(app, LOCAL_NAMES) if is_local(host) else app,
        log_level="warning",
        access_log=False,
        ws_max_size=LARGEST_FRAME * limits.message_bytes,
        # Texts of a kilobyte: compressing one costs more time than sending it.
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that has the address, so that nobody takes it while a market is made.

    Args:
        host: address or name.
        port: 0 for any that is free.

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


def serve(app: App, limits: Limits, host: str, bound: socket.socket, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; then every connection is closed and every session ended.

    Args:
        app: of `build_app`.
        limits: of the clients.
        host: address or name.
        bound: to it.
        started: is told the server's URL when clients may connect.

    Raises:
        KeyboardInterrupt: it was SIGINT.
    """
    bound.listen()
    # Uvicorn raises the signal again when it is done. After SIGTERM the server has ended as it was asked to; SIGINT is
    # told, also where whoever started the server ignores it, as a shell does for what runs in the background.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started(f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}")
    uvicorn_server(app, limits, host).run(sockets=[bound])
