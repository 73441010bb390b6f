"""Ranks of `torch.distributed`: gloo between CPUs, NCCL between GPUs, in processes that torchrun has started.

A rank that fails ends all: whoever started the ranks ends the others when one has died. A rank that waits for another
one cannot know why that one does not come, so an error of the connection is told only after a while, by which the rank
that is the cause has told its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vecenv.distributed.meeting import KindsDifferError, met, waited
from vecenv.distributed.settings import is_rank
from vecenv.learn.shards import Ranks, as_rank

AFTER_OTHERS = 3.0
"""Seconds after which the loss of a connection is told, which is mostly the consequence of another rank's error."""

SLACK = 1.5
"""Times ``stall_seconds`` that others wait for a rank, which ends itself before."""

LONGEST_MEETING = 300.0
"""Seconds for which ranks wait for each other at the start, if ``stall_seconds`` does not make them less."""

STEP = "step of {}"
"""Key of the store with the time of a rank's last step, where ranks of one set wait for those of another."""

PR_SET_PDEATHSIG = 1
"""Of Linux's `prctl`."""

Result = TypeVar("Result")


class RankLostError(RuntimeError):
    """Another rank did not answer."""


class ProcessRanks(Ranks):
    """The ranks of the default process group, which is initialised, or those of a group of `apart`.

    Args:
        device: of this rank.
        stall_seconds: time without a step of its own after which a rank ends itself, and tells where it is.
        group: of this rank and others.
    """

    def __init__(self, device: torch.device, stall_seconds: float, group: dist.ProcessGroup | None = None) -> None:
        self.group = group or dist.group.WORLD
        self.number, self.count = dist.get_rank(group), dist.get_world_size(group)
        self.device, self.stall_seconds = device, stall_seconds
        self.received = 0
        self.leads = dist.get_rank() == 0
        self._done_by_first, self._waits = 0, 0

    def gathered(self, tensor: Tensor) -> Tensor:
        own = tensor.contiguous()
        whole = own.new_empty(self.count * len(own), *own.shape[1:])
        self._together(lambda: dist.all_gather(list(whole.chunk(self.count)), own, self.group))
        self.received += (self.count - 1) * own.nbytes
        return whole

    def joined(self, tensor: Tensor) -> Tensor:
        lengths = self.gathered(torch.tensor([len(tensor)], device=tensor.device)).tolist()
        padded = tensor.new_zeros(max(lengths), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        parts = self.gathered(padded).split(max(lengths)) if max(lengths) else [padded] * self.count
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def at_first(self, tensor: Tensor) -> Tensor:
        own = tensor.contiguous()
        parts = [torch.empty_like(own) for _ in range(self.count)] if self.number == 0 else None
        self._together(lambda: dist.gather(own, parts, group=self.group, group_dst=0))
        self.received += 0 if parts is None else (self.count - 1) * own.nbytes
        return torch.cat(parts) if parts is not None else own

    def every(self, value: Any) -> list[Any]:  # noqa: ANN401
        values = [value] * dist.get_world_size()
        self._of_all(lambda: dist.all_gather_object(values, value))
        return values

    def of_first(self, tensor: Tensor) -> Tensor:
        own = tensor.detach().clone()
        self._of_all(lambda: dist.broadcast(own, src=0))
        return own

    def apart(self, players: int) -> Ranks:
        learners = self.count - players
        if min(players, learners) < 1:
            return super().apart(players)
        plays = self.number >= learners
        sets, timeout = (range(learners), range(learners, self.count)), _longest_wait(self.stall_seconds)
        # All ranks make both.
        groups = [dist.new_group([*numbers], timeout) for numbers in sets]
        own = ProcessRanks(self.device, self.stall_seconds, groups[plays])
        own.plays, own._done_by_first = plays, self._done_by_first
        own.watch()
        return own

    def done_by_first(self, work: Callable[[], str]) -> str:
        self.rest()
        store, self._done_by_first = dist.distributed_c10d._get_default_store(), self._done_by_first + 1
        key = f"done by first/{self._done_by_first}"
        try:
            if self.leads:
                store.set(key, work())
            else:
                # Whoever started the ranks ends this one if the first fails.
                waited(lambda: store.check([key]))
            return str(store.get(key).decode())
        except dist.DistError as error:
            raise RankLostError(f"rank {dist.get_rank()} waited for rank 0 in vain: {_reason(error)}") from error
        finally:
            self.watch()

    def _of_all(self, call: Callable[[], object]) -> None:
        """Make a call that returns when all ranks make it, of both sets, if there are two."""
        if self.plays is not None:
            self._await_all()
        self._together(call, dist.group.WORLD)

    def _await_all(self) -> None:
        """Wait for all ranks of both sets, of which one works while the other waits, as long as they make steps."""
        self.rest()
        store, self._waits = dist.distributed_c10d._get_default_store(), self._waits + 1
        key = f"apart/{self._waits}/{{}}"
        store.set(key.format(dist.get_rank()), "")
        beats: dict[int, tuple[bytes, float]] = {}

        def arrived() -> bool:
            absent = [other for other in range(dist.get_world_size()) if not store.check([key.format(other)])]
            for other in absent:
                beat, now = store.get(STEP.format(other)), time.monotonic()
                if beats.setdefault(other, (beat, now))[0] != beat:
                    beats[other] = beat, now
                elif now - beats[other][1] > _longest_wait(self.stall_seconds).total_seconds():
                    raise RankLostError(f"rank {dist.get_rank()} waited for rank {other} in vain: it makes no steps")
            return not absent

        try:
            waited(arrived)
        finally:
            self.watch()

    def _together(self, call: Callable[[], Result], group: dist.ProcessGroup | None = None) -> Result:
        """Make a call that returns when all ranks of a group make it, by default those of one's own."""
        self.rest()
        try:
            result = call()
            if self.device.type == "cuda":
                # The call returns when it is queued; waiting for others is no step of this rank.
                torch.cuda.synchronize(self.device)
            return result
        except RuntimeError as error:
            missing = self._missing(dist.get_process_group_ranks(group or self.group))
            raise RankLostError(f"rank {dist.get_rank()} waited for {missing} in vain: {_reason(error)}") from error
        finally:
            self.watch()

    def _missing(self, among: Sequence[int]) -> str:
        """Return the ranks that do not wait as this one does, after a while in which all come to wait."""
        store, key = dist.distributed_c10d._get_default_store(), f"{dist.get_rank()} waits in vain"
        others = [number for number in among if number != dist.get_rank()]
        with contextlib.suppress(RuntimeError):
            store.set(key, "")
            time.sleep(AFTER_OTHERS)
            others = [number for number in others if not store.check([f"{number} waits in vain"])]
        return f"rank {', '.join(map(str, others))}" if others else "the others"

    def watch(self) -> None:
        """Begin the time in which this rank is to make its next step.

        Where it stands after it is printed, and it is ended by SIGALRM, also out of compiled code that never returns.
        """
        if self.plays is not None:
            dist.distributed_c10d._get_default_store().set(STEP.format(dist.get_rank()), str(time.monotonic()))
        faulthandler.dump_traceback_later(self.stall_seconds, file=sys.__stderr__ or 2)
        signal.setitimer(signal.ITIMER_REAL, self.stall_seconds + 0.5)

    def rest(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _longest_wait(stall_seconds: float) -> timedelta:
    """Return the time for which others wait for a rank without a step, which ends itself before."""
    return timedelta(seconds=SLACK * stall_seconds + 10)


def _reason(error: Exception) -> str:
    """Return what an error of torch tells, without its call stack."""
    return str(error).strip().partition("\n")[0]


def _end_with_parent() -> None:
    """Let the system end this process when the agent that started it is gone, which nobody else would tell it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def rank_device(asked: torch.device) -> torch.device:
    """Return the device of this rank: of several GPUs of a machine its own; ValueError if there is none."""
    if asked.type != "cuda" or asked.index is not None or not is_rank():
        return asked
    local, found = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= found:
        raise ValueError(f"rank {os.environ['RANK']} needs GPU {local} of its machine, where PyTorch sees {found}")
    return torch.device("cuda", local)


def _check_reached(limit: timedelta) -> None:
    """Wait until somebody listens where the ranks meet; OSError if nobody does within a limit.

    Torch would tell a page of each attempt.
    """
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    failed: list[OSError] = []

    def reached() -> bool:
        try:
            socket.create_connection(place, timeout=limit.total_seconds()).close()
        except OSError as error:
            failed.append(error)
            return False
        return True

    # The first rank is who listens, if no agent of torchrun does.
    if os.environ["RANK"] != "0" and not waited(reached, limit):
        reason = failed[-1].strerror or failed[-1]
        raise TimeoutError(f"nobody listens there within {limit.total_seconds():.0f} s: {reason}")


@contextlib.contextmanager
def joined(
    device: torch.device, stall_seconds: float, kind: type[ProcessRanks] = ProcessRanks
) -> Iterator[ProcessRanks]:
    """Make this process one of the ranks that torchrun has started, while the context runs.

    On a CPU each has one thread: the sums of several threads depend on their number.

    Args:
        device: of this rank.
        stall_seconds: as of `ProcessRanks`.
        kind: of ranks.

    Raises:
        ValueError: the ranks cannot meet.
    """
    _end_with_parent()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    timeout = _longest_wait(stall_seconds)
    limit = min(timeout, timedelta(seconds=LONGEST_MEETING))
    try:
        _check_reached(limit)
        store, number, count = next(dist.rendezvous("env://", timeout=limit))
        store = met(store, number, count, device.type, limit)
        store.set_timeout(timeout)
        # What is counted lies on the CPU on machines with GPUs too.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=timeout)
    except KindsDifferError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ValueError(f"rank {os.environ['RANK']} cannot meet the others at {where}: {_reason(error)}") from error
    own = kind(device, stall_seconds)
    try:
        with as_rank(own):
            yield own
    finally:
        own.rest()
        # After an error the others may be gone, for whom this would wait.
        if sys.exception() is None:
            dist.destroy_process_group()
