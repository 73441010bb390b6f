"""How rewards are gamed: PPO under designs of the tiers' reward.

The same small learner trains on the same market under each preset, and every update records the reward's components and
the episodes' grades under both graders. Actions are discrete, so none can be invalid: the format component of a reward
is the same for every agent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import vecenv
from vecenv.benchmarks.result_files import StudyConfig
from vecenv.core.collector import FusedCollector
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.registry import task_named
from vecenv.system.settings import Count
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.reward import COMPONENTS

TASK = "multi_stock_3"
PRESETS = ("counterfactual", "multi_component", "aligned", "signal")
"""Weights of the reward."""
NUM_ENVS, UPDATES = 512, 50


@dataclass(frozen=True)
class RewardPresetsConfig(StudyConfig):
    """Compare presets of the reward on the synthetic market, at one order a day."""

    num_seeds: Count = 2
    """Runs per preset, with different episodes and initial weights."""


def main(config: RewardPresetsConfig) -> dict[str, Any]:
    rules = task_named(TASK).config()
    options = MarketOptions(symbols=rules.market_symbols, features=rules.features, num_paths=16, num_days=600)
    tape = load_market("synthetic", options)
    runs: dict[str, list[list[dict[str, Any]]]] = {}
    for preset in PRESETS:
        runs[preset] = [_trained(rules, tape, preset, seed) for seed in range(config.num_seeds)]
        for history in runs[preset]:
            ends = [{name: history[place][name] for name in ("hold", "grades")} for place in (0, -1)]
            print(f"{preset}: {ends[0]} → {ends[1]}", flush=True)
    return config.written("reward-presets", runs=runs)


def _trained(rules: TierConfig, tape: MarketTape, preset: str, seed: int) -> list[dict[str, Any]]:
    # At one order a day HOLD is initially as likely as any other choice; the grader counts in presets with a grade.
    rules = replace(rules, reward=preset, grader="seed", max_orders=1, action="discrete", observation="raw")
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
