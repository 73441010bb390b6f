"""State shared by all sessions of a server: row pools per split, and episode identifiers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar
from weakref import finalize

from vecenv.adapters.sessions.pool import RowPool

Result = TypeVar("Result")

LONGEST_NAME = 255
"""Maximum characters of a client's name."""


class SessionError(ValueError):
    """A client's request is invalid; the session continues."""


@dataclass(frozen=True)
class EpisodeName:
    """Identifier of an episode of a served world."""

    split: str
    seed: int
    index: int


class TextService:
    """State shared by all sessions of a server: pools and numbers of tasks by split; the first is the default.

    Raises:
        ValueError: there is no split or no task.
    """

    def __init__(
        self,
        task: str,
        pools: Mapping[str, RowPool],
        num_tasks: int = 1000,
        seed: int = 0,
    ) -> None:
        if not pools or num_tasks < 1:
            raise ValueError(f"at least one split and one task are needed, got {len(pools)} and {num_tasks}")
        self.task, self.pools, self.num_tasks, self.seed = task, dict(pools), num_tasks, seed
        self._unnamed = count()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def answers(self) -> tuple[str, ...]:
        """Short answers, for the buttons of the web interface."""
        return next(iter(self.pools.values())).examples

    def episode(self, seed: object, options: Mapping[str, object]) -> EpisodeName:
        """Return the requested episode: without seed and index, the next listed one; SessionError for none."""
        if unknown := sorted(set(options) - {"split", "index"}):
            raise SessionError(f"unknown options {', '.join(unknown)[:LONGEST_NAME]}; there are split and index")
        split, index = options.get("split"), options.get("index")
        if split is None:
            split = next(iter(self.pools))
        if not isinstance(split, str) or split not in self.pools:
            raise SessionError(f"there is no such split; there are {', '.join(self.pools)}")
        if index is None:
            index = next(self._unnamed) % self.num_tasks if seed is None else 0
        if seed is None:
            seed = self.seed
        return EpisodeName(split, _whole(seed, "seed", 1 << 63), _whole(index, "index", self.num_tasks))

    def run(self, turn: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of a turn of any session, for callers without an event loop.

        One loop is kept for all: connections of worlds live as long as it.
        """
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            finalize(self, self._loop.close)
        return self._loop.run_until_complete(turn)

    def check_split(self, split: str) -> None:
        self.episode(None, {"split": split, "index": 0})

    def task_spec(self, split: str, index: int) -> dict[str, Any]:
        """Return the identifier of a task; it reveals nothing of its days."""
        return {"id": f"{split}-{index}", "split": split, "index": index, "task": self.task}


def _whole(value: object, name: str, end: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < end:
        raise SessionError(f"{name} must be a whole number in [0, {end})")
    return value
