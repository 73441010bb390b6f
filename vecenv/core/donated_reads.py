"""What reads a donated field of a scenario's state, although rollouts keep nothing of it."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.core.engine import BoundEngine
from vecenv.core.rows import Rows, hollow, leaves, of_fields, with_leaves


def donated_read(bound: BoundEngine, before: Rows, action: Tensor) -> str | None:
    """Return what reads a donated field in a step of N rows, in words; None if nothing does.

    Raises:
        RuntimeError: a function needs the shape of a donated field, which is empty in a rollout.
    """
    if not bound.scenario.donated:
        return None
    after = bound.step(before, action).rows
    shown = _shown(bound, before, action, after)
    for field in sorted(bound.scenario.donated):
        for emptied in (_zeroed, hollow):
            blank = _shown(bound, emptied(before, {field}), action, emptied(after, {field}))
            for name, value in shown.items():
                if not _equal(value, blank[name]):
                    return f"{name} reads the donated field {field!r}"
    return None


def _shown(bound: BoundEngine, before: Rows, action: Tensor, after: Rows) -> dict[str, Tensor]:
    scenario = bound.scenario
    shown = {f"block {number} of the observation": block for number, block in enumerate(bound.observe(after))}
    if scenario.referenced_blocks:
        shown["the reference"] = bound.reference(after)
    shown["the reward"] = bound._vmap(scenario.reward, before.state, action, after.state)
    for name, function in (("terminated", scenario.terminated), ("truncated", scenario.truncated)):
        shown[name] = bound._vmap(function, after.state)
    shown |= {f"grade {name!r}": grade for name, grade in bound.grades(after).items()}
    shown["the grade"] = bound.grade(after)
    return shown | {f"info {name!r}": value for name, value in bound.info(after).items()}


def _zeroed(rows: Rows, fields: set[str]) -> Rows:
    pairs = zip(leaves(rows), of_fields(rows, fields), strict=True)
    return with_leaves(rows, [torch.zeros_like(leaf) if chosen else leaf for leaf, chosen in pairs])


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
