"""Throughput of environments by their number, in steps per second: ``vecenv bench``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from vecenv.benchmarks.result_files import RESULTS
from vecenv.registry import task_named
from vecenv.system.settings import Count, CountFromZero, Positive, Settings, When, Within
from vecenv.tasks.experiment.settings import DEFAULT_TASK

Column = Literal["environment", "without_observations", "policy", "training"]
Mode = Literal["eager", "compiled", "recorded", "cuda_graph"]


@dataclass(frozen=True)
class BenchConfig(Settings):
    """Settings of the throughput benchmark."""

    task: str = DEFAULT_TASK
    """Installed task."""
    num_envs: tuple[Count, ...] = (*(4**k for k in range(10)), 2048)
    """Environment counts of the curve."""
    columns: tuple[Column | Literal["text"], ...] = ("environment", "policy", "training", "text")
    """Columns measured at every count; text, for tasks with text, only at text_envs."""
    modes: tuple[Mode, ...] = ("eager", "compiled", "recorded", "cuda_graph")
    """Execution modes at 2,048 environments; cuda_graph needs a GPU, recorded a CPU. The curve uses the fastest."""
    largest_training: CountFromZero = 262_144
    """Environment count above which training is skipped: an update of a million samples takes a CPU half a minute."""
    text_envs: Count = 65_536
    """Number of sub-environments in the text benchmarks."""
    text_rows: tuple[Count, ...] = (64, 2048)
    """Numbers of sub-environments rendered per call."""
    num_steps: Count = 64
    """Steps per rollout; fewer if the rollout would exceed max_buffer_gb."""
    repeats: Annotated[int, Within(5)] = 7
    """Timed rollouts per figure, of which the median counts; by processes, turns of each number."""
    market: str | None = None
    """Path of a market, or a generator's name, by default that of the task."""
    start: str | None = None
    """First day of the market."""
    end: str | None = None
    """Last day of the market."""
    num_days: Count = 3000
    """Days of a generated market."""
    rationing: Literal["pro_rata", "by_size"] = "pro_rata"
    """Rationing rule of stock_trading for insufficient cash."""
    episode_length: Count = 250
    """Longest episode of stock_trading; lengths are drawn from half of it up, so that rows end at different times."""
    threads: Count = 1
    """CPU threads."""
    device: str = "cpu"
    """Device."""
    max_buffer_gb: Positive = 4.0
    """Memory limit of one rollout."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Numbers that the policy's hidden layers multiply."""
    output: Path | None = RESULTS
    """Folder for the JSON and the picture; none are written without it."""
    preset: Literal["none", "figure3"] = "none"
    """figure3: the paper's curve, N = 1, 2, 4 ... 2,048 with a PPO agent, Dow 2020-01 to 2021-12."""
    processes: tuple[Count, ...] = ()
    """Measure, instead of the curve, sampling and PPO training by so many processes of this machine, such as 1 2, with
    the last of num_envs for all together."""
    shards: Annotated[Count, When("processes")] = 8
    """Equal parts of the rows, which the processes share."""
    peers: bool = False
    """Measure, instead of the curve, steps and PPO of stock_trading beside the same in JAX and in C++ by hand, on one
    thread of a CPU: at num_envs, or at 1 to 16,384 rows, and then doors, a book, a served session and starts too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rationing", "episode_length", "preset", "peers"):
            if self.task != DEFAULT_TASK and getattr(self, name) != getattr(BenchConfig, name):
                raise ValueError(f"{name} is a setting of {DEFAULT_TASK}, not of {self.task}")
        for name in ("market", "start", "end", "num_days"):
            if task_named(self.task).market is None and getattr(self, name) != getattr(BenchConfig, name):
                raise ValueError(f"{name} is a setting of tasks on a market of bars, not of {self.task}")


def main(config: BenchConfig) -> dict[str, Any]:
    """Run the benchmark, print its figures, write JSON and plot, and return the JSON.

    Raises:
        ValueError: there is no such task, the device is not available or the market is invalid.
    """
    # It needs PyTorch, which settings do not.
    from vecenv.benchmarks.throughput.curve import main as measure

    return measure(config)
