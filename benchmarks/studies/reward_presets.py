"""How rewards are gamed: PPO under designs of the tiers' reward.

The same small learner trains on the same market under each preset, and every update records the reward's components and
the episodes' grades under both graders. Actions are discrete, so none can be invalid: the format component of a reward
is the same for every agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vecenv
from vecenv.benchmarks.result_files import RESULTS, result_of, write_result
from vecenv.core.collector import FusedCollector
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.tasks.commands.comparison import config_of
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.reward_components import COMPONENTS

TASK = "multi_stock_3"
PRESETS = ("counterfactual", "multi_component", "aligned", "signal")
"""Weights of the reward, in the order of the plot."""
NUM_ENVS, UPDATES = 512, 50
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#882255", "#44AA99")
"""Of reward components, in the order of their largest share."""
LEAST_SHARE = 0.02
"""Components that never reach this share of the reward are merged."""


@dataclass(frozen=True)
class RewardPresetsConfig:
    """Compare presets of the reward on the synthetic market, at one order a day."""

    num_seeds: int = 2
    """Runs per preset, with different episodes and initial weights."""
    output: Path | None = RESULTS
    """Folder for the JSON and the picture; none are written without it."""


def main(config: RewardPresetsConfig) -> dict[str, Any]:
    """Train PPO on each reward preset, write JSON and plot of the reward's components, and return the JSON."""
    rules = config_of(TASK)
    options = MarketOptions(symbols=rules.market_symbols, features=rules.features, num_paths=16, num_days=600)
    tape = load_market("synthetic", options)
    runs: dict[str, list[list[dict[str, Any]]]] = {}
    for preset in PRESETS:
        runs[preset] = [_trained(rules, tape, preset, seed) for seed in range(config.num_seeds)]
        for history in runs[preset]:
            ends = [{name: history[place][name] for name in ("hold", "grades")} for place in (0, -1)]
            print(f"{preset}: {ends[0]} → {ends[1]}", flush=True)
    ends = {preset: [[history[0], history[-1]] for history in histories] for preset, histories in runs.items()}
    result = result_of(config, first_and_last_update=ends)
    write_result(config.output, "reward-presets", result)
    if config.output is not None:
        _draw(runs, config.output / "reward-presets.png")
    return result


def _trained(rules: TierConfig, tape: MarketTape, preset: str, seed: int) -> list[dict[str, Any]]:
    """Train PPO under one preset and return the `rollout_record` of every update."""
    # At one order a day HOLD is initially as likely as any other choice; the grader counts in presets with a grade.
    rules = replace(rules, reward=preset, grader="seed", max_orders=1, action="discrete")
    env = vecenv.make(TASK, NUM_ENVS, market=tape, seed=seed, compile=True, config=rules)
    learner = PPO(env, PPOConfig(num_steps=rules.days, total_frames=UPDATES * rules.days * NUM_ENVS, seed=seed))
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


def _draw(runs: Mapping[str, list[list[dict[str, Any]]]], path: Path) -> None:
    """Draw share of HOLD, shares of the reward's components, and both grades over training, a column per preset."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        3, len(runs), figsize=(1.5 + 3.6 * len(runs), 9), sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    shares = {
        preset: {
            name: np.array([[update["components"][name] for update in history] for history in histories]).mean(0)
            for name in histories[0][0]["components"]
        }
        for preset, histories in runs.items()
    }
    largest: dict[str, float] = {}
    for share in shares.values():
        for name, values in share.items():
            largest[name] = max(largest.get(name, 0.0), float(values.max()))
    named = sorted((name for name in largest if largest[name] > LEAST_SHARE), key=lambda name: -largest[name])
    colours = dict(zip(named, COLOURS, strict=False))
    for (preset, histories), (hold, stack, grade) in zip(runs.items(), grid.T, strict=True):
        frames = [update["frames"] for update in histories[0]]
        layers = [shares[preset].get(name, np.zeros(len(frames))) for name in colours]
        stack.stackplot(frames, layers, colors=[*colours.values()], labels=[*colours], linewidth=0)
        lines = {"hold": (hold, lambda update: update["hold"])}
        lines |= {name: (grade, lambda update, name=name: update["grades"][name]) for name in ("calibrated", "seed")}
        for name, (axes, of) in lines.items():
            values = np.array([[of(update) for update in history] for history in histories])
            (line,) = axes.plot(frames, values.mean(0), label=name)
            axes.fill_between(frames, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
        hold.set(title=preset, ylim=(0, 1))
        stack.set(ylim=(0, 1))
        grade.set(xlabel="steps", ylim=(0, 1))
    for axes, label in zip(grid[:, 0], ("days of HOLD", "share of the absolute reward", "grade"), strict=True):
        axes.set_ylabel(label)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
