"""One way to measure: what is compared stands in one process and takes turns, and medians and ratios are of one run.

A `Point` makes `Workload`s. In every round each of them is called once, in their order, so that the machine's other
load meets all. A rate is that of the median round, a ratio the median of the rounds' own ratios.
"""

from __future__ import annotations

import gc
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from vecenv.benchmarks import device as machine
from vecenv.system.memory import TooLittleMemoryError

BUNDLE_SECONDS = 0.02
"""Shorter calls are timed together, as many as take this long."""

WARM_UP = 2
"""Calls before the timed ones, the first of which compiles."""


class Workload(NamedTuple):
    """What is called and counted, in `units` of work per call.

    `beside` names the workload of the same point that it is compared with; `limit` is the most units per second that
    the hardware allows; `told` are further facts, or what returns them after the timed calls.
    """

    name: str
    call: Callable[[], object]
    units: float
    unit: str = "steps"
    beside: str | None = None
    limit: float | None = None
    told: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = MappingProxyType({})


class Point(NamedTuple):
    """Workloads that are measured together; `make` returns them, ready to be called."""

    name: str
    make: Callable[[], Sequence[Workload]]


class Times(NamedTuple):
    """Seconds of a call by round, wall and the processor's, which other load hardly changes; and of the first call."""

    wall: list[float]
    processor: list[float]
    first: float


@dataclass(frozen=True)
class Figure:
    """One measured rate, of the median round.

    `compile_seconds` are those of the first call above the median; ratios, to what stands `beside`, are the median of
    the rounds'; `limit_share` is of what the hardware allows.
    """

    name: str
    unit: str
    per_second: float
    fastest: float
    seconds: float
    compile_seconds: float
    beside: str | None = None
    time_ratio: float | None = None
    processor_ratio: float | None = None
    limit_share: float | None = None
    told: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        parts = [f"{self.per_second:,.0f} {self.unit}/s", f"{1e3 * self.seconds:,.2f} ms"]
        if self.limit_share is not None:
            parts.append(f"{self.limit_share:.1%} of the limit")
        if self.time_ratio is not None:
            ratios = f"{self.time_ratio:.3f} times as long as {self.beside}"
            parts.append(f"{ratios} ({self.processor_ratio:.3f} of the processor)")
        if self.compile_seconds > 1:
            parts.append(f"compiled in {self.compile_seconds:.0f} s")
        told = (f"{name} {value:,.4g}" for name, value in self.told.items() if isinstance(value, int | float))
        return f"{self.name}: {', '.join((*parts, *told))}"


def figures_of(workloads: Sequence[Workload], times: Mapping[str, Times]) -> list[Figure]:
    figures = []
    for workload in workloads:
        own = times[workload.name]
        median = statistics.median(own.wall)
        time_ratio = processor_ratio = None
        if workload.beside is not None:
            other = times[workload.beside]
            time_ratio = _median_ratio(own.wall, other.wall)
            processor_ratio = _median_ratio(own.processor, other.processor)
        rate = workload.units / median
        figures.append(
            Figure(
                name=workload.name,
                unit=workload.unit,
                per_second=rate,
                fastest=workload.units / min(own.wall),
                seconds=median,
                compile_seconds=max(0.0, own.first - median),
                beside=workload.beside,
                time_ratio=time_ratio,
                processor_ratio=processor_ratio,
                limit_share=None if workload.limit is None else rate / workload.limit,
                told=dict(workload.told() if callable(workload.told) else workload.told),
            )
        )
    return figures


def _median_ratio(seconds: Sequence[float], beside: Sequence[float]) -> float:
    return statistics.median(one / two for one, two in zip(seconds, beside, strict=True))


def timed(workloads: Sequence[Workload], device: torch.device, rounds: int) -> dict[str, Times]:
    """Call all workloads in turns, and return their times by name.

    Short calls are repeated within a round, as often as `BUNDLE_SECONDS` asks; times are those of one of them.
    """
    first = {each.name: _seconds(each.call, device)[0] for each in workloads}
    for _ in range(WARM_UP - 1):
        for each in workloads:
            each.call()
    once = {each.name: max(1e-6, _seconds(each.call, device)[0]) for each in workloads}
    bundles = {name: max(1, math.ceil(BUNDLE_SECONDS / seconds)) for name, seconds in once.items()}
    found = {each.name: Times([], [], first[each.name]) for each in workloads}
    for _ in range(rounds):
        for each in workloads:
            wall, processor = _seconds(each.call, device, bundles[each.name])
            found[each.name].wall.append(wall)
            found[each.name].processor.append(processor)
    return found


def _seconds(call: Callable[[], object], device: torch.device, bundle: int = 1) -> tuple[float, float]:
    """Return wall time and processor time of a call, the mean of a bundle; on a GPU the wall time twice."""

    def bundled() -> None:
        for _ in range(bundle):
            call()

    began = _processor_seconds()
    (wall,) = machine.seconds_of(bundled, device, 1)
    processor = wall if device.type == "cuda" else _processor_seconds() - began
    return wall / bundle, processor / bundle


def _processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def measured(point: Point, device: torch.device, rounds: int) -> list[Figure]:
    """Make the workloads of a point, time them, and return their figures, each with the peak memory of all."""
    gc.collect()
    machine.reset_peak_memory(device)
    workloads = point.make()
    figures = figures_of(workloads, timed(workloads, device, rounds))
    peak = machine.peak_memory(device)
    for figure in figures:
        figure.told["peak_memory_bytes"] = peak
    return figures


def run(points: Iterable[Point], device: torch.device, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Measure points one after the other, print them, and return their figures by point, as JSON.

    A point that does not fit into the memory is told and left out.
    """
    found = {}
    for point in points:
        try:
            figures = measured(point, device, rounds)
        except (torch.cuda.OutOfMemoryError, TooLittleMemoryError):
            print(f"{point.name} does not fit the memory", flush=True)
            continue
        found[point.name] = [asdict(figure) for figure in figures]
        print(point.name, *(figure.line() for figure in figures), sep="\n  ", flush=True)
    return found
