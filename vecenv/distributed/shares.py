"""Shares of the rows of a run, and the collectors that play them in other processes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import with_leaves
from vecenv.core.scenario import Scenario
from vecenv.distributed.arrays import array_of, fill
from vecenv.learn.settings.run import check_shards


def shares_of(num_envs: int, shards: int, actors: int, agents: int = 1) -> list[slice]:
    """Return the rows of each actor: those of consecutive shards, as many as the others have or one more.

    Args:
        num_envs: rows of the run, N.
        shards: equal parts of the rows.
        actors: that share them.
        agents: rows of a world, all of which one actor plays.

    Raises:
        ValueError: the rows do not split; the message has the nearest numbers.
    """
    check_shards(shards, 1, num_envs, "sub-environments")
    if actors > shards:
        raise ValueError(f"{actors} actors cannot share {shards} shards of the rows: at most {shards} actors")
    size, unit = num_envs // shards, shards * agents
    if size % agents:
        nearest = [number for number in (num_envs // unit * unit, (num_envs // unit + 1) * unit) if number]
        raise ValueError(
            f"{num_envs} rows do not split into {shards} equal shards of whole worlds of {agents} rows: the nearest "
            f"numbers of rows are {' and '.join(map(str, nearest))}"
        )
    shares = np.array_split(np.arange(shards), actors)
    return [slice(int(share[0]) * size, int(share[-1] + 1) * size) for share in shares]


def _scenario_of(scenario: Scenario[Any], rows: slice) -> Scenario[Any]:
    """Return a scenario with the parameters of some rows, and the same shared tensors."""
    share = copy.copy(scenario)
    share.params = {name: value[rows] if name in scenario.varied else value for name, value in scenario.params.items()}
    return share


class ShareCollector(FusedCollector):
    """A collector whose rollouts go from one process to another: a share's start there, and its outcome back."""

    def start_of(self, leaves: Sequence[Tensor], rows: slice) -> list[np.ndarray]:
        """Return copies of what decides the next steps of some rows, beside policy and shared tensors.

        ``leaves`` are the tensors of all rows, as of `vecenv.core.rows.leaves`.
        """
        env, scenario = self.env, self.env.scenario
        seed = env.seed_tensor if env.seed_tensor.ndim == 0 else env.seed_tensor[rows]
        params = [value[rows] if name in scenario.varied else value for name, value in scenario.params.items()]
        tensors = [seed, env.env_ids[rows], env.start_ids[rows], *params, *(leaf[rows] for leaf in leaves)]
        return [array_of(tensor).copy() for tensor in tensors]

    def begin(self, start: Sequence[np.ndarray]) -> None:
        """Take what `start_of` returned of as many rows as there are here; ValueError if it does not fit."""
        env = self.env
        identity = [env.seed_tensor, env.env_ids, env.start_ids, *env.scenario.params.values()]
        for tensor, array in zip(identity, start[: len(identity)], strict=True):
            fill(tensor, array)
        arrays = start[len(identity) :]
        rows = [self.row_buffers[place][0].new_empty(array.shape) for place, array in enumerate(arrays)]
        for tensor, array in zip(rows, arrays, strict=True):
            fill(tensor, array)
        env.rows = with_leaves(env.row_form, rows)

    def outcome(self, rows: slice = slice(None)) -> list[Tensor]:
        """Return the buffers that a rollout of some rows writes, as views; of the rows those after each step.

        Shape of each: (T, rows, ...); of a donated field, of which there is one copy, (rows, ...).
        """
        pairs = zip(self.row_buffers, self._buffers.rows.donated, strict=True)
        after = [buffer[0, rows] if donated else buffer[1:, rows] for buffer, donated in pairs]
        others = [self.actions, self.reward, *self.extras.values(), *self.seen]
        return [*after, *(buffer[:, rows] for buffer in others)]


def empty_share(env: VecEnv, rows: slice) -> dict[str, Any]:
    """Return the arguments of a `VecEnv` on the CPU of as many rows as a share has; `ShareCollector.begin` fills it."""
    return {
        "scenario": _scenario_of(env.scenario, rows),
        "num_envs": rows.stop - rows.start,
        "seed": 0 if env.seed_tensor.ndim == 0 else env.seed_tensor[rows],
        "compiled": env.compiled,
        "env_ids": env.env_ids[rows],
    }
