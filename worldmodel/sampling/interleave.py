"""Cooperative scheduling of generators, with chosen parts run in worker threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

Steps = Generator[Sequence[Callable[[], None]], None, Tensor]
"""A generator that yields lists of tasks for worker threads, resumes when all are done, and returns a result."""


@contextmanager
def one_thread() -> Iterator[int]:
    """Limit PyTorch to one thread within the context, and yield the previous number.

    The summation order of a matrix product may depend on the number of threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def in_threads(works: Sequence[Callable[[], Result]], threads: int) -> list[Result]:
    """Return the results of some work done in a number of threads, each with one PyTorch thread."""
    if threads == 1 or len(works) == 1:
        return [work() for work in works]
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [done.result() for done in [pool.submit(work) for work in works]]


def run_all(computations: Sequence[Steps], threads: int, at_once: int) -> list[Tensor]:
    """Run generators to completion, at most `at_once` started, and return their results.

    Code between yields runs in this thread, one generator at a time, and with one thread the tasks too.
    """
    if threads == 1:
        return [_alone(steps) for steps in computations]
    results: dict[int, Tensor] = {}
    waiting = deque(enumerate(computations))
    running: deque[tuple[int, Steps, list[Future[None]]]] = deque()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        while waiting or running:
            if waiting and len(running) < min(threads, at_once):
                number, steps = waiting.popleft()
            else:
                number, steps, works = running.popleft()
                for work in works:
                    work.result()
            try:
                running.append((number, steps, [pool.submit(work) for work in next(steps)]))
            except StopIteration as end:
                results[number] = end.value
    return [results[number] for number in range(len(computations))]


def _alone(steps: Steps) -> Tensor:
    while True:
        try:
            works = next(steps)
        except StopIteration as end:
            result: Tensor = end.value
            return result
        for work in works:
            work()
