"""Time of an ensemble in one batch beside that of one learner: sampling alone, and whole updates of PPO.

Both stand in one process, and take turns, so that the machine's other load meets both. The ratio of the medians says
what the members cost together; one after the other they cost as many times one as there are members.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.core.device import device_named
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.ppo_ensemble import EnsemblePPO, row_seeds

WORKLOADS: dict[str, tuple[str, dict[str, Any], PPOConfig]] = {
    "symbols": (
        "stock_trading",
        {"action": "tilt", "episode_length": 125, "min_episode_length": 10},
        PPOConfig(num_steps=16, policy="symbol", hidden=(32,), epochs=1, gamma=0.0, gae_lambda=0.0),
    ),
    "flat": ("stock_trading", {"action": "tilt"}, PPOConfig(num_steps=16, by_reference=False)),
    "order books": ("crypto_lob", {"synthetic_hours": 2.0}, PPOConfig(num_steps=16, by_reference=False)),
}
"""Task, rules and learner: one scorer of all symbols as ``vecenv train`` sets it, a flat policy of two 64 x 64 networks
on the same observations, and the same networks on the few numbers of an order book."""


@dataclass(frozen=True)
class EnsembleConfig:
    """Measure an ensemble in one batch beside one learner."""

    workloads: tuple[str, ...] = tuple(WORKLOADS)
    """Names of `WORKLOADS`."""
    members: int = 8
    """Members of the ensemble."""
    num_envs: int = 256
    """Sub-environments of each member."""
    threads: tuple[int, ...] = (1, 2)
    """CPU threads."""
    rounds: int = 15
    """Timed rounds; the median counts."""
    device: str = "auto"
    """Device."""
    compile: bool = True
    """Compile steps and updates."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""


@dataclass(frozen=True)
class Measured:
    """Median seconds of one learner and of the ensemble at one workload and number of threads.

    Attributes:
        workload: name.
        threads: of the CPU.
        part: ``rollout``, or ``update``, which contains one.
        one: wall time of the learner.
        all: wall time of the ensemble.
        ratio: of the two.
        cpu_ratio: of their processor times, which other load of the machine hardly changes.
    """

    workload: str
    threads: int
    part: str
    one: float
    all: float
    ratio: float
    cpu_ratio: float


def main(config: EnsembleConfig) -> dict[str, Any]:
    """Time every workload, print and write the figures, and return them.

    Raises:
        ValueError: the device is not there, or a workload is unknown.
    """
    unknown = sorted({*config.workloads} - {*WORKLOADS})
    if unknown:
        raise ValueError(f"unknown workloads {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    device = device_named(config.device)
    measured = [each for name in config.workloads for each in _measured(config, name, device)]
    result = {
        "device": machine.device_name(device),
        "torch": torch.__version__,
        "config": plain(config),
        "measured": [asdict(each) for each in measured],
    }
    _show(measured, config.members)
    stem = machine.file_stem(str(result["device"]).rpartition(",")[0] or str(result["device"]))
    write_result(config.output, f"ensemble-{stem}", result)
    return result


def _measured(config: EnsembleConfig, name: str, device: torch.device) -> list[Measured]:
    """Time one workload at every number of threads."""
    task, rules, learning = WORKLOADS[name]
    made = {"device": device, "compile": config.compile, **rules}
    seeds = range(config.members)
    one = PPO(vecenv.make(task, config.num_envs, **made), learning)
    together = vecenv.make(task, config.members * config.num_envs, **made, **row_seeds(seeds, config.num_envs))
    learners = (one, EnsemblePPO(together, learning, seeds))
    for learner in learners:
        for _ in range(2):
            learner.update()
    found = []
    for threads in config.threads:
        torch.set_num_threads(threads)
        for part in ("rollout", "update"):
            calls = [_call(learner, part) for learner in learners]
            for call in calls:
                call()
            times = [[_timed(call, device) for call in calls] for _ in range(config.rounds)]
            wall, cpu = ([statistics.median(row[who][kind] for row in times) for who in (0, 1)] for kind in (0, 1))
            found.append(Measured(name, threads, part, wall[0], wall[1], wall[1] / wall[0], cpu[1] / cpu[0]))
    return found


def _call(learner: PPO, part: str) -> Callable[[], object]:
    return learner.collect if part == "rollout" else learner.update


def _timed(call: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Return wall time and processor time of a call."""
    before = time.process_time()
    (wall,) = machine.seconds_of(call, device, 1)
    return wall, time.process_time() - before


def _show(measured: list[Measured], members: int) -> None:
    table = Table(title=f"{members} members in one batch beside one learner")
    for heading in ("workload", "threads", "part", "one, ms", "all, ms", "ratio", "ratio of CPU time"):
        table.add_column(heading, justify="right")
    for each in measured:
        figures = (f"{1e3 * each.one:.1f}", f"{1e3 * each.all:.1f}", f"{each.ratio:.2f}", f"{each.cpu_ratio:.2f}")
        table.add_row(each.workload, str(each.threads), each.part, *figures)
    Console().print(table)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(EnsembleConfig, prog="python -m vecenv.benchmarks.throughput.ensemble"))
