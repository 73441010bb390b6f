"""What is seen and told of all rows of an environment, in one call that is compiled where its steps are.

Looked at one by one, a few rows cost hundreds of small operations: milliseconds, whatever their number. Compiled, all
rows of a server's pool cost a tenth of one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.compiling import InPlaceCall, compile_in_place
from vecenv.engine import BoundEngine, Rows, leaves, with_leaves
from vecenv.env import VecEnv


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
        self._call: InPlaceCall | None = None
        self._outputs: list[Tensor] = []

    @torch.no_grad()
    def look(self) -> Outlook:
        """Return what is seen and told of the rows now; the next look may overwrite it."""
        env = self._env
        if not env.compiled:
            return _looked(env.engine.bound(), env.rows)
        inputs = [*env.engine.inputs, *leaves(env.rows)]
        if self._call is None:
            # Whatever is computed once, as what episodes are graded against, is computed before it is traced.
            self._outputs = [torch.empty_like(part) for part in _looked(env.engine.bound(), env.rows)]
            count = len(env.engine.inputs)

            def function(*tensors: Tensor) -> Outlook:
                return _looked(env.engine.bind(list(tensors[:count])), with_leaves(env.rows, tensors[count:]))

            self._call = compile_in_place(function, inputs, self._outputs, **env.scenario.compile_options)
        self._call(inputs, self._outputs)
        return Outlook(*self._outputs)


def _looked(bound: BoundEngine, rows: Rows) -> Outlook:
    info = bound.info(rows)
    cash, value, start = (info[name] for name in ("cash", "portfolio_value", "start_value"))
    return Outlook(torch.cat(bound.observe(rows), dim=-1), cash, value, start, bound.grade(rows))
