"""A session: one agent in a row of a served world, with what is known of its episode; of no protocol."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from vecenv.adapters.guard import LONGEST_TEXT
from vecenv.adapters.sessions.pool import Opened, RowPool
from vecenv.adapters.sessions.service import EpisodeName, SessionError, TextService
from vecenv.text.answer_lines import AnswerFault
from vecenv.text.interaction import Turn, json_outcomes
from vecenv.text.tool_calls import ToolCall

LOG = logging.getLogger("vecenv.serve")


@dataclass(frozen=True)
class EpisodeState:
    """What is known of an episode: nothing in it depends on later days.

    Attributes:
        name: of the episode; None before the first.
        outcomes: as of the last answer, None where unknown.
        turns: messages taken, tool calls included.
        answers: those of them that were answers.
        total_reward: sum of the rewards so far.
        grade: in [0, 1], once the episode is over.
        failed: whether the world failed, which is no failure of the agent.
    """

    name: EpisodeName | None = None
    outcomes: Mapping[str, float | None] = field(default_factory=dict)
    turns: int = 0
    answers: int = 0
    total_reward: float = 0.0
    done: bool = False
    grade: float | None = None
    failed: bool = False


class RowSession:
    """One agent, in a row lent from its first episode until it is closed.

    Attributes:
        pool: whose row it has; None before the first episode.
        row: the row, in ``pool``.
        state: of the episode.
    """

    def __init__(self, service: TextService) -> None:
        self.service = service
        self.pool: RowPool | None = None
        self.row = -1
        self.state = EpisodeState()
        self._busy = self._closed = False

    async def begin(self, seed: object, options: Mapping[str, object]) -> Opened:
        """Begin an episode of a seed in [0, 2^63), and of the options ``split`` and ``index``.

        Raises:
            SessionError: an argument is not valid, no row is free, or the session is over.
        """
        name = self.service.episode(seed, options)
        with self._turn():
            pool = self.service.pools[name.split]
            if self.pool is not pool or self.state.failed:
                # Of a world that failed another row may be well.
                self._leave()
                try:
                    self.row = pool.lend()
                except IndexError:
                    raise SessionError("all rows of the server are taken; try again later") from None
                self.pool = pool
            opened = await pool.open(self.row, name.seed, name.index)
        turn = opened.turn
        outcomes = json_outcomes(turn.outcomes or {})
        self.state = EpisodeState(name, outcomes, done=turn.done, failed=turn.failed)
        return opened

    async def say(self, message: str | ToolCall) -> Turn:
        """Take an agent's message: an answer, or a tool call, as such or as a text.

        Raises:
            SessionError: no episode was begun, the episode is over, or another turn is in progress.
        """
        state = self.state
        if self.pool is None:
            raise SessionError("there is no episode yet: begin one first")
        if state.done:
            raise SessionError("the episode is over: begin the next one")
        said: object = message
        if isinstance(message, str) and len(message) > LONGEST_TEXT:
            said = AnswerFault(f"an answer may have {LONGEST_TEXT:,} characters")
        with self._turn():
            turn = await self.pool.answer(self.row, said)
            if not math.isfinite(turn.reward):
                raise ArithmeticError(f"{state.name}: reward {turn.reward}")
        answered = turn.outcomes is not None
        self.state = replace(
            state,
            outcomes=json_outcomes(turn.outcomes) if turn.outcomes is not None else state.outcomes,
            turns=state.turns + 1,
            answers=state.answers + answered,
            total_reward=state.total_reward + turn.reward,
            done=turn.done,
            grade=turn.grade,
            failed=turn.failed,
        )
        return turn

    @property
    def busy(self) -> bool:
        """Whether a turn is under way."""
        return self._busy

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

    def close(self) -> None:
        self._closed = True
        self._leave()

    def _leave(self) -> None:
        if self.pool is not None:
            self.pool.give_back(self.row)
        self.pool = None
