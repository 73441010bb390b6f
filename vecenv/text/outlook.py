"""What is seen and told of all rows of an environment, in one call that is compiled where its steps are."""

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
    """What is seen and told of N rows.

    Attributes:
        observation: Shape: (N, D), float32.
        outcomes: of the episodes so far, by name. Shape of each: (N,).
        grade: of the episode so far in [0, 1]; looks at all its days, also those to come. Shape: (N,).
    """

    observation: Tensor
    outcomes: dict[str, Tensor]
    grade: Tensor


class Lookout:
    """Looks at all rows of an environment.

    Args:
        env: its environment. If its steps are compiled, the first look compiles.
        outcomes: names of the outcomes that are told, numbers of the task's info.
    """

    def __init__(self, env: VecEnv, outcomes: Sequence[str]) -> None:
        self._env, self._outcomes = env, tuple(outcomes)
        self._look = RowCall(env.engine, self._looked, lambda: env.compiled)

    def _looked(self, bound: BoundEngine, rows: Rows) -> dict[str, Tensor]:
        info = bound.info(rows) if self._outcomes else {}
        told = {f"info/{name}": info[name] for name in self._outcomes}
        return {_OBSERVATION: torch.cat(bound.observe(rows), dim=-1), **told, _GRADE: bound.grade(rows)}

    @torch.no_grad()
    def look(self) -> Outlook:
        """Return what is seen and told of the rows now."""
        seen = self._look(self._env.rows)
        return Outlook(seen[_OBSERVATION], {name: seen[f"info/{name}"] for name in self._outcomes}, seen[_GRADE])
