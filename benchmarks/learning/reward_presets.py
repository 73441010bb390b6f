"""Comparison of the tiers' reward presets by PPO training: ``python -m vecenv.benchmarks.learning.reward_presets``.

The same small learner trains on the same market under each preset, and every update records the reward's components and
the episodes' grades under both graders. Actions are discrete, so none can be invalid: the format component of a reward
is the same for every agent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.figures import draw_reward_presets
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.core.collector import FusedCollector
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.tasks.commands.comparison import config_of
from vecenv.tasks.tiers.config import TIERS, TierConfig
from vecenv.tasks.tiers.reward_components import COMPONENTS, REWARD_PRESETS


@dataclass(frozen=True)
class RewardPresetsConfig:
    """Settings of the comparison of reward presets."""

    task: str = "multi_stock_3"
    """Tier to train on."""
    presets: tuple[str, ...] = ("counterfactual", "multi_component", "aligned", "signal")
    """Presets of the reward's weights, in the order of the plot."""
    max_orders: int = 1
    """Orders per day, so that a day of HOLD is initially as likely as any other choice."""
    episode_grader: str = "seed"
    """Grader of the reward's grade component, in presets with one."""
    num_seeds: int = 2
    """Runs per preset, with different episodes and initial weights."""
    num_envs: int = 512
    """Number of parallel sub-environments."""
    num_updates: int = 50
    """Updates of each run; a rollout is one episode long."""
    market: str = "synthetic"
    """Path of a market, or a generator's name."""
    num_paths: int = 16
    """Paths of a generated market."""
    num_days: int = 600
    """Days of a generated market."""
    compile: bool = True
    """Compile rollouts and gradients."""
    threads: int = 1
    """CPU threads."""
    device: str = "cpu"
    """Device."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Settings of the learner; the numbers of steps and frames follow from the tier and the updates."""
    output: Path | None = RESULTS
    """Folder for the JSON and the picture; none are written without it."""

    def __post_init__(self) -> None:
        if self.task not in TIERS:
            raise ValueError(f"unknown tier {self.task!r}; there are {', '.join(TIERS)}")
        unknown = [name for name in self.presets if name not in REWARD_PRESETS]
        if unknown or not self.presets:
            raise ValueError(
                f"unknown reward presets {', '.join(unknown) or 'none'}; there are {', '.join(REWARD_PRESETS)}"
            )
        for name in ("num_seeds", "num_updates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def main(config: RewardPresetsConfig) -> dict[str, Any]:
    """Train PPO on each reward preset, write JSON and plot of the reward's components, and return the JSON.

    Raises:
        ValueError: the market is invalid, or a setting of the learner does not fit.
    """
    torch.set_num_threads(config.threads)
    task_config = config_of(config.task)
    options = MarketOptions(
        symbols=task_config.market_symbols,
        features=task_config.features,
        num_paths=config.num_paths,
        num_days=config.num_days,
    )
    tape = load_market(config.market, options, config.device)
    started = time.perf_counter()
    runs: dict[str, list[list[dict[str, Any]]]] = {}
    for preset in config.presets:
        runs[preset] = []
        for seed in range(config.num_seeds):
            history = train_preset(config, task_config, tape, preset, seed)
            runs[preset].append(history)
            first, last = history[0], history[-1]
            print(
                f"{preset:>16} seed {seed}: HOLD {first['hold']:4.0%} → {last['hold']:4.0%}  grades calibrated "
                f"{first['grades']['calibrated']:.2f} → {last['grades']['calibrated']:.2f}, seed "
                f"{first['grades']['seed']:.2f} → {last['grades']['seed']:.2f}  ({time.perf_counter() - started:.0f} s)"
            )
    result = {
        "benchmark": "reward_presets",
        "version": vecenv.__version__,
        "torch": torch.__version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.device_name(tape.device),
        "seconds": time.perf_counter() - started,
        "market": {"source": Path(tape.source).name, "paths": tape.num_paths, "days": tape.num_days},
        "config": plain(config),
        "runs": runs,
    }
    if config.output is not None:
        write_result(config.output, "reward-presets", result)
        draw_reward_presets(result, config.output / "reward-presets.png")
        print("wrote reward-presets.png")
    return result


def train_preset(
    config: RewardPresetsConfig, task_config: TierConfig, tape: MarketTape, preset: str, seed: int
) -> list[dict[str, Any]]:
    """Train PPO under one preset and return the `rollout_record` of every update."""
    # Without a grade component, the grader does not affect the reward.
    task_config = replace(
        task_config, reward=preset, grader=config.episode_grader, max_orders=config.max_orders, action="discrete"
    )
    env = vecenv.make(
        config.task,
        config.num_envs,
        market=tape,
        seed=seed,
        device=tape.device,
        compile=config.compile,
        config=task_config,
    )
    frames = config.num_updates * task_config.days * config.num_envs
    learner = PPO(env, replace(config.ppo, num_steps=task_config.days, total_frames=frames, seed=seed))
    history = []
    while learner.update_number < learner.num_updates:
        metrics = learner.update()
        history.append({"frames": metrics["frames"], **rollout_record(learner.collector)})
    return history


@torch.no_grad()
def rollout_record(collector: FusedCollector) -> dict[str, Any]:
    """Return statistics of a rollout of a tier with discrete actions.

    Returns:
        ``hold``: share of days on which every order is HOLD; ``traded``: of days on which an order was executed;
        ``invalid``: of days with an invalid action; ``exposure``: mean share of the portfolio value in positions over
        the episodes that ended; ``return_percent`` and ``grades`` by grader: their means; ``components``: share of each
        weighted component in the sum of absolute weighted components.
    """
    rows = collector.rows()
    step, ids = rows.truncated.nonzero(as_tuple=True)
    ended = rows[step, ids].state
    grades = collector.env.engine.bound().of_rows(ids).grades(rows[step, ids])
    amounts = reward_parts(collector).abs().sum((0, 1))
    shares = (amounts / amounts.sum().clamp(min=1e-12)).tolist()
    weights = collector.env.scenario.params["weights"].tolist()
    rewarded = [name for name, weight in zip(COMPONENTS, weights, strict=True) if weight != 0.0]
    days = (ended.day - ended.start_day).clamp(min=1)
    return {
        "hold": float((collector.actions[..., 0] == 0).all(-1).double().mean()),
        "traded": float((rows.state.fills != 0).any(-1).double().mean()),
        "invalid": float(rows.state.components[..., COMPONENTS.index("invalid")].mean()),
        "exposure": float((ended.exposure_sum / days).mean()),
        "return_percent": float(100.0 * (ended.portfolio_value / ended.start_value - 1.0).mean()),
        "grades": {name: float(grade.mean()) for name, grade in grades.items()},
        "components": {name: shares[COMPONENTS.index(name)] for name in rewarded},
    }


def reward_parts(collector: FusedCollector) -> Tensor:
    """Return the weighted components of every step's reward, which sum to it. Shape: (T, N, C), float64."""
    scenario, rows = collector.env.scenario, collector.rows()
    weights = scenario.params["weights"]
    parts = rows.state.components.double() * weights
    # The grade, which the reward adds on the last day, is not in the state.
    episode = COMPONENTS.index("episode")
    step, ids = rows.truncated.nonzero(as_tuple=True)
    grade = collector.env.engine.bound().of_rows(ids).grade(rows[step, ids])
    parts[step, ids, episode] = weights[episode] * grade.double()
    return parts


if __name__ == "__main__":
    import tyro

    main(tyro.cli(RewardPresetsConfig, prog="python -m vecenv.benchmarks.learning.reward_presets"))
