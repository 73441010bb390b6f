"""Throughput in steps per second by number of environments.

``python -m vecenv.benchmarks.throughput`` or ``vecenv bench``. Columns: the environment only with given actions, with
policy sampling, with PPO training, and, for tasks with text, rendering of observations and parsing of actions. Every
step is live (ended rows reset) and all learner inputs are stored: observation, action, reward and both flags.
Compilation and memory are reported separately; each figure is the median of the repeats.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.figures import draw_throughput
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.benchmarks.throughput.published import PUBLISHED
from vecenv.benchmarks.throughput.scalar import scalar_steps_per_second
from vecenv.benchmarks.throughput.text import TextFigure, measure_text
from vecenv.benchmarks.workloads import (
    buffer_bytes,
    fill_given_actions,
    messages_per_step,
    necessary_bytes,
    task_market,
    workload_config,
)
from vecenv.core.collector import FusedCollector
from vecenv.core.device import device_named
from vecenv.core.env import VecEnv
from vecenv.core.memory import TooLittleMemoryError
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.tape import MarketTape
from vecenv.registry import task_named
from vecenv.tasks.commands.simulated import is_simulated
from vecenv.tasks.stock_trading.config import StockTradingConfig

Column = Literal["environment", "without_observations", "policy", "training"]
GIVEN = ("environment", "without_observations")
"""Columns with given actions."""
STOCK_TRADING = "stock_trading"
Mode = Literal["eager", "compiled", "cuda_graph"]


@dataclass(frozen=True)
class BenchConfig:
    """Settings of the throughput benchmark."""

    task: str = STOCK_TRADING
    """Installed task."""
    num_envs: tuple[int, ...] = (*(4**k for k in range(10)), 2048)
    """Environment counts of the curve."""
    columns: tuple[Column | Literal["text"], ...] = ("environment", "policy", "training", "text")
    """Columns measured at every count; text, for tasks with text, only at text_envs."""
    modes: tuple[Mode, ...] = ("eager", "compiled", "cuda_graph")
    """Execution modes at 2,048 environments; cuda_graph needs a GPU. The curve uses the fastest."""
    largest_training: int = 262_144
    """Environment count above which training is skipped: an update of a million samples takes a CPU half a minute."""
    text_envs: int = 65_536
    """Number of sub-environments in the text benchmarks."""
    text_rows: tuple[int, ...] = (64, 2048)
    """Numbers of sub-environments rendered per call."""
    num_steps: int = 64
    """Steps per rollout; fewer if the rollout would exceed max_buffer_gb."""
    repeats: int = 7
    """Timed rollouts per figure; the median counts."""
    market: str | None = None
    """Path of a market, or a generator's name, by default that of the task."""
    start: str | None = None
    """First day of the market."""
    end: str | None = None
    """Last day of the market."""
    num_days: int = 3000
    """Days of a generated market."""
    rationing: Literal["pro_rata", "by_size"] = "pro_rata"
    """Rationing rule of stock_trading for insufficient cash."""
    episode_length: int = 250
    """Longest episode of stock_trading; lengths are drawn from half of it up, so that rows end at different times."""
    threads: int = 1
    """CPU threads."""
    device: str = "cpu"
    """Device."""
    max_buffer_gb: float = 4.0
    """Memory limit of one rollout."""
    bf16: bool = False
    """Policy in bfloat16."""
    output: Path | None = RESULTS
    """Folder for the JSON and the picture; none are written without it."""
    preset: Literal["none", "figure3"] = "none"
    """figure3: the paper's curve, N = 1, 2, 4 ... 2,048 with a PPO agent, Dow 2020-01 to 2021-12."""

    def __post_init__(self) -> None:
        if self.repeats < 5:
            raise ValueError(f"repeats must be at least 5, got {self.repeats}")
        for name in ("rationing", "episode_length", "preset"):
            if self.task != STOCK_TRADING and getattr(self, name) != getattr(BenchConfig, name):
                raise ValueError(f"{name} is a setting of {STOCK_TRADING}, not of {self.task}")
        for name in ("market", "start", "end", "num_days"):
            if is_simulated(self.task) and getattr(self, name) != getattr(BenchConfig, name):
                raise ValueError(f"{name} is a setting of tasks on a market of bars, not of {self.task}")
        if "text" in self.columns and max(self.text_rows) > self.text_envs:
            raise ValueError(f"cannot render {max(self.text_rows)} of {self.text_envs} sub-environments")


@dataclass(frozen=True)
class Figure:
    """One measured throughput."""

    column: Column
    mode: Mode
    num_envs: int
    num_steps: int
    steps_per_second: float
    fastest: float
    compile_seconds: float
    peak_memory_bytes: int
    bytes_per_step: int
    bandwidth_share: float
    messages_per_second: float | None

    def line(self) -> str:
        """Return a line of the table."""
        messages = self.messages_per_second
        return (
            f"{self.column:>22} {self.mode:>10} N={self.num_envs:<7} {self.steps_per_second / 1e6:9.3f} M steps/s  "
            f"{100 * self.bandwidth_share:5.1f}% of copy bandwidth  compile {self.compile_seconds:5.1f} s  "
            f"peak {self.peak_memory_bytes / 1e9:5.2f} GB"
            + ("" if messages is None else f"  {messages / 1e6:7.3f} M messages/s")
        )


def main(config: BenchConfig) -> dict[str, Any]:
    """Run the benchmark, print its figures, write JSON and plot, and return the JSON.

    Raises:
        ValueError: there is no such task, the device is not available or the market is invalid.
    """
    if config.preset == "figure3":
        counts = tuple(2**k for k in range(12))
        config = replace(config, num_envs=counts, columns=("policy",), episode_length=60)
        config = replace(config, start="2020-01-01", end="2021-12-31")
    device = device_named(config.device)
    torch.set_num_threads(config.threads)
    task_config = workload_config(config.task, given=True)
    tape = None
    if not is_simulated(config.task):
        tape = task_market(
            task_config,
            config.market or task_named(config.task).generator,
            config.num_days,
            config.start,
            config.end,
            device,
        )
    copy, write = machine.copy_bandwidth(device), machine.write_bandwidth(device)
    print(f"{machine.device_name(device)}: copies {copy / 1e9:.1f} GB/s (read + write), writes {write / 1e9:.1f} GB/s")
    figures = []
    for column, mode, num_envs in _plan(config, device):
        try:
            figure = measure(config, tape, column, mode, num_envs, copy)
        except (torch.cuda.OutOfMemoryError, TooLittleMemoryError):
            print(f"{column:>22} {mode:>10} N={num_envs:<7} does not fit the memory")
            continue
        figures.append(figure)
        print(figure.line())
    for published in PUBLISHED.get(config.task, ()):
        print(published.line())
    result = _result(config, tape, device, figures, copy, write)
    result["text"] = [asdict(figure) for figure in _text_figures(config, tape)]
    if config.output is not None:
        _write(config, result)
    return result


def _plan(config: BenchConfig, device: torch.device) -> list[tuple[Column, Mode, int]]:
    """List the measurements: all modes at 2,048, the fastest mode elsewhere."""
    modes = [mode for mode in config.modes if mode != "cuda_graph" or device.type == "cuda"]
    best = modes[-1]
    columns: list[Column] = [column for column in config.columns if column != "text"]
    plan = [
        (column, best, count)
        for column in columns
        for count in sorted(config.num_envs)
        if column != "training" or count <= config.largest_training
    ]
    if 2048 in config.num_envs and config.preset == "none":
        # Training collects in the mode of its environment.
        plan += [(column, mode, 2048) for column in columns if column != "training" for mode in modes[:-1]]
    return plan


def measure(
    config: BenchConfig, tape: MarketTape | None, column: Column, mode: Mode, num_envs: int, copy: float
) -> Figure:
    """Measure one figure on a device with a given copy bandwidth in bytes per second, read and written."""
    gc.collect()
    device = device_named(config.device)
    machine.reset_peak_memory(device)
    task_config = workload_config(config.task, given=column in GIVEN)
    if isinstance(task_config, StockTradingConfig):
        longest = config.episode_length
        task_config = replace(
            task_config, rationing=config.rationing, episode_length=longest, min_episode_length=longest // 2
        )
    market: dict[str, Any] = {} if tape is None else {"market": tape}
    env = vecenv.make(config.task, num_envs, **market, device=device, compile=mode != "eager", config=task_config)
    num_steps = max(1, min(config.num_steps, int(config.max_buffer_gb * 1e9 / buffer_bytes(env) / num_envs)))
    collector, advance = _workload(config, env, column, mode, num_steps)
    first = machine.seconds_of(advance, device, 1)[0]
    machine.seconds_of(advance, device, 2)
    # Rollouts of few environments take microseconds: time several together.
    once = max(1e-6, machine.seconds_of(advance, device, 1)[0])
    bundle = max(1, math.ceil(0.02 / once))

    def timed() -> None:
        for _ in range(bundle):
            advance()

    times = machine.seconds_of(timed, device, config.repeats)
    steps = num_envs * num_steps * bundle
    rate = steps / statistics.median(times)
    needed = necessary_bytes(collector)
    return Figure(
        column=column,
        mode=mode,
        num_envs=num_envs,
        num_steps=num_steps,
        steps_per_second=rate,
        fastest=steps / min(times),
        compile_seconds=max(0.0, first - once),
        peak_memory_bytes=machine.peak_memory(device),
        bytes_per_step=needed,
        bandwidth_share=rate * needed / copy,
        messages_per_second=None if (messages := messages_per_step(env)) is None else rate * messages,
    )


def _workload(
    config: BenchConfig, env: VecEnv, column: Column, mode: Mode, num_steps: int
) -> tuple[FusedCollector, Callable[[], object]]:
    """Return the collector and the timed call."""
    if column in GIVEN:
        collector = FusedCollector(env, "given", num_steps, store_observations=column == "environment", mode=mode)
        fill_given_actions(collector)
        return collector, collector.rollout
    batch = num_steps * env.num_envs
    ppo = PPO(env, PPOConfig(num_steps=num_steps, minibatches=min(8, batch), epochs=1, bf16=config.bf16, anneal=False))
    if column == "training":
        return ppo.collector, ppo.update
    collector = FusedCollector(env, ppo.collector.policy, num_steps, mode=mode)
    return collector, collector.rollout


def _text_figures(config: BenchConfig, tape: MarketTape | None) -> list[TextFigure]:
    """Measure text if requested and supported by the task."""
    if "text" not in config.columns:
        return []
    if task_named(config.task).text is None:
        print(f"{config.task} has no text")
        return []
    figures = measure_text(config.task, tape, config.text_envs, config.text_rows, config.repeats)
    for figure in figures:
        print(figure.line())
    return figures


def _result(
    config: BenchConfig, tape: MarketTape | None, device: torch.device, figures: list[Figure], copy: float, write: float
) -> dict[str, Any]:
    scalar = None if tape is None else scalar_steps_per_second(config.task, tape)
    if scalar is not None:
        print(f"scalar oracle, plain Python: {scalar:,.0f} steps/s")
    return {
        "benchmark": "throughput",
        "version": vecenv.__version__,
        "torch": torch.__version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.device_name(device),
        "copy_bandwidth_bytes_per_second": copy,
        "write_bandwidth_bytes_per_second": write,
        "scalar_oracle_steps_per_second": scalar,
        "published": [asdict(published) for published in PUBLISHED.get(config.task, ())],
        "market": None
        if tape is None
        else {
            "source": Path(tape.source).name,
            "symbols": tape.num_symbols,
            "days": tape.num_days,
            "fingerprint": tape.fingerprint(),
        },
        "config": plain(config),
        "figures": [asdict(figure) for figure in figures],
    }


def _write(config: BenchConfig, result: dict[str, Any]) -> None:
    assert config.output is not None
    kind = "figure3" if config.preset == "figure3" else "throughput"
    variant = "" if config.rationing == "pro_rata" else f"-{config.rationing.replace('_', '-')}"
    variant += "-bf16" if config.bf16 else ""
    task = "" if config.task == STOCK_TRADING else f"{machine.file_stem(config.task)}-"
    stem = f"{kind}-{task}{machine.file_stem(result['device'])}{variant}"
    write_result(config.output, stem, result)
    if result["figures"]:
        draw_throughput(result, config.output / f"{stem}.png")
        print(f"wrote {stem}.png")
