"""Information coefficients of agents with intervals, and their share of what the day's text lets anybody attain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.finance.accounts import play_account
from vecenv.finance.evaluation import AccountRecord
from vecenv.finance.metrics import independent_groups, sums_interval
from vecenv.learn.evaluation import Agent
from vecenv.learn.intervals import Interval, bootstrap_of_sums, correlation_of_sums
from vecenv.tasks.signals.rating.agents import Reader, scenario_of
from vecenv.tasks.signals.rating.law import mean_ranks, rank_correlation


@dataclass(frozen=True)
class Information:
    """What the signals of an agent told of the moves, with 95% intervals.

    ``rank_ic`` is Spearman's rank correlation over the symbols of a day, its mean over all rated days, ``pooled_ic``
    the same over all pairs of day and symbol of all episodes. ``attained`` is rank_ic over that of `Reader` on the same
    days; NaN where that is not positive. ``total_return`` is the portfolio's in an episode, after costs, ``sharpe``
    that of the daily returns of all episodes together, a year's; 0 for constant ones.
    """

    rank_ic: Interval
    pooled_ic: Interval
    attained: Interval
    total_return: Interval
    sharpe: Interval

    def to_json(self) -> dict[str, dict[str, float | None]]:
        """Return the intervals by name, null for NaN."""
        return {
            name: {key: None if math.isnan(value) else float(value) for key, value in interval._asdict().items()}
            for name, interval in vars(self).items()
        }


@dataclass(frozen=True)
class _Played:
    """An agent's rank correlations by day, (N, S), and centred ranks of signals and moves, (N, S, K, 2)."""

    daily: Tensor
    ranks: Tensor
    known: Tensor
    record: AccountRecord


def information(env: VecEnv, agents: Mapping[str, Agent], seed: int = 0) -> dict[str, Information]:
    """Measure agents on the same episodes, one per row; the rows of the environment are overwritten.

    Days of one block of a path are resampled together (`vecenv.finance.metrics.independent_groups`).
    """
    attainable = _played(env, Reader(), seed)
    state = env.state
    groups = independent_groups(state.path, state.start_day, scenario_of(env).config.episode_length)
    return {name: _measured(_played(env, agent, seed), attainable, groups) for name, agent in agents.items()}


def _played(env: VecEnv, agent: Agent, seed: int) -> _Played:
    scenario, record = scenario_of(env), play_account(env, agent, seed)
    state: Any = env.state
    days = state.start_day.unsqueeze(-1) + torch.arange(scenario.config.episode_length, device=env.device)
    rows = state.path.unsqueeze(-1) * scenario.tape.num_days + days
    known = scenario.shared["tradable"][rows] & (days < state.day.unsqueeze(-1)).unsqueeze(-1)
    signal, move = state.said.double(), scenario.shared["move"][rows]
    ranks = torch.stack([mean_ranks(values.flatten(), known.flatten()) for values in (signal, move)], dim=-1)
    ranks = ranks.view(*known.shape, 2)
    ranks = torch.where(known.unsqueeze(-1), ranks - ranks[known].mean(0), 0.0)
    return _Played(rank_correlation(signal, move, known), ranks, known, record)


def _measured(played: _Played, attainable: _Played, groups: Tensor) -> Information:
    """Return the means and their intervals. Shape of the groups: (S, N)."""
    group, number = groups.T, int(groups.max()) + 1

    def by_group(rows: Tensor) -> Tensor:
        """Sum rows of days over groups. Shapes: (N, S, C) -> (G, C)."""
        sums = torch.zeros(number, rows.shape[-1], dtype=torch.float64, device=rows.device)
        return sums.index_add(0, group.flatten(), rows.flatten(0, 1)).cpu()

    rated = played.known.any(-1).double()
    daily = torch.stack([played.daily, rated, attainable.daily], dim=-1)
    x, y = played.ranks.unbind(-1)
    pairs = torch.stack([played.known.double(), x, y, x * x, y * y, x * y], dim=-1).sum(2)
    sums = by_group(daily)
    attained = bootstrap_of_sums(sums, lambda drawn: drawn[..., 0] / drawn[..., 2])
    curves, year = played.record.curves, math.sqrt(played.record.curves.periods_per_year)
    returns = torch.where(curves.lived, curves.returns, 0.0).T
    paid = torch.stack([curves.lived.T.double(), returns, returns.square()], dim=-1)
    return Information(
        rank_ic=bootstrap_of_sums(sums, lambda drawn: drawn[..., 0] / drawn[..., 1]),
        pooled_ic=bootstrap_of_sums(by_group(pairs), correlation_of_sums),
        attained=attained if float(sums[:, 2].sum()) > 0 else Interval(math.nan, math.nan, math.nan),
        total_return=sums_interval(curves.equity.diff(dim=0) / curves.equity[0], curves.lived, groups),
        sharpe=bootstrap_of_sums(by_group(paid), lambda drawn: year * _sharpe(drawn)),
    )


def _sharpe(sums: Tensor) -> Tensor:
    """Return a day's Sharpe ratio from sums of 1, r and r²; 0 for constant returns. Shape: (..., 3) -> (...)."""
    count, total, squares = sums.unbind(-1)
    mean = total / count
    variance = squares / count - mean.square()
    varies = variance > 1e-12 * squares / count
    return torch.where(varies, mean / torch.where(varies, variance, 1.0).sqrt(), 0.0)
