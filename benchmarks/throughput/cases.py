"""The cases of ``python -m vecenv.benchmarks.throughput NAME``, and the settings that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from tyro.conf import Positional

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.harness import Point, run
from vecenv.benchmarks.result_files import RESULTS, result_of, write_result
from vecenv.core.checks import device_named
from vecenv.system.settings import Count, Settings, Within

Size = TypeVar("Size")

CASES: Mapping[str, str] = {
    "auction": "trading",
    "doors": "doors",
    "ensemble": "trading",
    "frozen_lake": "games",
    "grpo_rollouts": "language",
    "neural_sampling": "worldmodel",
    "news_scoring": "language",
    "programs": "programs",
    "sandbox": "sandbox",
    "scores": "trading",
    "served_sessions": "served_sessions",
    "sokoban": "games",
    "strategies": "strategies",
    "texts": "language",
    "worldmodel_rollouts": "worldmodel",
}
"""Module of each case, which has a function ``points_of_NAME`` of a `CaseConfig`."""


@dataclass(frozen=True)
class CaseConfig(Settings):
    """Settings of a case."""

    name: Positional[str] = ""
    """Name of the case."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    threads: Count = 1
    """CPU threads."""
    rounds: Annotated[int, Within(3)] = 15
    """Timed rounds; medians count."""
    size: Literal["small", "published", "gpu"] = "published"
    """small takes seconds, published made the figures of the pages, gpu fills one."""
    compile: bool = True
    """Compile steps and updates."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name not in CASES:
            raise ValueError(f"unknown case {self.name!r}; there are {', '.join(CASES)}")

    def sized(self, small: Size, published: Size, gpu: Size | None = None) -> Size:
        """Return the value of the size that is asked for; a GPU's by default the published one."""
        return {"small": small, "published": published, "gpu": published if gpu is None else gpu}[self.size]

    def on(self) -> torch.device:
        """Return the device; raise ValueError if it is not available."""
        return device_named(self.device)


def points_of(config: CaseConfig) -> Sequence[Point]:
    module = import_module(f"vecenv.benchmarks.throughput.{CASES[config.name]}")
    points: Callable[[CaseConfig], Sequence[Point]] = getattr(module, f"points_of_{config.name}")
    return points(config)


def main(config: CaseConfig) -> dict[str, Any]:
    """Measure a case, print and write its figures, and return them.

    Raises:
        ValueError: the device is not available.
    """
    device = config.on()
    torch.set_num_threads(config.threads)
    found = run(points_of(config), device, config.rounds)
    result = result_of(config, device, benchmark=config.name, points=found)
    write_result(config.output, f"{config.name.replace('_', '-')}-{machine.file_stem(result['device'])}", result)
    return result
