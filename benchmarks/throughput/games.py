"""Games alone, with given actions: FrozenLake beside that of Gymnasium, Sokoban beside a game without rules."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Categorical

import vecenv
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.benchmarks.workloads import fill_given_actions
from vecenv.core.compiling import FirstCallCompiled
from vecenv.core.random import EpisodeKey
from vecenv.core.scenario import Scenario
from vecenv.tasks.games.sokoban.law import Grid

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
            found.append(_played(config, name, THEIRS, "frozen_lake", num_envs, num_steps, **rules))
        return found

    return [Point("frozen_lake", make)]


def _played(
    config: CaseConfig,
    name: str,
    beside: str | None,
    task: str | vecenv.Task,
    num_envs: int,
    num_steps: int,
    observed: bool = True,
    **rules: Any,  # noqa: ANN401
) -> Workload:
    env = vecenv.make(task, num_envs, device=config.device, compile=config.compile, **rules)
    collector = vecenv.FusedCollector(env, "given", num_steps, store_observations=observed)
    fill_given_actions(collector)
    return Workload(name, collector.rollout, num_envs * num_steps, beside=beside)


class Count(TensorClass):
    """State of `Nothing`: moves so far. Shape: (), int32."""

    steps: Tensor


class Nothing(Scenario[Count]):
    """A game of a hundred moves without rules: what the engine alone takes."""

    longest = 100

    def __init__(self, config: object = None) -> None:
        self.params, self.shared = {}, {}
        self.action_spec = Categorical(4, (1,), dtype=torch.int64)

    def reset(self, key: EpisodeKey, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Count:
        return Count(steps=(0 * key.episode).to(torch.int32), batch_size=[])

    def step(self, state: Count, action: Tensor, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Count:
        return state.replace(steps=state.steps + 1)

    def observation(
        self, state: Count, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        return (state.steps.float().unsqueeze(0),)

    def reward(
        self,
        state: Count,
        action: Tensor,
        next_state: Count,
        params: Mapping[str, Tensor],
        shared: Mapping[str, Tensor],
    ) -> Tensor:
        return -0.1 * (next_state.steps - state.steps)

    def terminated(self, state: Count, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        return state.steps < 0

    def truncated(self, state: Count, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        return state.steps >= self.longest

    def grade(self, state: Count, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        return state.steps / self.longest

    def info(self, state: Count, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"steps": state.steps}


EMPTY = "a game without rules"


def points_of_sokoban(config: CaseConfig) -> list[Point]:
    nothing = vecenv.Task(name="nothing", version="1", scenario=Nothing)

    def make(num_envs: int, num_steps: int) -> list[Workload]:
        sizes = num_envs, num_steps
        found = [_played(config, EMPTY, None, nothing, *sizes, observed=False)]
        found.append(_law(config, num_envs))
        found.append(_played(config, "no observation", EMPTY, "sokoban", *sizes, observed=False, num_boxes=2))
        for kind in ("bits", "around", "planes"):
            found.append(_played(config, kind, EMPTY, "sokoban", *sizes, num_boxes=2, observation=kind))
        return found

    sizes = [(64, 4)] if config.size == "small" else [(4_096, 64), (65_536, 16)]
    return [Point(f"{pair[0]} rows", partial(make, *pair)) for pair in sizes]


def _law(config: CaseConfig, num_envs: int) -> Workload:
    """Return moves of boards, without anything else of a step."""
    env = vecenv.make("sokoban", num_envs, device=config.device, compile=False, num_boxes=2)
    state, grid = env.state, Grid(6, 6)
    read = [
        state.ground[:, 0],
        state.boxes[:, 0],
        state.player[:, 0],
        (env.action_spec.rand()[:, 0] + 1).to(grid.dtype),
    ]

    def moved(floor: Tensor, boxes: Tensor, player: Tensor, direction: Tensor) -> list[Tensor]:
        (boxes,), (player,), _ = grid.moved((floor,), (boxes,), (player,), direction)
        return [boxes, player]

    call, read = FirstCallCompiled(moved, lambda: config.compile), [tensor.contiguous() for tensor in read]
    written = [torch.empty_like(read[0]) for _ in range(2)]
    return Workload("the law alone", lambda: call(read, written), num_envs)


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
