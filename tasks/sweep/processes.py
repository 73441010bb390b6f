"""The processes of a sweep: each runs trials one after the other, in one thread, and none outlives the sweep."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

import torch

from vecenv.tasks.sweep.trials import LOG, Order, Runner

PATIENCE = 20.0
"""Seconds in which a process that is to end writes its checkpoint, before it is killed."""

TRAIN, TEST = "train", "test"
"""Jobs."""

VALIDATION, END, ERROR = "validation", "end", "error"
"""What a process tells: a validation, upon which it is told whether to prune; a job's results; or why it failed."""


@dataclass
class Worker:
    """A process, and the trial that it runs, if any."""

    process: SpawnProcess
    connection: Connection
    order: Order | None = None


class Workers:
    """Context manager of processes that run trials, all of which end with it.

    Args:
        count: of processes.
        prepare: is called in each before its first trial; picklable, such as a function that registers tasks.
    """

    def __init__(self, count: int, prepare: Callable[[], None]) -> None:
        self._count, self._prepare = count, prepare
        self.workers: list[Worker] = []

    def __enter__(self) -> Workers:
        context = multiprocessing.get_context("spawn")
        try:
            for number in range(self._count):
                own, other = context.Pipe()
                process = context.Process(target=_work, args=(other, self._prepare), name=f"sweep {number}")
                # Ctrl+C reaches all processes of a terminal: this one ends the others.
                before = signal.signal(signal.SIGINT, signal.SIG_IGN)
                try:
                    process.start()
                finally:
                    signal.signal(signal.SIGINT, before)
                # Of the other end there is then one, so that this one is told when the process ends.
                other.close()
                self.workers.append(Worker(process, own))
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(at_once=kind is not None)

    def idle(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.order is None]

    def give(self, worker: Worker, job: str, order: Order) -> None:
        worker.order = order
        self.send(worker, (job, order))

    def send(self, worker: Worker, message: object) -> None:
        """Send a process a message; ChildProcessError if it is gone."""
        try:
            worker.connection.send(message)
        except OSError:
            raise _gone(worker) from None

    def receive(self) -> tuple[Worker, str, Any, Any]:
        """Wait for what a process tells, and return it.

        ChildProcessError, with the trial's number, if one has failed or is gone.
        """
        connections = {worker.connection: worker for worker in self.workers}
        (worker, *_) = (connections[ready] for ready in wait(list(connections)) if isinstance(ready, Connection))
        try:
            kind, first, second = worker.connection.recv()
        except (EOFError, OSError):
            raise _gone(worker) from None
        if kind == ERROR and worker.order is not None:
            more = f"; {worker.order.folder / LOG} has more" if second else ""
            raise ChildProcessError(f"trial {worker.order.number}: {first}{more}")
        return worker, kind, first, second

    def _end(self, at_once: bool) -> None:
        """End all processes: those that wait by themselves, the others with a checkpoint."""
        try:
            for worker in self.workers:
                worker.connection.close()
                if at_once:
                    worker.process.terminate()
            for worker in self.workers:
                worker.process.join(PATIENCE)
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.join()
            self.workers = []


def _gone(worker: Worker) -> ChildProcessError:
    worker.process.join()
    code = worker.process.exitcode or 0
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        ended += ", as for want of memory"
    trial = "a process that waited for a trial" if worker.order is None else f"trial {worker.order.number}: its process"
    return ChildProcessError(f"{trial} {ended}; the same command goes on")


def _work(connection: Connection, prepare: Callable[[], None]) -> None:
    """Run the jobs of a process until the other end is closed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # What a trial comes to does not depend on how many run beside it.
    torch.set_num_threads(1)

    def tell(step: int, value: float) -> bool:
        connection.send((VALIDATION, step, value))
        return bool(connection.recv())

    runner = Runner(tell)
    try:
        prepare()
        while True:
            job, order = connection.recv()
            done: tuple[str, object, object]
            try:
                done = (END, *(runner.train if job == TRAIN else runner.test)(order))
            except (EOFError, BrokenPipeError):
                raise
            except (ValueError, OSError, ImportError) as error:
                done = (ERROR, str(error), False)
            except Exception as error:
                traceback.print_exc()
                done = (ERROR, f"{type(error).__name__}: {error}".strip().partition("\n")[0], True)
            connection.send(done)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return


def _end_with_parent() -> None:
    """End this process at once when its parent is gone, be it killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
