"""Mean reward, grade and return of the episodes that end within a rollout."""

from __future__ import annotations

import math

from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.registry import task_of


def episode_metrics(collector: FusedCollector) -> dict[str, float]:
    """Return the mean ``reward`` of the steps of the last rollout, and its `rollout_metrics`."""
    return {"reward": float(collector.reward.mean())} | rollout_metrics(collector.env, collector.rows())


def rollout_metrics(env: VecEnv, rows: Rows) -> dict[str, float]:
    """Return figures of the episodes that ended in a rollout.

    Args:
        env: of the rows.
        rows: after every step, before auto-reset. Batch: (T, N).

    Returns:
        Number of ``episodes`` ended and their `outcomes`; of a trading task also ``market_rows``, the number of
        distinct days of the market, of any path.
    """
    step, ids = rows.done.nonzero(as_tuple=True)
    metrics: dict[str, float] = {"episodes": len(step)}
    account = task_of(env).account
    if account is not None:
        metrics["market_rows"] = account.market_rows(rows.state)
    return metrics | outcomes(env, rows[step, ids], ids)


def outcomes(env: VecEnv, ended: Rows, ids: Tensor) -> dict[str, float]:
    """Return mean ``return_percent`` and ``grade`` of episodes: NaN of none, and no return without an account.

    Args:
        env: of the rows.
        ended: rows at the ends of the episodes. Batch: (E,).
        ids: their indices in the environment. Shape: (E,), int64.
    """
    names = ["return_percent", "grade"] if "total_return" in env.scenario.outcomes else ["grade"]
    metrics = dict.fromkeys(names, math.nan)
    if len(ids):
        bound = env.engine.bound().of_rows(ids)
        metrics["grade"] = float(bound.grade(ended).mean())
        if "return_percent" in metrics:
            metrics["return_percent"] = float(100 * bound.info(ended)["total_return"].mean())
    return metrics
