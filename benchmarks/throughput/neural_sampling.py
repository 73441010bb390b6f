"""PPO sampling speed with periodic regeneration of a neural market's paths, relative to fixed paths.

The cost of a generated day is amortised over the sub-environments that trade it, so the key number is the reuse:
agent-steps per generated path-day. Each round generates paths, computes indicators, replaces the market, and then
collects rollouts; the kept share of the speed is the rollouts' share of the round's time, since machine speed drifts.
"""

from __future__ import annotations

import statistics
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
from vecenv.core.collector import FusedCollector
from vecenv.core.device import device_named
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.tasks.commands.comparison import config_of
from vecenv.tasks.commands.fresh_paths import FreshPaths, first_round
from vecenv.tasks.commands.market_settings import MarketSettings
from vecenv.worldmodel.sampling.stationary import WARM_UP

KEPT = 0.8
"""Share of the speed on fixed paths for which the required reuse is reported."""


@dataclass(frozen=True)
class NeuralSamplingConfig:
    """Measure the cost of path regeneration in PPO sampling."""

    task: str = "stock_trading"
    """Installed task."""
    num_envs: int = 2048
    """Sub-environments."""
    num_steps: int = 64
    """Steps of a rollout."""
    market: str = "neural"
    """Generator, or a file of vecenv worldmodel train."""
    num_paths: int = 32
    """Paths per round."""
    num_days: int = WARM_UP + 252
    """Days of a path, of which the first 252 are not traded."""
    refresh_every: tuple[int, ...] = (2, 8, 32)
    """Numbers of rollouts per round."""
    rounds: int = 5
    """Timed rounds per number of rollouts; the median counts."""
    threads: int = 2
    """CPU threads."""
    device: str = "auto"
    """Device."""
    compile: bool = True
    """Compile the step."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""


@dataclass(frozen=True)
class Round:
    """Measurement at one number of rollouts per round.

    Attributes:
        rollouts: per round.
        reuse: agent-steps per generated path-day.
        steps_per_second: of whole rounds.
        kept_paths_steps_per_second: of their rollouts only, as on fixed paths.
        share: ratio of the two speeds.
        renewal_seconds: time of regeneration.
    """

    rollouts: int
    reuse: float
    steps_per_second: float
    kept_paths_steps_per_second: float
    share: float
    renewal_seconds: float


def main(config: NeuralSamplingConfig) -> dict[str, Any]:
    """Time every number of rollouts, print and write the figures, and return them.

    Raises:
        ValueError: the device is not there, or the market cannot be drawn.
    """
    device = device_named(config.device)
    torch.set_num_threads(config.threads)
    task_config = config_of(config.task)
    settings = MarketSettings(
        market=config.market, num_paths=config.num_paths, num_days=config.num_days, device=str(device)
    )
    settings, tape = first_round(settings, task_config)
    training = settings.training(tape)
    env = vecenv.make(
        config.task, config.num_envs, market=training, device=device, compile=config.compile, config=task_config
    )
    policy = PPO(env, PPOConfig(num_steps=config.num_steps)).collector.policy
    collector = FusedCollector(env, policy, config.num_steps)
    fresh = FreshPaths(settings, task_config, env, every=1)
    renew = _renewal(fresh)
    # Compile everything and allocate the memory of a second round before timing.
    for _ in range(2):
        renew()
        collector.rollout()
    path_days = training.num_paths * (training.num_days - training.first_day)
    rounds = [_measured(config, collector, renew, count, path_days) for count in config.refresh_every]
    longest = rounds[-1]
    generated = longest.renewal_seconds * longest.kept_paths_steps_per_second / path_days
    result: dict[str, Any] = {
        "device": machine.device_name(device),
        "torch": torch.__version__,
        "config": plain(config),
        "symbols": training.num_symbols,
        "training_paths": training.num_paths,
        "path_days": path_days,
        "renewed_stock_days_per_second": path_days * training.num_symbols / longest.renewal_seconds,
        "reuse_for_kept_share": KEPT / (1.0 - KEPT) * generated,
        "rounds": [asdict(each) for each in rounds],
    }
    _show(result)
    write_result(config.output, f"neural-sampling-{machine.file_stem(result['device'])}", result)
    return result


def _renewal(fresh: FreshPaths) -> Callable[[], None]:
    """Return the function that regenerates the environment's paths."""
    return lambda: fresh.before_update(fresh.round + 1)


def _measured(
    config: NeuralSamplingConfig, collector: FusedCollector, renew: Callable[[], None], rollouts: int, path_days: int
) -> Round:
    """Time some rounds; medians over them."""
    device, frames = collector.env.device, rollouts * config.num_envs * config.num_steps

    def roll() -> None:
        for _ in range(rollouts):
            collector.rollout()

    times = [
        (machine.seconds_of(renew, device, 1)[0], machine.seconds_of(roll, device, 1)[0]) for _ in range(config.rounds)
    ]
    return Round(
        rollouts,
        frames / path_days,
        frames / statistics.median(new + rolled for new, rolled in times),
        frames / statistics.median(rolled for _, rolled in times),
        statistics.median(rolled / (new + rolled) for new, rolled in times),
        statistics.median(new for new, _ in times),
    )


def _show(result: dict[str, Any]) -> None:
    print(
        f"{result['device']}: rounds of {result['path_days']:,} new path-days of {result['symbols']} symbols; "
        f"{KEPT:.0%} of the speed on paths that stay is kept from a reuse of {result['reuse_for_kept_share']:,.0f} on"
    )
    table = Table()
    for heading in ("rollouts", "reuse", "new paths", "steps/s", "without new", "share"):
        table.add_column(heading, justify="right")
    for each in result["rounds"]:
        table.add_row(
            str(each["rollouts"]),
            f"{each['reuse']:,.0f}",
            f"{each['renewal_seconds']:.1f} s",
            f"{each['steps_per_second']:,.0f}",
            f"{each['kept_paths_steps_per_second']:,.0f}",
            f"{each['share']:.0%}",
        )
    Console().print(table)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(NeuralSamplingConfig, prog="python -m vecenv.benchmarks.throughput.neural_sampling"))
