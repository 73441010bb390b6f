"""What is seen and told of all rows of an environment, in one call that is compiled where its steps are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.engine import BoundEngine, Rows
from vecenv.core.env import VecEnv
from vecenv.core.row_calls import RowCall


class Outlook(NamedTuple):
    """What is seen and told of N rows.

    Attributes:
        observation: Shape: (N, D), float32.
        cash: in currency, as the next two. Shape: (N,).
        portfolio_value: Shape: (N,).
        start_value: Shape: (N,).
        grade: outcome of the episode so far in [0, 1]; looks at all its days, also those to come. Shape: (N,).
    """

    observation: Tensor
    cash: Tensor
    portfolio_value: Tensor
    start_value: Tensor
    grade: Tensor


class Lookout:
    """Looks at all rows of an environment.

    Args:
        env: of a task that tells of an account. If its steps are compiled, the first look compiles.
    """

    def __init__(self, env: VecEnv) -> None:
        self._env = env
        self._look = RowCall(env.engine, _looked, lambda: env.compiled)

    @torch.no_grad()
    def look(self) -> Outlook:
        """Return what is seen and told of the rows now."""
        return Outlook(**self._look(self._env.rows))


def _looked(bound: BoundEngine, rows: Rows) -> dict[str, Tensor]:
    info = bound.info(rows)
    account = {name: info[name] for name in ("cash", "portfolio_value", "start_value")}
    return {"observation": torch.cat(bound.observe(rows), dim=-1), **account, "grade": bound.grade(rows)}
