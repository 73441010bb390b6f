"""Agents side by side: the same episodes for all, metrics with intervals, one table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vecenv.engine import select_rows
from vecenv.env import VecEnv
from vecenv.learn.baselines import Agent, return_bound, rules
from vecenv.market.bars import CLOSE
from vecenv.metrics import EpisodeCurves, Interval, Summary, independent_groups, summarise

if TYPE_CHECKING:
    from rich.table import Table

REFERENCE = "buy_and_hold"
"""Agent that the others' differences are taken from."""

_COLUMNS = (
    ("Sharpe", "sharpe", 1.0),
    ("Sortino", "sortino", 1.0),
    ("Max\nDD %", "max_drawdown", 100.0),
    ("Turn-\nover\n/year", "turnover", 1.0),
    ("Win/\nloss\ndays", "win_loss_ratio", 1.0),
    ("CVaR\n5%, %", "cvar", 100.0),
    ("Return\n/ MDD", "return_over_max_drawdown", 1.0),
)
"""Header, metric and factor of the table's columns."""


@dataclass(frozen=True)
class AgentRecord:
    """What one agent did in N episodes of at most T days, money in currency.

    Attributes:
        curves: equity, traded value and length of every episode.
        grade: outcome of every episode in [0, 1]. Shape: (N,).
        cash: of the first episode. Shape: (T + 1,), float64.
        positions: value of the holdings in the first episode. Shape: (T + 1, K), float64.
    """

    curves: EpisodeCurves
    grade: Tensor
    cash: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Evaluation:
    """Records of agents that all played the same N episodes.

    Attributes:
        metadata: of the task and its market, from the scenario.
        seed: that named the episodes.
        symbols: of the market.
        dates: of the market. Shape: (T,), datetime64.
        path: of each episode. Shape: (N,).
        start_day: of each episode. Shape: (N,).
        records: by agent.
        return_bound: cumulative return that no account can pass, None where there is no bound. Shape: (N,).
    """

    metadata: dict[str, Any]
    seed: int
    symbols: tuple[str, ...]
    dates: np.ndarray
    path: Tensor
    start_day: Tensor
    records: dict[str, AgentRecord]
    return_bound: Tensor | None

    @property
    def num_episodes(self) -> int:
        """Number of episodes of each agent, N."""
        return len(self.path)

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Means of the metrics, by agent."""
        longest = max(len(record.curves.traded) for record in self.records.values())
        groups = independent_groups(self.path, self.start_day, longest)
        return {name: summarise(record.curves, groups) for name, record in self.records.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the comparison: means and differences to buy-and-hold, both with 95% intervals."""
        result: dict[str, Any] = {"num_episodes": self.num_episodes, "seed": self.seed, **self.metadata, "agents": {}}
        if self.return_bound is not None:
            result["return_bound"] = float(self.return_bound.mean())
        reference = self.summaries.get(REFERENCE)
        for name, record in self.records.items():
            summary = self.summaries[name]
            entry: dict[str, Any] = {metric: _interval_json(summary.interval(metric)) for metric in summary.mean}
            entry["grade"] = {"mean": float(record.grade.mean())}
            if reference is not None and name != REFERENCE:
                entry[f"minus_{REFERENCE}"] = {
                    metric: _interval_json(summary.interval(metric, reference)) for metric in summary.mean
                }
            result["agents"][name] = entry
        return result

    def table(self) -> Table:
        """Return the comparison as a table, one row per agent."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        caption = "Means over episodes; 95% intervals from blocks of the market's days, since episodes overlap."
        if self.return_bound is not None:
            caption += f" No account could have returned more than {100 * float(self.return_bound.mean()):,.0f}%."
        title = f"{self.num_episodes} episodes, the same for every agent"
        table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("Agent", no_wrap=True)
        headers = ["Return\n%", "95%\ninterval", "95%, minus\nbuy and hold"]
        for header in (*headers, *(column[0] for column in _COLUMNS), "Grade"):
            table.add_column(header, justify="right", no_wrap=True)
        reference = self.summaries.get(REFERENCE)
        for name, record in self.records.items():
            summary = self.summaries[name]
            total = summary.interval("cumulative_return")
            excess = ""
            if reference is not None and name != REFERENCE:
                excess = _percent(summary.interval("cumulative_return", reference))
            cells = [_short(summary.mean[metric] * scale) for _, metric, scale in _COLUMNS]
            grade = f"{float(record.grade.mean()):.3f}"
            table.add_row(name, _short(100 * total.mean), _percent(total), excess, *cells, grade)
        return table


def _short(value: float, decimals: int = 2) -> str:
    """Return a number in few characters."""
    return f"{value:.{decimals}f}" if abs(value) < 1e4 else f"{value:.2g}"


def _percent(interval: Interval) -> str:
    """Return the bounds in percent."""
    if math.isnan(interval.low):
        return "too few days"
    return f"{_short(100 * interval.low, 1)} … {_short(100 * interval.high, 1)}"


def _interval_json(interval: Interval) -> dict[str, float | None]:
    """Return an interval for JSON, which has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in interval._asdict().items()}


def evaluate(env: VecEnv, agents: Mapping[str, Agent], seed: int = 0) -> Evaluation:
    """Let every agent play the same episodes, one per row of the environment.

    The episodes are the first of each row under ``seed``; a row that ends stays as it is. The rows of ``env`` are
    used up.

    Args:
        env: an environment whose state has the account of `tasks.stock_trading`.
        agents: by name.
        seed: names the episodes and the random agents' draws.

    Raises:
        ValueError: there is no agent, or an action is not of shape (N, K).
    """
    if not agents:
        raise ValueError("there is no agent to evaluate")
    env.reset_groups(env.num_envs, 1, seed)
    path, start_day = env.state.path.clone(), env.state.start_day.clone()
    bound = None if rules(env).shorting else return_bound(env)
    return Evaluation(
        metadata=env.scenario.metadata(),
        seed=seed,
        symbols=env.market.symbols,
        dates=env.market.dates,
        path=path,
        start_day=start_day,
        records={name: play(env, agent, seed) for name, agent in agents.items()},
        return_bound=bound,
    )


@torch.no_grad()
def play(env: VecEnv, agent: Agent, seed: int) -> AgentRecord:
    """Play the first episode of every row under ``seed`` to its end.

    Raises:
        ValueError: an action is not of shape (N, K).
    """
    env.reset_groups(env.num_envs, 1, seed)
    step, tick = env.engine.bound().step, env.market.tick_size
    equity = [env.state.portfolio_value.double() * tick]
    traded: list[Tensor] = []
    cash, positions = [_cash(env)], [_positions(env)]
    while not bool(env.rows.done.all()):
        action = agent.act(env)
        if action.shape != env.action_spec.shape:
            expected = tuple(env.action_spec.shape)
            raise ValueError(f"{type(agent).__name__} returned actions of shape {tuple(action.shape)}, not {expected}")
        running = ~env.rows.done
        env.rows = select_rows(running, step(env.rows, action).rows, env.rows)
        equity.append(env.state.portfolio_value.double() * tick)
        traded.append(torch.where(running, env.state.traded.double() * tick, 0.0))
        cash.append(_cash(env))
        positions.append(_positions(env))
    curves = EpisodeCurves(torch.stack(equity), torch.stack(traded), env.rows.elapsed.clone())
    return AgentRecord(curves, env.grade(), torch.stack(cash), torch.stack(positions))


def _cash(env: VecEnv) -> Tensor:
    """Return the cash of the first row. Shape: (), float64."""
    return env.state.cash[0].double() * env.market.tick_size


def _positions(env: VecEnv) -> Tensor:
    """Return what the first row's holdings are worth. Shape: (K,), float64."""
    state = env.state
    return state.holdings[0].double() * env.market.ohlcv[state.path[0], state.day[0], :, CLOSE].double()
