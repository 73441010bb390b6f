"""Ranks in threads of one process, to test what several processes would compute without starting them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from vecenv.learn.shards import Ranks, as_rank

Result = TypeVar("Result")

LONGEST_WAIT = 120.0
"""Seconds that a thread waits for the others."""


class Meeting:
    """Where some ranks meet, and what each of them gives; ``sets`` are two of them, if there are such."""

    def __init__(self, count: int) -> None:
        self.given: list[Any] = [None] * count
        self.barrier = threading.Barrier(count, timeout=LONGEST_WAIT)
        self.sets: list[Meeting] = []

    def abort(self) -> None:
        for one in (self, *self.sets):
            one.barrier.abort()


class ThreadRanks(Ranks):
    """One of several ranks, each in a thread; ``whole`` is this one among all, if they are in sets."""

    def __init__(self, number: int, meeting: Meeting, whole: ThreadRanks | None = None) -> None:
        self.number, self.count = number, len(meeting.given)
        self.received = 0
        self._meeting, self._whole = meeting, whole or self
        self.leads = self._whole.number == 0

    def gathered(self, tensor: Tensor) -> Tensor:
        every = self._of_set(tensor)
        self.received += sum(other.nbytes for number, other in enumerate(every) if number != self.number)
        whole = torch.cat(every)
        # As long as those of the others are theirs.
        self._meeting.barrier.wait()
        return whole

    def _of_set(self, value: Any) -> list[Any]:
        self._meeting.given[self.number] = value
        self._meeting.barrier.wait()
        values = [*self._meeting.given]
        # Before another one gives something else.
        self._meeting.barrier.wait()
        return values

    def every(self, value: Any) -> list[Any]:
        return self._whole._of_set(value)

    def done_by_first(self, work: Callable[[], str]) -> str:
        return self.told_by_first(work() if self.leads else "")

    def joined(self, tensor: Tensor) -> Tensor:
        return self.gathered(tensor)

    def at_first(self, tensor: Tensor) -> Tensor:
        return self.gathered(tensor)

    def of_first(self, tensor: Tensor) -> Tensor:
        # Of its own, as the first one's goes on.
        copied: Tensor = self.every(tensor.detach().clone())[0]
        return copied.clone()

    def apart(self, players: int) -> Ranks:
        learners = self.count - players
        if min(players, learners) < 1:
            return super().apart(players)
        if self.leads:
            self._meeting.sets = [Meeting(learners), Meeting(players)]
        self.every(None)
        plays = self.number >= learners
        own = ThreadRanks(self.number - learners * plays, self._meeting.sets[plays], self)
        own.plays = plays
        return own


def on_ranks(count: int, function: Callable[[int], Result]) -> list[Result]:
    """Call a function with the number of a rank in as many threads, each as one of the ranks, and return the results.

    The first error of one of them is raised.
    """
    meeting, results, failed = Meeting(count), dict[int, Result](), list[BaseException]()

    def run(number: int) -> None:
        try:
            with as_rank(ThreadRanks(number, meeting)):
                results[number] = function(number)
        except BaseException as error:
            failed.append(error)
            meeting.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [results[number] for number in range(count)]
