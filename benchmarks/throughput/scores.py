"""Steps per second of trading on scores beside stock trading on the same market.

All stand in one process and take turns, so that the machine's other load meets all of them. Every step is live, and
observations, actions, rewards and flags are kept, as in `vecenv.benchmarks.throughput.curve`.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.benchmarks.workloads import fill_given_actions, task_market, workload_config
from vecenv.core.collector import FusedCollector
from vecenv.core.device import device_named
from vecenv.market.panels import HIGHEST, LOWEST, NEUTRAL, SCORES, Panels
from vecenv.market.tape import MarketTape

EPISODE_LENGTH = 250
"""Longest episode; lengths are drawn from half of it up, so that rows end at different times."""


@dataclass(frozen=True)
class ScoresConfig:
    """Measure trading on scores beside stock trading."""

    num_envs: int = 2048
    """Sub-environments."""
    num_steps: int = 64
    """Steps per rollout."""
    num_days: int = 3000
    """Days of the market."""
    strength: float = 0.1
    """Strength of each rule that is on."""
    coverage: float = 0.6
    """Share of days and symbols with scores."""
    rounds: int = 21
    """Timed rollouts of each; the medians count."""
    threads: int = 1
    """CPU threads."""
    device: str = "auto"
    """Device."""
    compile: bool = True
    """Compile the steps."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""


class Workload(NamedTuple):
    """What is measured.

    Attributes:
        task: its name.
        rules: settings on, of `SignalsConfig`.
        columns: further columns of features, instead of observed scores.
        beside: the workload that it is compared with.
    """

    task: str
    rules: dict[str, Any]
    columns: int
    beside: str


def workloads(strength: float) -> dict[str, Workload]:
    """Return what is measured, by name.

    Args:
        strength: of the rules that are on.
    """
    sentiment, risk = {"sentiment_strength": strength}, {"risk_strength": strength}
    plain_task, wide = "stock_trading", "stock_trading, as many columns"
    return {
        plain_task: Workload(plain_task, {}, 0, plain_task),
        "no rule": Workload("signals", {}, 0, plain_task),
        "sentiment": Workload("signals", sentiment, 0, plain_task),
        "risk": Workload("signals", risk, 0, plain_task),
        "both rules": Workload("signals", sentiment | risk, 0, plain_task),
        wide: Workload(plain_task, {}, 2 * len(SCORES), plain_task),
        "both rules, scores observed": Workload("signals", sentiment | risk | {"observed": SCORES}, 0, wide),
    }


@dataclass(frozen=True)
class Measured:
    """One workload.

    Attributes:
        name: of the workload.
        beside: name of what it is compared with.
        width: numbers of an observation.
        steps_per_second: median, by wall time.
        relative: median of the rounds' rate over that of what it is compared with, by processor time.
    """

    name: str
    beside: str
    width: int
    steps_per_second: float
    relative: float


def main(config: ScoresConfig) -> dict[str, Any]:
    """Time every workload, print and write the figures, and return them.

    Raises:
        ValueError: the device is not there.
    """
    device = device_named(config.device)
    torch.set_num_threads(config.threads)
    task_config = workload_config("stock_trading", given=True)
    tape = task_market(task_config, "synthetic", config.num_days, None, None, device)
    tape = replace(tape, panels=random_panels(tape, config.coverage))
    named = workloads(config.strength)
    collectors = {name: _collector(config, tape, workload, device) for name, workload in named.items()}
    for collector in collectors.values():
        for _ in range(2):
            collector.rollout()
    rounds = [{name: _timed(collector, device) for name, collector in collectors.items()} for _ in range(config.rounds)]
    steps = config.num_envs * config.num_steps
    measured = [
        Measured(
            name,
            workload.beside,
            sum(collectors[name].env.block_widths),
            steps / statistics.median(each[name][0] for each in rounds),
            statistics.median(each[workload.beside][1] / each[name][1] for each in rounds),
        )
        for name, workload in named.items()
    ]
    result = {
        "benchmark": "scores",
        "device": machine.device_name(device),
        "torch": torch.__version__,
        "symbols": tape.num_symbols,
        "features": len(tape.feature_names),
        "config": plain(config),
        "measured": [asdict(each) for each in measured],
    }
    _show(measured)
    write_result(config.output, f"scores-{machine.file_stem(str(result['device']))}", result)
    return result


def random_panels(tape: MarketTape, coverage: float) -> Panels:
    """Return scores of all sizes for a market.

    Args:
        tape: the market.
        coverage: share of days and symbols with scores.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (tape.num_paths, tape.num_days, tape.num_symbols, len(SCORES))
    known = torch.rand(shape, generator=generator) < coverage
    scores = LOWEST + (HIGHEST - LOWEST) * torch.rand(shape, generator=generator)
    return Panels(torch.where(known, scores, NEUTRAL), known).changed(lambda tensor: tensor.to(tape.ohlcv.device))


def _with_columns(tape: MarketTape, count: int) -> MarketTape:
    """Return a market with further columns of random features."""
    generator = torch.Generator().manual_seed(1)
    shape = (*tape.features.shape[:-1], count)
    columns: Tensor = torch.rand(shape, generator=generator).to(tape.features.device)
    names = tuple(f"column_{place}" for place in range(count))
    return replace(tape, features=torch.cat([tape.features, columns], -1), feature_names=(*tape.feature_names, *names))


def _collector(config: ScoresConfig, tape: MarketTape, workload: Workload, device: torch.device) -> FusedCollector:
    """Return the collector of a workload, its actions drawn."""
    market = _with_columns(tape, workload.columns)
    env = vecenv.make(
        workload.task,
        config.num_envs,
        market=market,
        device=device,
        compile=config.compile,
        features=market.feature_names,
        episode_length=EPISODE_LENGTH,
        min_episode_length=EPISODE_LENGTH // 2,
        **workload.rules,
    )
    collector = FusedCollector(env, "given", config.num_steps)
    fill_given_actions(collector)
    return collector


def _timed(collector: FusedCollector, device: torch.device) -> tuple[float, float]:
    """Return wall time and processor time of a rollout; on a GPU the wall time twice."""
    before = time.process_time()
    (wall,) = machine.seconds_of(collector.rollout, device, 1)
    return wall, wall if device.type == "cuda" else time.process_time() - before


def _show(measured: list[Measured]) -> None:
    table = Table(title="Trading on scores beside stock trading")
    for heading in ("workload", "numbers observed", "M steps/s", "relative", "to"):
        table.add_column(heading, justify="right")
    for each in measured:
        rate = f"{each.steps_per_second / 1e6:.2f}"
        table.add_row(each.name, str(each.width), rate, f"{each.relative:.3f}", each.beside)
    Console().print(table)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(ScoresConfig, prog="python -m vecenv.benchmarks.throughput.scores"))
