"""Risk level of what was held over each step of a rollout, from the task."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import hollow, select_rows


def check_risk_levels(env: VecEnv) -> None:
    """Check that the task has risk levels, and that those of a rollout can be had.

    Raises:
        ValueError: it has none, or in its rewards already, or a warm-up, which would be repeated at every step.
    """
    scenario = env.scenario
    if not scenario.has_risk_level:
        raise ValueError(
            f"weigh_risk needs the risk level of what is held, which task {scenario.name!r} does not have, "
            "or has in its rewards already"
        )
    if scenario.warm_up:
        raise ValueError(f"weigh_risk is for tasks without a warm-up, which task {scenario.name!r} has")


def risk_levels(collector: FusedCollector) -> Tensor:
    """Return the risk level of every step of the last rollout. Shape: (T, N), float32."""
    env = collector.env
    bound, donated = env.engine.bound(), env.scenario.donated
    before, after = collector.rows(after=False), collector.rows()
    levels = []
    for step in range(collector.num_steps):
        rows = before[step]
        # Buffers hold the rows before auto-reset: a row that was done has stepped from its next episode's start.
        started = hollow(bound.start(env.seed_tensor, env.start_ids, rows.episode + 1), donated)
        levels.append(bound.risk_level(select_rows(rows.done, started, rows), after[step]))
    return torch.stack(levels).float()
