"""Outcomes of the episodes that end within a rollout."""

from __future__ import annotations

import math

from vecenv.collector import FusedCollector


def episode_metrics(collector: FusedCollector) -> dict[str, float]:
    """Return means over the episodes that ended in the last rollout.

    Returns:
        Mean ``reward`` of all steps, number of ``episodes`` ended, and their mean ``grade`` and ``return_percent``:
        NaN where none ended, or where the task reports no portfolio value.
    """
    step, env = (collector.terminated | collector.truncated).nonzero(as_tuple=True)
    metrics = {
        "reward": float(collector.reward.mean()),
        "episodes": len(step),
        "return_percent": math.nan,
        "grade": math.nan,
    }
    if len(step):
        ended = collector.rows()[step, env]
        bound = collector.env.engine.bound().of_rows(env)
        metrics["grade"] = float(bound.grade(ended).mean())
        info = bound.info(ended)
        if "portfolio_value" in info:
            metrics["return_percent"] = float(100 * (info["portfolio_value"] / info["start_value"] - 1).mean())
    return metrics
