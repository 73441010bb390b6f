"""A session: one agent of a served world, as OpenEnv's `Environment`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

import vecenv
from vecenv.adapters.openenv.models import TextAction, TextObservation, TextState
from vecenv.adapters.openenv.web import LONGEST_SAID, EpisodeDay, episode_html
from vecenv.adapters.sessions.service import LONGEST_NAME, SessionError, TextService
from vecenv.adapters.sessions.session import RowSession


class TextSession(Environment[TextAction, TextObservation, TextState]):
    """One agent, in a row lent from its first reset until it is closed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, service: TextService) -> None:
        super().__init__()
        self.service, self._session = service, RowSession(service)
        self._episode_id: str | None = None
        self.days: list[EpisodeDay] = []

    @property
    def state(self) -> TextState:
        known, pool = self._session.state, self._session.pool
        return TextState(
            task=self.service.task,
            episode_id=self._episode_id,
            step_count=known.turns,
            day=known.answers,
            outcomes=dict(known.outcomes),
            total_reward=known.total_reward,
            done=known.done,
            grade=known.grade,
            failed=known.failed,
            **({} if known.name is None else asdict(known.name)),
            **({} if pool is None else {"currency": pool.currency, "units": dict(pool.outcomes)}),
        )

    async def reset_async(self, seed: object = None, episode_id: object = None, **options: object) -> TextObservation:
        """Begin an episode.

        Args:
            seed: in [0, 2^63); identifies the episode together with the index.
            episode_id: client-defined name.
            **options: ``split`` and ``index``.

        Raises:
            SessionError: an argument is not valid, no row is free, or the session is over.
        """
        if episode_id is not None and not (isinstance(episode_id, str) and len(episode_id) <= LONGEST_NAME):
            raise SessionError(f"episode_id must be a text of at most {LONGEST_NAME} characters")
        opened = await self._session.begin(seed, options)
        self._episode_id = episode_id or str(uuid4())
        outcomes = dict(self._session.state.outcomes)
        self.days = [EpisodeDay("", _headline(outcomes), 0.0)]
        return TextObservation(
            text=opened.turn.message,
            instructions=opened.instructions,
            day=0,
            outcomes=outcomes,
            done=opened.turn.done,
            failed=opened.turn.failed,
        )

    async def step_async(self, action: TextAction, timeout_s: float | None = None, **_: object) -> TextObservation:
        """Submit the orders of the day, or a tool call.

        Raises:
            SessionError: no episode was begun, the episode is over, or another turn is in progress.
        """
        if self._session.pool is None:
            raise SessionError("there is no episode yet: reset comes before step, on the same WebSocket")
        turn = await self._session.say(action.text)
        known = self._session.state
        if turn.outcomes is not None:
            # As much as the page tells a shortened answer by.
            said = action.text[: LONGEST_SAID + 1]
            self.days.append(EpisodeDay(said, _headline(known.outcomes), turn.reward, turn.acted, turn.valid))
        return TextObservation(
            text=turn.message,
            day=known.answers,
            valid=turn.valid,
            acted=turn.acted,
            outcomes=dict(known.outcomes),
            grade=turn.grade,
            reward=turn.reward,
            done=turn.done,
            failed=turn.failed,
        )

    def reset(self, seed: object = None, episode_id: object = None, **options: object) -> TextObservation:
        """Synchronous form of `reset_async`, for callers without an event loop."""
        return self.service.run(self.reset_async(seed, episode_id, **options))

    def step(self, action: TextAction, timeout_s: float | None = None, **_: object) -> TextObservation:
        """Synchronous form of `step_async`, for callers without an event loop."""
        return self.service.run(self.step_async(action))

    def close(self) -> None:
        self._session.close()

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name=self.service.task,
            description=next(iter(self.service.pools.values())).dialogue.interaction.description,
            version=vecenv.__version__,
        )

    def list_splits(self) -> list[dict[str, str]]:
        kinds = ("train", "validation", "test")
        return [{"name": name, "type": name if name in kinds else "validation"} for name in self.service.pools]

    def num_tasks(self, split: str) -> int:
        self.service.check_split(split)
        return self.service.num_tasks

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return self.get_task_range(split)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        self.service.check_split(split)
        if not 0 <= index < self.service.num_tasks:
            raise IndexError(f"{split} has {self.service.num_tasks} tasks")
        return self.service.task_spec(split, index)

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        self.service.check_split(split)
        return [self.service.task_spec(split, index) for index in range(self.service.num_tasks)[start:stop]]

    def render_web(self, observation: dict[str, Any]) -> str:
        return episode_html(self.service.task, self.state, self.days, observation)

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        return [(answer, {"text": answer}) for answer in self.service.answers]


def _headline(outcomes: Mapping[str, float | None]) -> float | None:
    """Return the most important outcome, if any is reported and known."""
    return next(iter(outcomes.values()), None)
