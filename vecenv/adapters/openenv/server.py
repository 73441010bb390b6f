"""OpenEnv's routes behind the guard middleware."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig
from starlette.requests import Request
from starlette.responses import JSONResponse

from vecenv.adapters.guard import App, Limits
from vecenv.adapters.openenv.models import TextAction, TextObservation, TextState
from vecenv.adapters.openenv.session import TextSession
from vecenv.adapters.sessions.http_server import guarded
from vecenv.adapters.sessions.service import SessionError, TextService

REAPER_SECONDS = 60.0
"""OpenEnv's session timeout exceeds the guard's idle timeout by this; it ends sessions left over."""

CONNECTING = """\
```python
from vecenv.adapters.openenv import TextAction, TextClient

with TextClient(base_url="{url}").sync() as env:
    result = env.reset()
    result = env.step(TextAction(text="HOLD"))
    print(result.observation.text, result.reward)
```"""
"""Python example on the web page."""


def build_app(service: TextService, limits: Limits, url: str, token: str | None = None, web: bool = False) -> App:
    """Return the server's ASGI application, as `guarded`."""
    # OpenEnv's switch for the web interface.
    os.environ["ENABLE_WEB_INTERFACE"] = str(web).lower()
    app = create_app(
        partial(TextSession, service),
        TextAction,
        TextObservation,
        env_name=service.task,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=limits.sessions, session_timeout=limits.idle_seconds + REAPER_SECONDS
        ),
        # OpenEnv's page, with this server's address in its example.
        gradio_builder=partial(_page, url) if web else None,
        show_default_tab=False,
        state_cls=TextState,
    )
    app.add_exception_handler(SessionError, _session_error)
    return guarded(app, limits, url, token)


def _page(
    url: str, manager: object, fields: list[dict[str, Any]], metadata: object, is_chat: bool, title: str, _: str
) -> Any:  # noqa: ANN401
    """Return OpenEnv's page, with client code for the served address."""
    from openenv.core.env_server.gradio_ui import build_gradio_app

    return build_gradio_app(manager, fields, metadata, is_chat, title, CONNECTING.format(url=url))


async def _session_error(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"type": "error", "data": {"message": str(error), "code": "EXECUTION_ERROR"}}, 400)
