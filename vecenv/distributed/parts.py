"""Parts of the rows of a run: an equal number of consecutive rows each, whoever plays them."""

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


def check_parts(num_envs: int, parts: int, actors: int, agents: int = 1) -> None:
    """Check that rows split into equal parts of whole worlds, of which every actor has some.

    Raises:
        ValueError: they do not; the message has the nearest numbers.
    """
    unit = parts * agents
    if num_envs % unit:
        nearest = [number for number in (num_envs // unit * unit, (num_envs // unit + 1) * unit) if number]
        worlds = f" of whole worlds of {agents} rows" if agents > 1 else ""
        raise ValueError(
            f"{num_envs} rows do not split into {parts} equal parts{worlds}: the nearest numbers of rows are "
            f"{' and '.join(map(str, nearest))}"
        )
    if actors > parts:
        raise ValueError(f"{actors} actors cannot share {parts} parts of the rows: at most {parts} actors")


def parts_of(num_envs: int, parts: int) -> list[slice]:
    """Return the rows of each part; their number is a multiple of that of the parts."""
    size = num_envs // parts
    return [slice(first, first + size) for first in range(0, num_envs, size)]


def shares_of(num_envs: int, parts: int, actors: int) -> list[slice]:
    """Return the rows of each actor: consecutive parts, as many as the others have or one more."""
    size, shares = num_envs // parts, np.array_split(np.arange(parts), actors)
    return [slice(int(share[0]) * size, int(share[-1] + 1) * size) for share in shares]


def scenario_of_part(scenario: Scenario[Any], rows: slice) -> Scenario[Any]:
    """Return a scenario with the parameters of some rows, and the same shared tensors."""
    part = copy.copy(scenario)
    part.params = {name: value[rows] if name in scenario.varied else value for name, value in scenario.params.items()}
    return part


class PartCollector(FusedCollector):
    """A collector whose rollouts go from one process to another: each part's start there, and its outcome back."""

    def start_of(self, leaves: Sequence[Tensor], rows: slice) -> list[np.ndarray]:
        """Return copies of what decides the next steps of some rows, beside policy and shared tensors.

        ``leaves`` are the tensors of all rows, as of `vecenv.core.rows.leaves`.
        """
        env, scenario = self.env, self.env.scenario
        seed = env.seed_tensor if env.seed_tensor.ndim == 0 else env.seed_tensor[rows]
        params = [value[rows] if name in scenario.varied else value for name, value in scenario.params.items()]
        tensors = [seed, env.env_ids[rows], env.start_ids[rows], *params, *(leaf[rows] for leaf in leaves)]
        return [array_of(tensor).copy() for tensor in tensors]

    def of_part(self, start: Sequence[np.ndarray], rows: slice) -> list[np.ndarray]:
        """Return what `start_of` would have returned of some of its rows."""
        env, scenario = self.env, self.env.scenario
        own = [env.seed_tensor.ndim > 0, True, True, *(name in scenario.varied for name in scenario.params)]
        own += [True] * (len(start) - len(own))
        return [array[rows] if by_row else array for array, by_row in zip(start, own, strict=True)]

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

    def outcome_of(self, num_rows: int) -> list[Tensor]:
        """Return empty tensors for the `outcome` of more rows than are here."""
        shapes = [[*tensor.shape] for tensor in self.outcome()]
        for shape, place in zip(shapes, self.places(), strict=True):
            shape[place] = num_rows
        return [tensor.new_empty(shape) for tensor, shape in zip(self.outcome(), shapes, strict=True)]

    def places(self) -> list[int]:
        """Return the dimension of the rows in each tensor of an `outcome`."""
        donated = self._buffers.rows.donated
        return [0 if one else 1 for one in donated] + [1] * (len(self.outcome()) - len(donated))


def empty_part(env: VecEnv, rows: slice) -> dict[str, Any]:
    """Return the arguments of a `VecEnv` on the CPU of as many rows as a part has; `PartCollector.begin` fills it."""
    return {
        "scenario": scenario_of_part(env.scenario, rows),
        "num_envs": rows.stop - rows.start,
        "seed": 0 if env.seed_tensor.ndim == 0 else env.seed_tensor[rows],
        "compiled": env.compiled,
        "env_ids": env.env_ids[rows],
    }
