"""What the episodes that ended in a rollout tell: means over the rows of all shards, with intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.learn.domain import BEST_RULE, domain_of
from vecenv.learn.shards import Shards

if TYPE_CHECKING:
    from vecenv.learn.evaluation import Agent


def reference_agents(env: VecEnv) -> dict[str, Agent]:
    """Return the reference agent of an environment's task and the best rule, where there is one, by name."""
    domain, task = domain_of(env), env.scenario.task
    if task is None or domain.reference not in task.agents:
        return {}
    best = domain.best(env)
    return {domain.reference: task.agents[domain.reference]()} | ({} if best is None else {BEST_RULE: best})


def episode_metrics(collector: FusedCollector, shards: Shards) -> dict[str, float]:
    """Return the mean ``reward`` of the steps of the last rollout of all shards, and its `rollout_metrics`."""
    reward = shards.mean([part.mean() for part in shards.parts(collector.reward)])
    return {"reward": float(reward)} | rollout_metrics(collector.env, collector.rows(), shards)


def rollout_metrics(env: VecEnv, rows: Rows, shards: Shards) -> dict[str, float]:
    """Return the number of ``episodes`` that ended in rows (T, N), what their domain tells, and their `outcomes`.

    Those of the rows of all shards together.
    """
    metrics = _distinct(env, rows, shards)
    # In one layout, by which the order of sums goes.
    columns = shards.joined([_columns(env, *ended_episodes(rows, shards)).T]).T.contiguous()
    return {"episodes": columns.shape[1]} | metrics | _told(env, columns)


def ended_episodes(rows: Rows, shards: Shards) -> tuple[Rows, Tensor]:
    """Return rows (T, N) where an episode ended, of one own shard after the other, and their indices. Shape: (E,)."""
    step, ids = rows.done.nonzero(as_tuple=True)
    if shards.own > 1:
        order = (ids // (rows.batch_size[1] // shards.own)).argsort(stable=True)
        step, ids = step[order], ids[order]
    return rows[step, ids], ids


def _distinct(env: VecEnv, rows: Rows, shards: Shards) -> dict[str, float]:
    seen = {name: numbers.unique() for name, numbers in domain_of(env).seen_of_steps(rows.state).items()}
    if shards.count > 1:
        seen = {name: shards.joined([numbers]).unique() for name, numbers in seen.items()}
    return {name: len(numbers) for name, numbers in seen.items()}


def outcomes(env: VecEnv, ended: Rows, ids: Tensor, shards: Shards | None = None) -> dict[str, float]:
    """Return mean ``return_percent`` and ``grade`` of episodes: NaN of none, and no return without an account.

    Those of the rows of all shards together, if there are any.

    The bounds of their 95% intervals, of names with ``_low`` and ``_high``, are NaN of fewer than three blocks of time.
    ``ids`` are the indices of the ended rows in the environment. Shape: (E,).
    """
    columns = _columns(env, ended, ids)
    if shards is not None and shards.count > 1:
        # In one layout, by which the order of sums goes.
        columns = shards.joined([columns.T]).T.contiguous()
    return _told(env, columns)


def _columns(env: VecEnv, ended: Rows, ids: Tensor) -> Tensor:
    """Return index, start (two numbers) and outcomes of episodes on the CPU, one copy. Shape: (3 + outcomes, E)."""
    if not len(ids):
        return torch.zeros(3 + len(_outcome_names(env)), 0, dtype=torch.float64)
    told = (ids, *domain_of(env).began(env, ended, ids), *outcome_values(env, ended, ids).values())
    return torch.stack([column.double() for column in told]).cpu()


def _told(env: VecEnv, columns: Tensor) -> dict[str, float]:
    """Return the means and bounds of the outcomes of episodes, given their `_columns`; NaN of none."""
    # Here, as a learner that is only imported needs no statistics.
    from vecenv.learn.intervals import jackknife_interval, of_grades

    _, first, second, *values = columns
    found: dict[str, float] = {}
    blocks = domain_of(env).blocks_of(first.long(), second.long()) if len(first) else first
    for name, value in zip(_outcome_names(env), values, strict=True):
        interval: tuple[float, ...] = (math.nan,) * 3
        if len(blocks):
            # A mean of grades is one of float32, as they are.
            graded = name == "grade"
            interval = jackknife_interval(value.float() if graded else value, blocks)
            interval = of_grades(interval) if graded else interval
        found |= dict(zip((name, f"{name}_low", f"{name}_high"), interval, strict=True))
    return found


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
    columns, metrics = _columns(env, rows[step, ids], ids), []
    rewards = collector.reward.unflatten(1, (num_members, each)).mean((0, 2)).tolist()
    for number, reward in enumerate(rewards):
        own = columns[:, columns[0] // each == number]
        found: dict[str, float] = {"reward": reward, "episodes": own.shape[1]}
        found |= _distinct(env, rows[:, number * each : (number + 1) * each], Shards())
        metrics.append(found | _told(env, own))
    return metrics


def _outcome_names(env: VecEnv) -> list[str]:
    return ["return_percent", "grade"] if "total_return" in env.scenario.outcomes else ["grade"]
