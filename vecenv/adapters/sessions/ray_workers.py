"""Worker processes on Ray that play the rows of a server, each replaced by another when it dies."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vecenv.adapters.sessions.pool import Message, Opened, Opening, RowPool
from vecenv.adapters.sessions.worker_pool import WorkerLostError, WorkerPool
from vecenv.distributed.arrays import Sealed, opened, sealed
from vecenv.distributed.ray_session import (
    START_SECONDS,
    ActorError,
    RayLostError,
    RaySession,
    cause_of,
    check_versions,
    ray_module,
    versions,
)
from vecenv.text.interaction import Turn

LOG = logging.getLogger("vecenv.serve")

STALL_SECONDS = 120.0
"""Time without an answer after which a worker is ended, and replaced."""

WATCH_SECONDS = 2.0
"""Time between two looks whether Ray is there."""

DEATHS = 5
"""Deaths of a worker before it was ready after which the server ends: what kills it will do so again."""

LOST = "Ray has died on this machine, and all workers with it: start the server again"


class RowWorker:
    """Plays rows of each split; Ray makes it of sealed pools, and runs its coroutines in one thread."""

    def __init__(self, initial: Sealed) -> None:
        self._initial = initial
        self._pools: Mapping[str, RowPool] = {}

    async def prepare(self) -> dict[str, str]:
        """Make the pools and compile their steps; return the versions of this process."""
        torch.set_num_threads(1)
        self._pools, seed = opened(self._initial)
        for pool in self._pools.values():
            pool.prepare(seed)
        return versions()

    async def serve(self, split: str, requests: Sequence[Opening | Message]) -> list[Opened | Turn]:
        return self._pools[split].serve(requests)

    async def death(self) -> None:
        """Never return: whoever waits for it learns of the death of this process."""
        await asyncio.Event().wait()


class RayWorkers:
    """The workers of a server, on Ray of this machine or of the cluster that ``RAY_ADDRESS`` names.

    Attributes:
        pools: of the rows of all workers, by split.
        failure: why no worker can be replaced any more; then the server is to end.

    Args:
        pools: like those of each worker, by split.
        seed: of the episode by which a step is compiled.
        workers: number of processes.
        ended: called at a failure, in another thread.

    Raises:
        ImportError: Ray is not installed.
        ValueError: Ray cannot be joined or has too few CPUs, a worker has other versions, or the world
            waits for others.
        ActorError: a worker cannot start.
    """

    def __init__(self, pools: Mapping[str, RowPool], seed: int, workers: int, ended: Callable[[], None]) -> None:
        self._ray, self._ended = ray_module(), ended
        self.failure: ActorError | None = None
        self._workers = [_Place(number, self) for number in range(workers)]
        self.pools = {split: WorkerPool(split, pool, self._workers) for split, pool in pools.items()}
        initial = sealed((dict(pools), seed))
        size = sum(len(data) if isinstance(data, bytes) else data.nbytes for data in initial)
        self._closed = False
        self._session = RaySession(workers, 2 * size, "workers")
        try:
            self._initial = self._ray.put(initial)
            for worker in self._workers:
                worker.make()
            for worker in self._workers:
                worker.begin()
        except BaseException:
            self.close()
            raise
        for worker in self._workers:
            worker.keeping.start()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        if self._closed:
            return
        self._closed = True
        # Of a Ray that is lost, a call would end this process.
        if not self._session.lost():
            for worker in self._workers:
                worker.end()
        self._session.close()

    def made(self) -> Any:  # noqa: ANN401
        """Return the handle of a new process."""
        made = self._ray.remote(RowWorker).options(num_cpus=1, max_restarts=0, max_task_retries=0)
        return made.remote(self._initial)

    def check_ray(self, error: BaseException) -> None:
        """Raise RayLostError if an error is that of Ray as a whole."""
        if self._session.lost():
            raise RayLostError(LOST) from error

    def fail(self, error: ActorError) -> None:
        """Ask for the end of the server."""
        self.failure = error
        self._ended()


class _Place:
    """A `Worker` on Ray."""

    def __init__(self, number: int, workers: RayWorkers) -> None:
        self._number, self._workers, self._ray = number, workers, ray_module()
        self.life = 0
        # The newest process, which may not be ready, and the one that is there, by its number.
        self._newest: Any = None
        self._actors: dict[int, Any] = {}
        self._started = 0
        self.keeping = threading.Thread(target=self._keep, daemon=True, name=f"worker {number}")

    async def serve(self, life: int, split: str, requests: Sequence[Opening | Message]) -> list[Opened | Turn]:
        failed: Any = self._ray.exceptions
        actor = self._actors.get(life)
        if actor is None:
            raise WorkerLostError
        try:
            return await asyncio.wait_for(actor.serve.remote(split, list(requests)), STALL_SECONDS)
        except failed.RayTaskError:
            raise
        except TimeoutError:
            self._ray.kill(actor)
            raise WorkerLostError from None
        except failed.RayError:
            raise WorkerLostError from None

    def make(self) -> None:
        """Start a process; `begin` waits for it."""
        self._newest = self._workers.made()

    def begin(self) -> None:
        """Wait until the newest process is ready; ActorError if it does not come so far, ValueError of its versions."""
        told = f"worker {self._number}"
        try:
            found = self._ray.get(self._newest.prepare.remote(), timeout=START_SECONDS)
        except self._ray.exceptions.RayError as error:
            self._workers.check_ray(error)
            self._ray.kill(self._newest)
            raise ActorError(f"{told} cannot start: {cause_of(error)}") from error
        check_versions(found, told, "the server")
        self._started += 1
        self._actors = {self._started: self._newest}
        self.life = self._started

    def end(self) -> None:
        """End the process, and wait until the thread that would replace it has ended."""
        while True:
            if self._newest is not None:
                self._ray.kill(self._newest)
            if self.keeping.ident is None:
                return
            self.keeping.join(timeout=1.0)
            if not self.keeping.is_alive():
                return

    def _keep(self) -> None:
        """Put another process in the place of one that dies, until the server ends."""
        try:
            end = self._newest.death.remote()
            while True:
                try:
                    self._ray.get(end, timeout=WATCH_SECONDS)
                except self._ray.exceptions.GetTimeoutError as error:
                    # A Ray that is lost ends this process some ten seconds later, without a word.
                    self._workers.check_ray(error)
                    continue
                except self._ray.exceptions.RayError as error:
                    self.life, self._actors = 0, {}
                    if self._workers.closed:
                        return
                    self._workers.check_ray(error)
                    LOG.warning("worker %d is replaced, and its episodes are over: %s", self._number, cause_of(error))
                self._replace()
                end = self._newest.death.remote()
        except (ActorError, ValueError) as error:
            if not self._workers.closed:
                self._workers.fail(error if isinstance(error, ActorError) else ActorError(str(error)))

    def _replace(self) -> None:
        for left in reversed(range(DEATHS)):
            self.make()
            try:
                return self.begin()
            except RayLostError:
                raise
            except ActorError:
                if not left or self._workers.closed:
                    raise
