"""Mean reward, grade and return of the episodes that end within a rollout."""

from __future__ import annotations

import math

from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.learn.evaluation import domain_of


def episode_metrics(collector: FusedCollector) -> dict[str, float]:
    """Return the mean ``reward`` of the steps of the last rollout, and its `rollout_metrics`."""
    return {"reward": float(collector.reward.mean())} | rollout_metrics(collector.env, collector.rows())


def rollout_metrics(env: VecEnv, rows: Rows) -> dict[str, float]:
    """Return the number of ``episodes`` that ended in rows (T, N), what their domain tells, and their `outcomes`."""
    step, ids = rows.done.nonzero(as_tuple=True)
    metrics: dict[str, float] = {"episodes": len(step)} | domain_of(env).of_steps(rows.state)
    return metrics | outcomes(env, rows[step, ids], ids)


def outcomes(env: VecEnv, ended: Rows, ids: Tensor) -> dict[str, float]:
    """Return mean ``return_percent`` and ``grade`` of episodes: NaN of none, and no return without an account.

    ``ids`` are the indices of the ended rows in the environment. Shape: (E,).
    """
    if not len(ids):
        return dict.fromkeys(_outcome_names(env), math.nan)
    return {name: float(values.mean()) for name, values in outcome_values(env, ended, ids).items()}


def outcome_values(env: VecEnv, ended: Rows, ids: Tensor) -> dict[str, Tensor]:
    """Return what `outcomes` are the means of. Shape of each: (E,), of at least one episode."""
    bound = env.engine.bound().of_rows(ids)
    values = {"grade": bound.grade(ended)}
    if "return_percent" in (names := _outcome_names(env)):
        values["return_percent"] = 100 * bound.info(ended)["total_return"]
    return {name: values[name] for name in names}


def members_metrics(collector: FusedCollector, num_members: int) -> list[dict[str, float]]:
    """Return the `episode_metrics` of each of several policies that as many consecutive rows belong to."""
    env, rows = collector.env, collector.rows()
    step, ids = rows.done.nonzero(as_tuple=True)
    each = env.num_envs // num_members
    values = outcome_values(env, rows[step, ids], ids) if len(ids) else {}
    by_member = {name: value.cpu() for name, value in values.items()}
    member, metrics = (ids // each).cpu(), []
    rewards = collector.reward.unflatten(1, (num_members, each)).mean((0, 2)).tolist()
    for number, reward in enumerate(rewards):
        own = member == number
        found: dict[str, float] = {"reward": reward, "episodes": int(own.sum())}
        found |= domain_of(env).of_steps(rows[:, number * each : (number + 1) * each].state)
        told = {name: float(by_member[name][own].mean()) if own.any() else math.nan for name in _outcome_names(env)}
        metrics.append(found | told)
    return metrics


def _outcome_names(env: VecEnv) -> list[str]:
    return ["return_percent", "grade"] if "total_return" in env.scenario.outcomes else ["grade"]
