"""Sampling and PPO training by the number of processes of one machine: ``vecenv bench --processes 1 2``.

Every number of processes is started once, while those before it wait without load. Then they measure in turns, so that
the machine's other load meets all. Rates and shares are of the median round, ratios are medians of the rounds' own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

import vecenv
from vecenv.core.checks import device_named
from vecenv.distributed.ranks import ProcessRanks, joined, rank_device
from vecenv.distributed.settings import ProcessSettings, is_rank
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.settings.run import check_shards
from vecenv.learn.shards import Ranks, ranks

MODULE = "vecenv.benchmarks.throughput.processes"

ROLLOUTS = 10
"""In a turn, beside one update, which takes as long as some twenty."""

LAUNCH = "import sys; from vecenv.distributed.launch import launched; launched(int(sys.argv[1]), sys.argv[2:], {!r})"
"""Starts several processes of a module, and loads no more for that than the command line does."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Size:
    """What each start measures: rollouts, then an update, of all rows together."""

    task: str
    rows: int
    num_steps: int
    shards: int
    device: str = "cpu"
    compile: bool = True
    market: str | None = None
    num_days: int | None = None


class Start(NamedTuple):
    """Processes that are started together, with so many shards."""

    processes: int
    shards: int

    def name(self) -> str:
        several = "es" * (self.processes > 1), "s" * (self.shards > 1)
        return f"{self.processes} process{several[0]}, {self.shards} shard{several[1]}"


class TimedRanks(ProcessRanks):
    """Ranks that note when each came to an exchange, and when it was over, by the clock of their machine."""

    def __init__(self, device: torch.device, stall_seconds: float) -> None:
        super().__init__(device, stall_seconds)
        self.exchanges: list[tuple[float, float]] = []

    def _together(self, call: Callable[[], Result], group: dist.ProcessGroup | None = None) -> Result:
        came = time.monotonic()
        try:
            return super()._together(call, group)
        finally:
            self.exchanges.append((came, time.monotonic()))


def starts_of(processes: Sequence[int], shards: int) -> list[Start]:
    """Return what is started: every number of processes with all shards, and one process with a single shard."""
    single = [Start(1, 1)] if 1 in processes and shards > 1 else []
    return single + [Start(count, shards) for count in sorted(set(processes))]


class Group:
    """The processes of a start, which wait without load until they are to measure.

    Attributes:
        start_seconds: from the command until all have their rows.

    Raises:
        ChildProcessError: one failed, and has told why.
    """

    def __init__(self, size: Size, start: Start) -> None:
        print(f"{start.name()} …", file=sys.stderr, flush=True)
        self._start, own = start, json.dumps(asdict(replace(size, shards=start.shards)))
        several = ["-c", LAUNCH.format(MODULE), str(start.processes), own]
        words = [sys.executable, *(["-m", MODULE, own] if start.processes == 1 else several)]
        began = time.monotonic()
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.start_seconds = self._answer()["ready"] - began
        # The first compiles, the second is warm.
        self.turn()
        self.turn()

    def turn(self) -> dict[str, float]:
        """Let them `measure`, while others wait."""
        print("", file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise ChildProcessError(f"{self._start.name()}: ended with exit code {self._process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def end(self) -> None:
        self._process.communicate()


def curve(size: Size, processes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure and print every start of some numbers of processes, and return the figures.

    Raises:
        ValueError: the rows or the shards do not split.
        ChildProcessError: a process failed.
    """
    starts = starts_of(processes, size.shards)
    for start in starts:
        check_shards(start.shards, start.processes, size.rows, "sub-environments")
    with ExitStack() as stack:
        groups: dict[Start, Group] = {}
        for start in starts:
            groups[start] = Group(size, start)
            stack.callback(groups[start].end)
        turns = [{start: group.turn() for start, group in groups.items()} for _ in range(rounds)]
    beside, figures = Start(min(processes), size.shards), []
    for start, group in groups.items():
        told = {"name": start.name(), **start._asdict(), "start_seconds": group.start_seconds}
        told["start_seconds_above"] = group.start_seconds - groups[beside].start_seconds
        told |= {name: statistics.median(turn[start][name] for turn in turns) for name in turns[0][start]}
        for name in ("sampling", "training"):
            told[f"{name}_ratio"] = statistics.median(turn[start][name] / turn[beside][name] for turn in turns)
        figures.append(told)
        print(line_of(told), flush=True)
    return figures


def line_of(figure: Mapping[str, Any]) -> str:
    """Return the line that is printed of a figure."""
    sampling, training = (f"{name} {figure[name]:,.0f} steps/s" for name in ("sampling", "training"))
    return (
        f"{figure['name']}: {sampling} ({figure['sampling_ratio']:.2f} times), {training} "
        f"({figure['training_ratio']:.2f} times), of which {figure['exchange']:.1%} exchange and "
        f"{figure['waiting']:.1%} waiting for the slowest; started in {figure['start_seconds']:.1f} s, "
        f"{figure['received_bytes']:,.0f} bytes received an update"
    )


def shares_of(exchanges: Sequence[Sequence[tuple[float, float]]], seconds: float) -> tuple[float, float]:
    """Return the shares of a time that ranks spend in exchanges and in waiting there for the slowest, their means.

    Args:
        exchanges: of each rank, when it came to each and when that was over; all have the same ones.
        seconds: the time.
    """
    exchange = waiting = 0.0
    for together in zip(*exchanges, strict=True):
        slowest = max(came for came, _ in together)
        waiting += sum(slowest - came for came, _ in together)
        exchange += sum(max(0.0, over - slowest) for _, over in together)
    return exchange / len(exchanges) / seconds, waiting / len(exchanges) / seconds


def measure(size: Size, ppo: PPO, own: Ranks) -> dict[str, float]:
    """Return the figures of one turn, of all ranks together."""
    steps = size.rows * size.num_steps
    told = {"sampling": ROLLOUTS * steps / _seconds(own, ppo.collector.rollout, ROLLOUTS)}
    received, exchanges = own.received, getattr(own, "exchanges", [])
    exchanges.clear()
    training = _seconds(own, ppo.update)
    # The first one was before the time.
    told["exchange"], told["waiting"] = shares_of(own.every(exchanges[1:]), training)
    return told | {"training": steps / training, "received_bytes": own.received - received}


def _seconds(own: Ranks, call: Callable[[], object], times: int = 1) -> float:
    """Return the seconds of some calls of all ranks, from the first's beginning to the last's end."""
    own.every(None)
    began = time.monotonic()
    for _ in range(times):
        call()
    own.every(None)
    return time.monotonic() - began


def main(size: Size) -> None:
    """Measure a turn for every line of the input, as a rank, or alone as one; the first of them reads and answers."""
    device = rank_device(device_named(size.device))
    torch.set_num_threads(1)
    joining = joined(device, ProcessSettings.stall_seconds, TimedRanks) if is_rank() else nullcontext(ranks())
    with joining as own:
        rows = size.rows // own.count
        ids = torch.arange(rows) + own.number * rows
        market: dict[str, Any] = {"market": size.market} if size.market else {}
        if size.num_days:
            market["market_options"] = {"num_days": size.num_days}
        env = vecenv.make(size.task, rows, device=device, compile=size.compile, env_ids=ids, **market)
        ppo = PPO(env, PPOConfig(num_steps=size.num_steps, epochs=1, shards=size.shards, anneal=False))
        own.every(None)
        told = {"ready": time.monotonic()}
        while True:
            if own.leads:
                print(json.dumps(told), flush=True)
            if not own.done_by_first(sys.stdin.readline):
                return
            told = measure(size, ppo, own)


if __name__ == "__main__":
    main(Size(**json.loads(sys.argv[1])))
