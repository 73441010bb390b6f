"""A session: one agent of a served world, as OpenEnv's `Environment`."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

import vecenv
from vecenv.adapters.guard import LONGEST_TEXT
from vecenv.adapters.openenv.models import TextAction, TextObservation, TextState
from vecenv.adapters.openenv.pool import RowPool
from vecenv.adapters.openenv.service import LONGEST_NAME, SessionError, TextService
from vecenv.adapters.openenv.web import LONGEST_SAID, EpisodeDay, episode_html
from vecenv.text.answer_lines import AnswerFault
from vecenv.text.interaction import Turn, json_outcomes

LOG = logging.getLogger("vecenv.serve")


class TextSession(Environment[TextAction, TextObservation, TextState]):
    """One agent, in a row lent from its first reset until it is closed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, service: TextService) -> None:
        super().__init__()
        self.service = service
        self._state = TextState(task=service.task)
        self._pool: RowPool | None = None
        self._row = -1
        self._busy = self._closed = False
        self._last: dict[str, float | None] = {}
        self.days: list[EpisodeDay] = []

    @property
    def state(self) -> TextState:
        return self._state

    async def reset_async(self, seed: object = None, episode_id: object = None, **options: object) -> TextObservation:
        """Begin an episode.

        Args:
            seed: in [0, 2^63); identifies the episode together with the index.
            episode_id: client-defined name.
            **options: ``split`` and ``index``.

        Raises:
            SessionError: an argument is not valid, no row is free, or the session is over.
        """
        name = self.service.episode(seed, options)
        if episode_id is not None and not (isinstance(episode_id, str) and len(episode_id) <= LONGEST_NAME):
            raise SessionError(f"episode_id must be a text of at most {LONGEST_NAME} characters")
        with self._turn():
            pool = self.service.pools[name.split]
            if self._pool is not pool:
                self._leave()
                try:
                    self._row = pool.lend()
                except IndexError:
                    raise SessionError("all rows of the server are taken; try again later") from None
                self._pool = pool
            opened = await pool.open(self._row, name.seed, name.index)
        self._last = json_outcomes(opened.turn.outcomes or {})
        self.days = [EpisodeDay("", _headline(self._last), 0.0)]
        self._state = TextState(
            task=self.service.task,
            episode_id=episode_id or str(uuid4()),
            currency=pool.currency,
            **asdict(name),
            outcomes=self._last,
            units=dict(pool.outcomes),
            done=opened.turn.done,
            failed=opened.turn.failed,
        )
        return TextObservation(
            text=opened.turn.message,
            instructions=opened.instructions,
            day=0,
            outcomes=self._last,
            done=opened.turn.done,
            failed=opened.turn.failed,
        )

    async def step_async(self, action: TextAction, timeout_s: float | None = None, **_: object) -> TextObservation:
        """Submit the orders of the day, or a tool call.

        Raises:
            SessionError: no episode was begun, the episode is over, or another turn is in progress.
        """
        state = self._state
        if self._pool is None:
            raise SessionError("there is no episode yet: reset comes before step, on the same WebSocket")
        if state.done:
            raise SessionError("the episode is over: reset begins the next one")
        with self._turn():
            too_long = AnswerFault(f"an answer may have {LONGEST_TEXT:,} characters")
            turn = await self._pool.answer(self._row, action.text if len(action.text) <= LONGEST_TEXT else too_long)
            if not math.isfinite(turn.reward):
                raise ArithmeticError(f"{state.split}, {state.seed}, {state.index}: reward {turn.reward}")
        self._advance(turn, action.text)
        state = self._state
        return TextObservation(
            text=turn.message,
            day=state.day,
            valid=turn.valid,
            acted=turn.acted,
            outcomes=self._last,
            grade=turn.grade,
            reward=turn.reward,
            done=turn.done,
            failed=turn.failed,
        )

    def _advance(self, turn: Turn, said: str) -> None:
        state = self._state
        if turn.outcomes is not None:
            self._last = json_outcomes(turn.outcomes)
            # As much as the page tells a shortened answer by.
            said = said[: LONGEST_SAID + 1]
            self.days.append(EpisodeDay(said, _headline(self._last), turn.reward, turn.acted, turn.valid))
        self._state = state.model_copy(
            update={
                "outcomes": self._last,
                "step_count": state.step_count + 1,
                "day": len(self.days) - 1,
                "done": turn.done,
                "total_reward": state.total_reward + turn.reward,
                "grade": turn.grade,
                "failed": turn.failed,
            }
        )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Reject overlapping turns; hide internal errors."""
        if self._closed:
            raise SessionError("the session is over")
        if self._busy:
            raise SessionError("another turn of this session is under way")
        self._busy = True
        try:
            yield
        except SessionError:
            raise
        except Exception as error:
            LOG.exception("a turn failed")
            raise RuntimeError("internal server error; see the server's log") from error
        finally:
            self._busy = False

    def reset(self, seed: object = None, episode_id: object = None, **options: object) -> TextObservation:
        """Synchronous form of `reset_async`, for callers without an event loop."""
        return self.service.run(self.reset_async(seed, episode_id, **options))

    def step(self, action: TextAction, timeout_s: float | None = None, **_: object) -> TextObservation:
        """Synchronous form of `step_async`, for callers without an event loop."""
        return self.service.run(self.step_async(action))

    def close(self) -> None:
        self._closed = True
        self._leave()

    def _leave(self) -> None:
        if self._pool is not None:
            self._pool.give_back(self._row)
        self._pool = None

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
        return episode_html(self.service.task, self._state, self.days, observation)

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        return [(answer, {"text": answer}) for answer in self.service.answers]


def _headline(outcomes: Mapping[str, float | None]) -> float | None:
    """Return the most important outcome, if any is reported and known."""
    return next(iter(outcomes.values()), None)
