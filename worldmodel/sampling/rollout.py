"""Autoregressive rollout of days, batched over paths and symbols.

Random numbers are counter-based, and paths run in blocks, so path p of a seed does not depend on the number of paths.

On a GPU a block's day is captured as a CUDA graph and replayed, if the trunk's buffers are full at the start. On a CPU
the trunk runs chunks in several threads, and several blocks are interleaved: while the trunk runs on one block's day,
this thread draws the day of another. Each operation runs in one thread, so that results do not depend on the number of
threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from vecenv.learn.shards import ranks
from vecenv.system.memory import check_memory
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.trunk import Trunk, TrunkCache
from vecenv.worldmodel.sampling.block_paths import Block, BlockPaths, Starts, blocks_of


class RepeatedDay:
    """Draws one day per call by the same operations on the same memory. Shape of bars: (paths, num_days, K, 5)."""

    def __init__(self, paths: BlockPaths, trunk: Trunk[Any], cache: Any, num_days: int) -> None:  # noqa: ANN401
        self.paths, self._trunk, self._cache = paths, trunk, cache
        self._day = torch.zeros((), dtype=torch.int64, device=paths.known.device)
        shape = paths.shape
        self.bars = torch.empty(shape[0], num_days, shape[1], 5, dtype=torch.float64, device=paths.known.device)

    @torch.no_grad()
    def __call__(self) -> None:
        move, bars = self.paths.draw(self._day)
        self.bars.index_copy_(1, self._day.unsqueeze(0), bars.unsqueeze(1))
        known, after = self._trunk.step(self.paths.observe(move), self._cache)
        self.paths.known.copy_(known)
        for old, new in zip(self._cache, after, strict=True):
            if new is not old:
                old.copy_(new)
        self._day += 1


def captured(day: RepeatedDay, num_days: int) -> Tensor:
    """Draw days on a GPU: the first eagerly, the others by graph replay. Shape: (paths, num_days, K, 5), float64."""
    with torch.cuda.device(day.bars.device):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        # The eager first day also allocates resources required before a capture, such as matrix-product workspaces.
        with torch.cuda.stream(aside):
            day()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            day()
        for number in range(1, num_days):
            day.paths.renew(number)
            graph.replay()
    return day.bars


MOST_AT_ONCE = 4
"""Number of interleaved blocks, whose caches are in memory together."""

FEWEST_REPEATED = 3
"""Minimum number of days that pays for a graph capture."""


@torch.no_grad()
def roll_out(
    network: MarketNetwork,
    starts: Starts,
    market: str,
    num_paths: int,
    num_days: int,
    seed: int,
    temperature: float = 1.0,
    antithetic: bool = False,
    first: int = 0,
) -> Tensor:
    """Generate the days after start states.

    Args:
        network: in evaluation mode.
        starts: from `vecenv.worldmodel.sampling.neural`; if there are several, each path draws one.
        market: market for the flag feature.
        num_paths: P.
        num_days: H.
        seed: integer in [0, 2^64).
        temperature: factor on returns, about their mean, and on gaps and wicks; 1 draws from the model.
        antithetic: draw the antithetic paths of a seed: the same starts and random numbers, with the noise of returns
            and the number of the common shock reflected. The mean over both has less variance (Hammersley and Morton
            1956).
        first: number of the first of the paths, which are the same whatever others are drawn.

    Returns:
        Open, high, low, close, volume. Shape: (P, H, K, 5), float64.

    Raises:
        ValueError: a number of paths or days is below one, or the bars do not fit in memory.
    """
    for name, count in (("num_paths", num_paths), ("num_days", num_days)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    symbols = starts.known.shape[1]
    device = starts.known.device
    # The bars, twice during concatenation of blocks.
    needed = 2 * 8 * 5 * num_paths * num_days * symbols
    check_memory(needed, device, f"{num_paths:,} paths of {num_days:,} days of {symbols} symbols")
    draws = []
    for block in blocks_of(device, symbols, first + num_paths):
        wanted = slice(max(0, first - block.first), min(block.paths, first + num_paths - block.first))
        if wanted.start >= wanted.stop:
            continue
        begin = partial(BlockPaths, network, starts, market, block, seed, temperature, antithetic)
        draw = _repeated if device.type == "cuda" and num_days >= FEWEST_REPEATED else _drawn
        draws.append(draw(begin, network.trunk, starts.cache, block, wanted, num_days))
    if device.type != "cpu":
        return torch.cat(run_all(draws, 1, 1))
    with one_thread() as threads:
        return torch.cat(run_all(draws, threads, MOST_AT_ONCE))


class _Chunks:
    """Caches of a block's chunks with requested paths."""

    def __init__(self, trunk: Trunk[Any], cache: TrunkCache, rows: Tensor, wanted: range, size: int) -> None:
        self.trunk = trunk
        begin = wanted.start // size * size
        self.parts = [slice(first, first + size) for first in range(begin, wanted.stop, size)]
        self.caches = [cache.chosen(rows[part]) for part in self.parts]

    def readings(self, inputs: Tensor, known: Tensor) -> list[Callable[[], None]]:
        """Return tasks that run the trunk on a chunk and write its output. Shapes: (rows, F), (rows, width)."""
        weights = self.trunk.day_weights(self.caches[0])
        return [partial(self._read, place, inputs, known, weights) for place in range(len(self.parts))]

    @torch.no_grad()
    def _read(self, place: int, inputs: Tensor, known: Tensor, weights: Any) -> None:  # noqa: ANN401, the trunk's own
        part = self.parts[place]
        known[part], self.caches[place] = self.trunk.step(inputs[part], self.caches[place], weights)


def _repeated(
    begin: Callable[[], BlockPaths], trunk: Trunk[Any], cache: TrunkCache, block: Block, wanted: slice, num_days: int
) -> Steps:
    """Draw the paths of a block as `_drawn`, on a GPU; yields nothing if days are replayed."""
    paths = begin()
    ready = cache.chosen(paths.rows).repeatable()
    if ready is None:
        return (yield from _drawn(lambda: paths, trunk, cache, block, wanted, num_days))
    return captured(RepeatedDay(paths, trunk, ready, num_days), num_days)[wanted]


def _drawn(
    begin: Callable[[], BlockPaths], trunk: Trunk[Any], cache: TrunkCache, block: Block, wanted: slice, num_days: int
) -> Steps:
    """Draw a block, yield the trunk's tasks of each day, and return the wanted paths, (wanted, num_days, K, 5)."""
    paths = begin()
    symbols = paths.shape[1]
    rows = range(wanted.start * symbols, wanted.stop * symbols)
    chunks = _Chunks(trunk, cache, paths.rows, rows, block.chunk * symbols)
    bars = []
    for day in range(num_days):
        # A step of a rank, whose time begins anew.
        ranks().watch()
        paths.renew(day)
        move, bar = paths.draw(day)
        bars.append(bar[wanted])
        if day + 1 < num_days:
            yield chunks.readings(paths.observe(move), paths.known)
    return torch.stack(bars, dim=1)


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
