"""Sampling and PPO training by the number of processes of one machine: ``vecenv bench --processes 1 2``.

Each round starts every number of processes once, in turns, so that the machine's other load meets all. Rates and
shares are of the median round, ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

import vecenv
from vecenv.core.checks import device_named
from vecenv.distributed.launch import launched
from vecenv.distributed.ranks import ProcessRanks, joined, rank_device
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.settings.run import check_shards

MODULE = "vecenv.benchmarks.throughput.processes"

STALL_SECONDS = 600.0
"""Compilation is the longest step."""

WARM_UP = 2
"""Updates before the timed ones, the first of which compiles."""

ROUNDS = 3
"""Of all starts, each of which takes some twenty seconds."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Size:
    """What each start measures: rollouts, then updates, of all rows together."""

    task: str
    rows: int
    num_steps: int
    shards: int
    device: str = "cpu"
    compile: bool = True
    calls: int = 5
    """Timed rollouts, and timed updates."""
    market: str | None = None
    num_days: int | None = None


class Start(NamedTuple):
    """Processes that are started together, with so many shards."""

    processes: int
    shards: int

    def name(self) -> str:
        return f"{_counted(self.processes, 'process', 'es')}, {_counted(self.shards, 'shard', 's')}"


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


def curve(size: Size, processes: Sequence[int], rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Measure and print every start of some numbers of processes, and return the figures.

    Raises:
        ValueError: the rows or the shards do not split.
        ChildProcessError: a process failed.
    """
    starts = starts_of(processes, size.shards)
    for start in starts:
        check_shards(start.shards, start.processes, size.rows, "sub-environments")
    found: dict[Start, list[dict[str, float]]] = {start: [] for start in starts}
    for number in range(rounds):
        for start in starts:
            print(f"Round {number + 1} of {rounds}: {start.name()} …", file=sys.stderr, flush=True)
            found[start].append(_measured(size, start))
    beside = Start(min(processes), size.shards)
    figures = [_figure(start, found[start], found[beside]) for start in starts]
    for figure in figures:
        print(line_of(figure), flush=True)
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


def _measured(size: Size, start: Start) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="vecenv-bench-") as folder:
        target = Path(folder, "told.json")
        given = asdict(size) | {"shards": start.shards}
        began = time.monotonic()
        launched(start.processes, [json.dumps(given), str(target)], MODULE)
        told: dict[str, float] = json.loads(target.read_text())
    return told | {"start_seconds": told.pop("ready") - began}


def _figure(start: Start, rounds: list[dict[str, float]], beside: list[dict[str, float]]) -> dict[str, Any]:
    medians = {name: statistics.median(told[name] for told in rounds) for name in rounds[0]}
    ratios = {
        f"{name}_ratio": statistics.median(one[name] / other[name] for one, other in zip(rounds, beside, strict=True))
        for name in ("sampling", "training")
    }
    above = statistics.median(
        one["start_seconds"] - other["start_seconds"] for one, other in zip(rounds, beside, strict=True)
    )
    return {"name": start.name(), **start._asdict(), **medians, **ratios, "start_seconds_above": above}


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


def measure(size: Size, own: TimedRanks) -> dict[str, float]:
    """Measure as one of some ranks, and return what the first is to tell."""
    rows = size.rows // own.count
    ids = torch.arange(rows) + own.number * rows
    market: dict[str, Any] = {"market": size.market} if size.market else {}
    if size.num_days:
        market["market_options"] = {"num_days": size.num_days}
    env = vecenv.make(
        size.task,
        rows,
        device=own.device,
        compile=size.compile,
        env_ids=ids,
        **market,
    )
    ppo = PPO(env, PPOConfig(num_steps=size.num_steps, epochs=1, shards=size.shards, anneal=False))
    own.every(None)
    ready = time.monotonic()
    for _ in range(WARM_UP):
        ppo.update()
    sampling = _seconds(own, ppo.collector.rollout, size.calls)
    own.exchanges.clear()
    before = own.received
    training = _seconds(own, ppo.update, size.calls)
    received = (own.received - before) / size.calls
    exchange, waiting = shares_of(own.every([*own.exchanges]), training)
    steps = size.calls * size.rows * size.num_steps
    return {
        "sampling": steps / sampling,
        "training": steps / training,
        "exchange": exchange,
        "waiting": waiting,
        "received_bytes": received,
        "ready": ready,
    }


def _seconds(own: TimedRanks, call: Callable[[], object], times: int) -> float:
    """Return the seconds of some calls of all ranks, from the first's beginning to the last's end."""
    own.every(None)
    began = time.monotonic()
    for _ in range(times):
        call()
    own.every(None)
    return time.monotonic() - began


def _counted(number: int, what: str, several: str) -> str:
    return f"{number} {what}{several if number > 1 else ''}"


def main(size: Size, target: Path) -> None:
    """Measure as a rank that `launched` has started; the first writes."""
    with joined(rank_device(device_named(size.device)), STALL_SECONDS, TimedRanks) as own:
        assert isinstance(own, TimedRanks)
        told = measure(size, own)
        if own.number == 0:
            target.write_text(json.dumps(told))


if __name__ == "__main__":
    main(Size(**json.loads(sys.argv[1])), Path(sys.argv[2]))
