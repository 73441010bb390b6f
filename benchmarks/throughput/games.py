"""Games alone, with given actions: FrozenLake beside that of Gymnasium, in the same rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import vecenv
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.benchmarks.workloads import fill_given_actions

LAKES: dict[str, dict[str, Any]] = {
    "the lake 4x4, bits": {"lake": "4x4", "observation": "bits"},
    "drawn lakes of 4, bits": {"size": 4, "observation": "bits"},
    "drawn lakes of 4, cells": {"size": 4, "observation": "cells"},
    "drawn lakes of 8, bits": {"size": 8, "observation": "bits"},
}
THEIRS = "Gymnasium, the lake 4x4"


def points_of_frozen_lake(config: CaseConfig) -> list[Point]:
    num_envs, num_steps, single = (64, 4, 50) if config.size == "small" else (16_384, 16, 4_000)

    def make() -> Sequence[Workload]:
        found = [_gymnasium(single)]
        for name, rules in LAKES.items():
            env = vecenv.make("frozen_lake", num_envs, device=config.device, compile=config.compile, **rules)
            collector = vecenv.FusedCollector(env, "given", num_steps)
            fill_given_actions(collector)
            found.append(Workload(name, collector.rollout, num_envs * num_steps, beside=THEIRS))
        return found

    return [Point("frozen_lake", make)]


def _gymnasium(steps: int) -> Workload:
    import gymnasium

    env = gymnasium.make("FrozenLake-v1", map_name="4x4", is_slippery=True)
    env.reset(seed=0)
    actions = random.Random(0).choices(range(4), k=steps)

    def play() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return Workload(THEIRS, play, steps)
