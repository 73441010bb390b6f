"""Several computations in turn, parts of which run in other threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

Steps = Generator[Sequence[Callable[[], None]], None, Tensor]
"""A computation that yields works for other threads, all to be done before it goes on, and returns a result."""


@contextmanager
def one_thread() -> Iterator[int]:
    """Compute with one of PyTorch's threads, and give the number that there were before.

    A processor may sum a matrix product in another order with another number of threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def run_all(computations: Sequence[Steps], threads: int, at_once: int) -> list[Tensor]:
    """Run computations and return their results.

    What lies between two works runs in this thread, of one computation after the other.

    Args:
        computations: begun in their order.
        threads: used in all; each computes with one thread of PyTorch's. With one, works run in this thread too.
        at_once: computations on their way at most.
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
