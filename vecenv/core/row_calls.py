"""Compiled batch functions of an environment: step, observe, info, grade and grades of all rows.

Computed eagerly, even a few rows cost hundreds of small operations: milliseconds, whatever their number. Compiled, all
rows of a server's pool cost a tenth of one, but compiling takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any

import torch
from torch import Tensor

from vecenv.core.compiling import FirstCallCompiled
from vecenv.core.engine import BoundEngine, Engine
from vecenv.core.rows import Rows, leaves, with_leaves
from vecenv.core.tensor_checks import Layout, check_unchanged, layout

LOOKS_BEFORE_COMPILING = 100
"""Eager calls of observe, info, grade or grades before it is compiled.

A call takes 0.5 to 2.5 ms eagerly, 0.1 ms compiled, and 2 to 7 s to compile: a hundred eager calls cost a tenth of
that, and callers that reach this number mostly call it at every step.
"""


class RowCall:
    """A function of the bound engine, rows and further tensors; compiled, if asked for, after ``eager_calls`` calls."""

    def __init__(
        self,
        engine: Engine,
        function: Callable[..., Mapping[Any, Tensor]],
        compiled: Callable[[], bool],
        eager_calls: int = 0,
    ) -> None:
        self._engine, self._function, self._compiled = engine, function, compiled
        self._eager_calls = eager_calls
        self._call: FirstCallCompiled | None = None
        self._forms: dict[Any, tuple[torch.Size, torch.dtype]] = {}
        self._shared: list[Tensor] = []
        self._layouts: dict[str, Layout] = {}

    def __call__(self, rows: Rows, *others: Tensor) -> dict[Any, Tensor]:
        """Return the results in new tensors; arguments are contiguous, of the same shapes and types at every call."""
        if not self._compiled() or self._eager_calls > 0:
            self._eager_calls -= 1
            return dict(self._function(self._engine.bound(), rows, *others))
        shared = self._engine.inputs
        if self._call is None:
            self._begin(shared, rows, *others)
        elif len(shared) != len(self._shared) or not all(map(is_, shared, self._shared)):
            # Accept replaced tensors of the same layout.
            check_unchanged(self._engine.named_inputs(), self._layouts)
            self._shared = shared
        device = rows.elapsed.device
        results = {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in self._forms.items()}
        assert self._call is not None
        self._call([*shared, *leaves(rows), *others], list(results.values()))
        return results

    def _begin(self, shared: list[Tensor], rows: Rows, *others: Tensor) -> None:
        engine, function = self._engine, self._function
        # An eager call first: values cached on first use, such as grading references, must not be traced.
        example = function(engine.bound(), rows, *others)
        self._forms = {name: (tensor.shape, tensor.dtype) for name, tensor in example.items()}
        self._shared = shared
        self._layouts = {name: layout(tensor) for name, tensor in engine.named_inputs().items()}
        first, last = len(shared), len(shared) + len(leaves(rows))

        def flat(*tensors: Tensor) -> list[Tensor]:
            bound = engine.bind(list(tensors[:first]))
            return list(function(bound, with_leaves(rows, tensors[first:last]), *tensors[last:]).values())

        self._call = FirstCallCompiled(flat, lambda: True, **engine.scenario.compile_options)


class RowCalls:
    """The batch functions of an environment, each compiled separately; ``step`` by the action's shape.

    A step's results are numbered: the tensors of the rows after it, then the reward.
    """

    def __init__(self, engine: Engine, shapes: Iterable[torch.Size], compiled: Callable[[], bool]) -> None:
        def look(function: Callable[[BoundEngine, Rows], Mapping[str, Tensor]]) -> RowCall:
            return RowCall(engine, function, compiled, LOOKS_BEFORE_COMPILING)

        self.step = {shape: RowCall(engine, _stepped, compiled) for shape in shapes}
        self.observe = look(lambda bound, rows: {"observation": torch.cat(bound.observe(rows), dim=-1)})
        self.info = look(lambda bound, rows: bound.info(rows))
        self.grade = look(lambda bound, rows: {"grade": bound.grade(rows)})
        self.grades = look(lambda bound, rows: bound.grades(rows))


def _stepped(bound: BoundEngine, rows: Rows, action: Tensor) -> dict[int, Tensor]:
    outcome = bound.step(rows, action)
    return dict(enumerate([*leaves(outcome.rows), outcome.reward]))
