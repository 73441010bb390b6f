"""An ensemble in one batch beside one learner: sampling alone, and whole updates of PPO.

The time ratio says what the members cost together; one after the other they cost as many times one as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

import vecenv
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.learn.members import ensemble_of, row_seeds
from vecenv.learn.ppo import PPO, PPOConfig

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


def points(config: CaseConfig) -> Sequence[Point]:
    names, threads = config.sized((("order books",), (1,)), (tuple(WORKLOADS), (1, 2)), (tuple(WORKLOADS), (1,)))
    return [
        Point(f"{name}, {count} thread{'s' * (count > 1)}", partial(_beside, config, name, count))
        for name in names
        for count in threads
    ]


def _beside(config: CaseConfig, name: str, threads: int) -> Sequence[Workload]:
    torch.set_num_threads(threads)
    task, rules, learning = WORKLOADS[name]
    members, rows = config.sized((2, 8), (8, 256))
    made: dict[str, Any] = {"device": config.on(), "compile": config.compile, **rules}
    one = PPO(vecenv.make(task, rows, **made), learning)
    together = vecenv.make(task, members * rows, **made, **row_seeds(range(members), rows))
    all_of_them = ensemble_of(PPO)(together, learning, range(members))
    steps, who = rows * learning.num_steps, f"{members} members"
    return [
        Workload("one, rollout", one.collect, steps),
        Workload(f"{who}, rollout", all_of_them.collect, members * steps, beside="one, rollout"),
        Workload("one, update", one.update, steps),
        Workload(f"{who}, update", all_of_them.update, members * steps, beside="one, update"),
    ]
