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


class ThreadRanks(Ranks):
    """One of several ranks, each in a thread; ``given`` is what each gives, and ``meeting`` where they meet."""

    def __init__(self, number: int, given: list[Any], meeting: threading.Barrier) -> None:
        self.number, self.count = number, len(given)
        self.received = 0
        self._given, self._meeting = given, meeting

    def gathered(self, tensor: Tensor) -> Tensor:
        every = self.every(tensor)
        self.received += sum(other.nbytes for number, other in enumerate(every) if number != self.number)
        whole = torch.cat(every)
        # As long as those of the others are theirs.
        self._meeting.wait()
        return whole

    def every(self, value: Any) -> list[Any]:
        self._given[self.number] = value
        self._meeting.wait()
        values = [*self._given]
        # Before another one gives something else.
        self._meeting.wait()
        return values

    def done_by_first(self, work: Callable[[], str]) -> str:
        return self.told_by_first(work() if self.number == 0 else "")

    def joined(self, tensor: Tensor) -> Tensor:
        return self.gathered(tensor)

    def at_first(self, tensor: Tensor) -> Tensor:
        return self.gathered(tensor)


def on_ranks(count: int, function: Callable[[int], Result]) -> list[Result]:
    """Call a function with the number of a rank in as many threads, each as one of the ranks, and return the results.

    The first error of one of them is raised.
    """
    given: list[Any] = [None] * count
    meeting, results, failed = (
        threading.Barrier(count, timeout=LONGEST_WAIT),
        dict[int, Result](),
        list[BaseException](),
    )

    def run(number: int) -> None:
        try:
            with as_rank(ThreadRanks(number, given, meeting)):
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
