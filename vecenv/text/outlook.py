"""Observations, outcomes and grades of all rows in one call, compiled if the environment's steps are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.row_calls import RowCall
from vecenv.core.rows import Rows

_OBSERVATION, _GRADE = "observation", "grade"


class Outlook(NamedTuple):
    """Observations, outcomes and grades of N rows. Shapes: (N, D), float32, and (N,).

    A grade depends on all days of the episode, future ones included.
    """

    observation: Tensor
    outcomes: dict[str, Tensor]
    grade: Tensor


class Lookout:
    """Computes the outlook of all rows. If the steps of the environment are compiled, the first call compiles."""

    def __init__(self, env: VecEnv, outcomes: Sequence[str]) -> None:
        self._env, self._outcomes = env, tuple(outcomes)
        self._look = RowCall(env.engine, self._looked, lambda: env.compiled)

    def _looked(self, bound: BoundEngine, rows: Rows) -> dict[str, Tensor]:
        info = bound.info(rows) if self._outcomes else {}
        told = {f"info/{name}": info[name] for name in self._outcomes}
        return {_OBSERVATION: torch.cat(bound.observe(rows), dim=-1), **told, _GRADE: bound.grade(rows)}

    @torch.no_grad()
    def look(self) -> Outlook:
        seen = self._look(self._env.rows)
        return Outlook(seen[_OBSERVATION], {name: seen[f"info/{name}"] for name in self._outcomes}, seen[_GRADE])
