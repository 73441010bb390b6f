"""PPO sampling on paths of a neural market that are drawn anew.

The cost of a generated day is amortised over the sub-environments that trade it. Both are measured in turns: with r
rollouts on each set of paths, the share of the speed on fixed paths that is kept is that of r rollouts in the time of r
rollouts and one drawing.
"""

from __future__ import annotations

from collections.abc import Sequence

import vecenv
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.core.collector import FusedCollector
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.registry import task_named
from vecenv.tasks.experiment.fresh_paths import FreshPaths
from vecenv.tasks.experiment.markets import GeneratedMarket
from vecenv.tasks.experiment.splits import HEADROOM, TapeSplits
from vecenv.worldmodel.sampling.stationary import WARM_UP

TASK = "stock_trading"


def points(config: CaseConfig) -> Sequence[Point]:
    return [Point("new paths", lambda: _drawn_and_sampled(config))]


def _drawn_and_sampled(config: CaseConfig) -> Sequence[Workload]:
    num_envs, num_steps = config.sized((8, 5), (2048, 64))
    market, num_paths, num_days = config.sized(("synthetic", 5, 330), ("neural", 32, WARM_UP + 252))
    rules = task_named(TASK).config()
    source = GeneratedMarket(market=market, num_paths=num_paths, num_days=num_days)
    splits = TapeSplits(task_named(TASK), source, source.tape(rules, config.on(), HEADROOM))
    training = splits.part("train")
    env = vecenv.make(TASK, num_envs, market=training, device=config.on(), compile=config.compile, config=rules)
    policy = PPO(env, PPOConfig(num_steps=num_steps)).collector.policy
    collector = FusedCollector(env, policy, num_steps)
    fresh = FreshPaths(splits, rules, env, every=1)
    path_days = training.num_paths * (training.num_days - training.first_day)
    stock_days = path_days * training.num_symbols
    drawn = Workload("drawing the paths", lambda: fresh.before_update(fresh.round + 1), stock_days, "stock-days")
    reused = {"steps_per_path_day": num_envs * num_steps / path_days}
    return [drawn, Workload("a rollout", collector.rollout, num_envs * num_steps, beside=drawn.name, told=reused)]
