"""PPO sampling on a neural market whose paths are drawn anew again and again, beside sampling on paths that stay.

A day drawn is worth its time only if many sub-environments trade it. What counts is therefore the reuse: agent-steps
per generated path-day. Each round is new paths, their indicators, the change of market, and then rollouts; it is timed
as a whole, against the same rollouts without the rest.
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
from benchmarks import device as machine
from benchmarks.result_files import plain, write_result
from tasks.comparison import rules_of
from tasks.fresh_paths import FreshPaths, first_round
from tasks.market_settings import MarketSettings
from vecenv.collector import FusedCollector
from vecenv.device import device_named
from vecenv.learn.ppo import PPO, PPOConfig
from worldmodel.stationary import WARM_UP

RESULTS = Path(__file__).parent / "results"

KEPT = 0.8
"""Share of the speed on paths that stay for which the reuse is told."""


@dataclass(frozen=True)
class NeuralSamplingConfig:
    """Measure what drawing new paths costs PPO sampling."""

    task: str = "stock_trading"
    """Installed task."""
    num_envs: int = 2048
    """Sub-environments."""
    num_steps: int = 64
    """Steps of a rollout."""
    market: str = "neural"
    """Generator, or a file of vecenv worldmodel train."""
    num_paths: int = 32
    """Paths of a round."""
    num_days: int = WARM_UP + 252
    """Days of a path, of which the first 252 are not traded."""
    refresh_every: tuple[int, ...] = (2, 8, 32)
    """Rollouts of a round."""
    rounds: int = 5
    """Timed rounds of each length; the median counts."""
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
    """What was measured at one number of rollouts in a round.

    Attributes:
        rollouts: in a round.
        reuse: agent-steps per generated path-day.
        steps_per_second: of whole rounds.
        share: of the speed on paths that stay.
    """

    rollouts: int
    reuse: float
    steps_per_second: float
    share: float


def main(config: NeuralSamplingConfig) -> dict[str, Any]:
    """Time every length of a round, print and write the figures, and return them.

    Raises:
        ValueError: the device is not there, or the market cannot be drawn.
    """
    device = device_named(config.device)
    torch.set_num_threads(config.threads)
    rules = rules_of(config.task)
    settings = MarketSettings(
        market=config.market, num_paths=config.num_paths, num_days=config.num_days, device=str(device)
    )
    settings, tape = first_round(settings, rules)
    training = settings.training(tape)
    env = vecenv.make(
        config.task, config.num_envs, market=training, device=device, compile=config.compile, config=rules
    )
    policy = PPO(env, PPOConfig(num_steps=config.num_steps)).collector.policy
    collector = FusedCollector(env, policy, config.num_steps)
    fresh = FreshPaths(settings, rules, env, every=1)
    renew = _renewal(fresh)
    # Everything is compiled, and the memory of a second round taken, before anything is timed.
    for _ in range(2):
        renew()
        collector.rollout()
    frames, path_days = (
        config.num_envs * config.num_steps,
        training.num_paths * (training.num_days - training.first_day),
    )
    rollout = statistics.median(machine.seconds_of(collector.rollout, device, 3 * config.rounds))
    renewal = statistics.median(machine.seconds_of(renew, device, config.rounds))
    rounds = [_measured(config, collector, renew, count, frames, path_days, rollout) for count in config.refresh_every]
    result: dict[str, Any] = {
        "device": machine.device_name(device),
        "torch": torch.__version__,
        "config": plain(config),
        "symbols": training.num_symbols,
        "training_paths": training.num_paths,
        "path_days": path_days,
        "kept_paths_steps_per_second": frames / rollout,
        "renewal_seconds": renewal,
        "renewed_stock_days_per_second": path_days * training.num_symbols / renewal,
        "reuse_for_kept_share": KEPT / (1.0 - KEPT) * renewal / rollout * frames / path_days,
        "rounds": [asdict(each) for each in rounds],
    }
    _show(result)
    write_result(config.output, f"neural-sampling-{machine.file_stem(result['device'])}", result)
    return result


def _renewal(fresh: FreshPaths) -> Callable[[], None]:
    """Return what makes the environment's next round of paths."""
    return lambda: fresh.before_update(fresh.round + 1)


def _measured(
    config: NeuralSamplingConfig,
    collector: FusedCollector,
    renew: Callable[[], None],
    rollouts: int,
    frames: int,
    path_days: int,
    rollout_seconds: float,
) -> Round:
    def whole() -> None:
        renew()
        for _ in range(rollouts):
            collector.rollout()

    seconds = statistics.median(machine.seconds_of(whole, collector.env.device, config.rounds))
    return Round(
        rollouts, rollouts * frames / path_days, rollouts * frames / seconds, rollouts * rollout_seconds / seconds
    )


def _show(result: dict[str, Any]) -> None:
    print(
        f"{result['device']}: {result['kept_paths_steps_per_second']:,.0f} steps/s on paths that stay; "
        f"{result['path_days']:,} new path-days of {result['symbols']} symbols take {result['renewal_seconds']:.1f} s; "
        f"{KEPT:.0%} of the speed is kept from a reuse of {result['reuse_for_kept_share']:,.0f} on"
    )
    table = Table()
    for heading in ("rollouts a round", "reuse", "steps/s", "share"):
        table.add_column(heading, justify="right")
    for each in result["rounds"]:
        table.add_row(
            str(each["rollouts"]), f"{each['reuse']:,.0f}", f"{each['steps_per_second']:,.0f}", f"{each['share']:.0%}"
        )
    Console().print(table)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(NeuralSamplingConfig, prog="python -m benchmarks.neural_sampling"))
