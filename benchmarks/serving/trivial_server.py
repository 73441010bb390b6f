"""OpenEnv server with a trivial environment, to measure the protocol's cost."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import tyro
import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from vecenv.adapters.openenv.models import MarketAction, MarketObservation

DAYS, CHARACTERS = 20, 700
"""Days of an episode, and characters of a day's text, as in the single-stock tier."""


@dataclass(frozen=True)
class TrivialServerConfig:
    """Settings of the server."""

    sessions: int = 64
    """Maximum concurrent sessions."""
    port: int = 0
    """Port, 0 for any that is free."""


class TrivialEnvironment(Environment[MarketAction, MarketObservation, State]):
    """Returns the same text for twenty days, for any action."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> MarketObservation:
        """Start a new episode."""
        self._state = State(step_count=0)
        return self._shown()

    def step(self, action: MarketAction) -> MarketObservation:
        """Count a day."""
        self._state = State(step_count=self._state.step_count + 1)
        return self._shown()

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None) -> MarketObservation:
        """Start a new episode; the synchronous method would run in a thread."""
        return self.reset(seed, episode_id)

    async def step_async(self, action: MarketAction) -> MarketObservation:
        """Count a day, likewise."""
        return self.step(action)

    def _shown(self) -> MarketObservation:
        days = self._state.step_count
        return MarketObservation(
            text="x" * CHARACTERS, day=days, outcomes={"total_return": 0.0}, reward=0.0, done=days == DAYS
        )

    @property
    def state(self) -> State:
        """Number of steps."""
        return self._state


def main(config: TrivialServerConfig) -> None:
    """Serve until terminated."""
    app = create_fastapi_app(TrivialEnvironment, MarketAction, MarketObservation, config.sessions)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", config.port))
        listening.listen()
        print(f"Serving nothing on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        settings = uvicorn.Config(app, log_level="warning", access_log=False, ws_per_message_deflate=False)
        uvicorn.Server(settings).run(sockets=[listening])


if __name__ == "__main__":
    main(tyro.cli(TrivialServerConfig))
