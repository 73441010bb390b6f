"""Outcomes of the episodes that end within a rollout."""

from __future__ import annotations

import math

from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.engine import Rows
from vecenv.core.env import VecEnv


def episode_metrics(collector: FusedCollector) -> dict[str, float]:
    """Return means over the episodes that ended in the last rollout.

    Returns:
        Mean ``reward`` of all steps, number of ``episodes`` ended, and their mean ``grade`` and ``return_percent``:
        NaN where none ended, or where the task reports no portfolio value.
    """
    step, env = (collector.terminated | collector.truncated).nonzero(as_tuple=True)
    metrics = {"reward": float(collector.reward.mean()), "episodes": len(step)}
    return metrics | outcomes(collector.env, collector.rows()[step, env], env)


def outcomes(env: VecEnv, ended: Rows, ids: Tensor) -> dict[str, float]:
    """Return mean ``grade`` and ``return_percent`` of episodes, as `episode_metrics`.

    Args:
        env: whose rows they are.
        ended: rows at the ends of the episodes. Batch: (E,).
        ids: their numbers in the environment. Shape: (E,), int64.
    """
    metrics = {"return_percent": math.nan, "grade": math.nan}
    if len(ids):
        bound = env.engine.bound().of_rows(ids)
        metrics["grade"] = float(bound.grade(ended).mean())
        info = bound.info(ended)
        if "portfolio_value" in info:
            metrics["return_percent"] = float(100 * (info["portfolio_value"] / info["start_value"] - 1).mean())
    return metrics
