"""Mean reward, grade and return of the episodes that end within a rollout, with 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.learn.metrics import independent_groups, jackknife_interval
from vecenv.registry import task_of


def episode_metrics(collector: FusedCollector) -> dict[str, float]:
    """Return the mean ``reward`` of the steps of the last rollout, and its `rollout_metrics`."""
    return {"reward": float(collector.reward.mean())} | rollout_metrics(collector.env, collector.rows())


def rollout_metrics(env: VecEnv, rows: Rows) -> dict[str, float]:
    """Return the number of ``episodes`` that ended within rows (T, N), and their `outcomes`.

    Of a trading task also ``market_rows``, the number of distinct days of the market, of any path.
    """
    step, ids = rows.done.nonzero(as_tuple=True)
    metrics: dict[str, float] = {"episodes": len(step)}
    account = task_of(env).account
    if account is not None:
        metrics["market_rows"] = account.market_rows(rows.state)
    return metrics | outcomes(env, rows[step, ids], ids)


def outcomes(env: VecEnv, ended: Rows, ids: Tensor) -> dict[str, float]:
    """Return mean ``return_percent`` and ``grade`` of episodes: NaN of none, and no return without an account.

    The bounds of their 95% intervals, of names with ``_low`` and ``_high``, are NaN of fewer than three blocks of time.
    ``ids`` are the indices of the ended rows in the environment. Shape: (E,).
    """
    if not len(ids):
        return _told(_outcome_names(env), {}, ids)
    values = {name: values.cpu() for name, values in outcome_values(env, ended, ids).items()}
    return _told(_outcome_names(env), values, _blocks(env, ended, ids))


def _told(names: list[str], values: Mapping[str, Tensor], blocks: Tensor) -> dict[str, float]:
    """Return the means and bounds of values by block (E,), NaN of none."""
    found: dict[str, float] = {}
    for name in names:
        interval = jackknife_interval(values[name], blocks) if len(blocks) else (math.nan,) * 3
        found |= dict(zip((name, f"{name}_low", f"{name}_high"), interval, strict=True))
    return found


def _blocks(env: VecEnv, ended: Rows, ids: Tensor) -> Tensor:
    """Return the blocks of ended episodes: those of one block saw the same days, or the same start. Shape: (E,)."""
    task, state = task_of(env), ended.state
    if task.account is not None:
        return independent_groups(*task.account.starts(state), 1)[0]
    if task.blocks is not None:
        # Windows that start anywhere may overlap.
        return task.blocks(state).cpu() // (env.scenario.longest or 1)
    return ((ended.episode << 32) + env.start_ids[ids]).cpu()


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
    member, account, metrics = (ids // each).cpu(), task_of(env).account, []
    rewards = collector.reward.unflatten(1, (num_members, each)).mean((0, 2)).tolist()
    for number, reward in enumerate(rewards):
        own = (member == number).nonzero()[:, 0]
        found: dict[str, float] = {"reward": reward, "episodes": len(own)}
        if account is not None:
            found["market_rows"] = account.market_rows(rows[:, number * each : (number + 1) * each].state)
        blocks = _blocks(env, rows[step[own], ids[own]], ids[own]) if len(own) else own
        told = {name: value[own] for name, value in by_member.items()}
        metrics.append(found | _told(_outcome_names(env), told, blocks))
    return metrics


def _outcome_names(env: VecEnv) -> list[str]:
    return ["return_percent", "grade"] if "total_return" in env.scenario.outcomes else ["grade"]
