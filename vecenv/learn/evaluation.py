"""Agents side by side: the same episodes for all, metrics with intervals, one table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vecenv.core.engine import select_rows
from vecenv.core.env import VecEnv
from vecenv.core.memory import check_memory
from vecenv.learn.agents import Agent
from vecenv.learn.metrics import EpisodeCurves, Interval, Summary, independent_groups, summarise
from vecenv.learn.significance import bootstrap_interval, deflated_sharpe, returns_by_day
from vecenv.market.bars import CLOSE

if TYPE_CHECKING:
    from rich.table import Table

REFERENCE = "buy_and_hold"
"""Agent that the others' differences are taken from."""

HINDSIGHT = "oracle"
"""Agent that sees the future."""

_COLUMNS = (
    ("Sharpe", "sharpe", 1.0),
    ("Max\nDD %", "max_drawdown", 100.0),
    ("Turn-\nover\n/year", "turnover", 1.0),
    ("CVaR\n5%, %", "cvar", 100.0),
    ("Return\n/ MDD", "return_over_max_drawdown", 1.0),
)
"""Header, metric and factor of the table's columns."""


@dataclass(frozen=True)
class AgentRecord:
    """What one agent did in N episodes of at most T days, money in currency.

    Attributes:
        curves: equity, traded value and length of every episode.
        grades: outcome of every episode in [0, 1], by grader. Shape of each: (N,).
        cash: of the first episode. Shape: (T + 1,), float64.
        positions: value of the holdings in the first episode. Shape: (T + 1, K), float64.
    """

    curves: EpisodeCurves
    grades: dict[str, Tensor]
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
    def _groups(self) -> Tensor:
        """Group of each day of each episode. Shape: (T, N)."""
        longest = max(len(record.curves.traded) for record in self.records.values())
        return independent_groups(self.path, self.start_day, longest)

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Means of the metrics, by agent."""
        return {name: summarise(record.curves, self._groups) for name, record in self.records.items()}

    @cached_property
    def grades(self) -> dict[str, dict[str, Interval]]:
        """Mean grades with bootstrap intervals, by agent and grader."""
        return {
            name: {grader: bootstrap_interval(grade, self._groups[0]) for grader, grade in record.grades.items()}
            for name, record in self.records.items()
        }

    @cached_property
    def excess_log_returns(self) -> dict[str, Interval]:
        """Mean log-return of an episode in excess of buy-and-hold's, with bootstrap intervals, by agent."""
        reference = self.records.get(REFERENCE)
        if reference is None:
            return {}
        held = _log_growth(reference.curves)
        return {
            name: bootstrap_interval(_log_growth(record.curves) - held, self._groups[0])
            for name, record in self.records.items()
            if name != REFERENCE
        }

    @cached_property
    def deflated_sharpes(self) -> dict[str, float]:
        """Deflated Sharpe ratios, by agent; NaN for hindsight, which is no strategy that was tried."""
        tried = {
            name: returns_by_day(record.curves.returns, record.curves.lived, self.path, self.start_day)
            for name, record in self.records.items()
            if name != HINDSIGHT
        }
        return {HINDSIGHT: math.nan, **deflated_sharpe(tried)}

    def to_json(self) -> dict[str, Any]:
        """Return the comparison: grades, metrics and differences to buy-and-hold, with 95% intervals."""
        result: dict[str, Any] = {"num_episodes": self.num_episodes, "seed": self.seed, **self.metadata, "agents": {}}
        if self.return_bound is not None:
            result["return_bound"] = float(self.return_bound.mean())
        reference = self.summaries.get(REFERENCE)
        for name, summary in self.summaries.items():
            entry: dict[str, Any] = {
                grader: {"mean": interval.mean, "ci": _bounds(interval)}
                for grader, interval in self.grades[name].items()
            }
            entry |= {metric: _interval_json(summary.interval(metric)) for metric in summary.mean}
            entry["deflated_sharpe"] = _or_none(self.deflated_sharpes[name])
            if name in self.excess_log_returns:
                entry["excess_log_return"] = _interval_json(self.excess_log_returns[name])
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

        caption = (
            "Means over episodes; 95% intervals from blocks of the market's days, since episodes overlap. Excess: mean "
            "log-return of an episode less buy and hold's. DSR: deflated Sharpe ratio, the chance of more than luck."
        )
        if self.return_bound is not None:
            caption += f" No account could have returned more than {100 * float(self.return_bound.mean()):,.0f}%."
        title = f"{self.num_episodes} episodes, the same for every agent"
        table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("Agent", no_wrap=True)
        graders = next(iter(self.grades.values()))
        headers = [part for grader in graders for part in (grader.capitalize(), "95%\ninterval")]
        headers += ["Return\n%", "95%\ninterval", "Excess\n%, 95%\ninterval", "DSR"]
        for header in (*headers, *(column[0] for column in _COLUMNS)):
            table.add_column(header, justify="right", no_wrap=True)
        for name, summary in self.summaries.items():
            total = summary.interval("cumulative_return")
            cells = []
            for interval in self.grades[name].values():
                cells += [f"{interval.mean:.3f}", _interval_text(interval, 1.0, 2)]
            excess = self.excess_log_returns.get(name)
            cells += [_short(100 * total.mean), _interval_text(total)]
            cells += ["" if excess is None else _interval_text(excess), _ratio_text(self.deflated_sharpes[name])]
            cells += [_short(summary.mean[metric] * scale) for _, metric, scale in _COLUMNS]
            table.add_row(name, *cells)
        return table


def _log_growth(curves: EpisodeCurves) -> Tensor:
    """Return the log-return of every episode; a ruined account counts as one with a millionth left. Shape: (N,)."""
    return torch.log((curves.equity[-1] / curves.equity[0]).clamp(min=1e-6))


def _short(value: float, decimals: int = 2) -> str:
    """Return a number in few characters."""
    return f"{value:.{decimals}f}" if abs(value) < 1e4 else f"{value:.2g}"


def _interval_text(interval: Interval, scale: float = 100.0, decimals: int = 1) -> str:
    """Return the bounds, in percent by default."""
    if math.isnan(interval.low):
        return "too few days"
    return f"{_short(scale * interval.low, decimals)} … {_short(scale * interval.high, decimals)}"


def _ratio_text(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def _or_none(value: float) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return None if math.isnan(value) else value


def _bounds(interval: Interval) -> list[float | None]:
    return [_or_none(interval.low), _or_none(interval.high)]


def _interval_json(interval: Interval) -> dict[str, float | None]:
    """Return an interval for JSON."""
    return {name: _or_none(value) for name, value in interval._asdict().items()}


def evaluate(
    env: VecEnv,
    agents: Mapping[str, Agent],
    seed: int = 0,
    bound: Callable[[VecEnv], Tensor] | None = None,
) -> Evaluation:
    """Let every agent play the same episodes, one per row of the environment.

    The episodes are the first of each row under ``seed``; a row that ends stays as it is. The rows of ``env`` are
    used up.

    Args:
        env: an environment whose state is an account on a market: ``cash``, ``holdings``, ``portfolio_value`` and
            ``traded`` in ticks, ``path``, ``day`` and ``start_day``.
        agents: by name.
        seed: names the episodes and the random agents' draws.
        bound: gives a cumulative return of each episode that no account can pass, from the starts. Shape: (N,).

    Raises:
        ValueError: there is no agent, or an agent does not act for every row, or the curves do not fit in memory.
    """
    if not agents:
        raise ValueError("there is no agent to evaluate")
    # Equity and turnover of every day, in float64.
    needed = 16 * env.num_envs * (env.scenario.longest or 1) * len(agents)
    check_memory(needed, env.device, f"the curves of {env.num_envs:,} episodes of {len(agents)} agents")
    env.reset_groups(env.num_envs, 1, seed)
    path, start_day = env.state.path.clone(), env.state.start_day.clone()
    highest = None if bound is None else bound(env)
    return Evaluation(
        metadata=env.scenario.metadata(),
        seed=seed,
        symbols=env.market.symbols,
        dates=env.market.dates,
        path=path,
        start_day=start_day,
        records={name: play(env, agent, seed) for name, agent in agents.items()},
        return_bound=highest,
    )


@torch.no_grad()
def play(env: VecEnv, agent: Agent, seed: int) -> AgentRecord:
    """Play the first episode of every row under ``seed`` to its end.

    Raises:
        ValueError: the agent does not act for every row, or in another shape or type.
    """
    env.reset_groups(env.num_envs, 1, seed)
    step, tick = env.engine.bound().step, env.market.tick_size
    equity = [env.state.portfolio_value.double() * tick]
    traded: list[Tensor] = []
    cash, positions = [_cash(env)], [_positions(env)]
    while not bool(env.rows.done.all()):
        action = agent.act(env)
        if len(action) != env.num_envs:
            raise ValueError(f"{type(agent).__name__} returned {len(action)} actions for {env.num_envs} rows")
        running = ~env.rows.done
        env.rows = select_rows(running, step(env.rows, env.checked_action(action)).rows, env.rows)
        equity.append(env.state.portfolio_value.double() * tick)
        traded.append(torch.where(running, env.state.traded.double() * tick, 0.0))
        cash.append(_cash(env))
        positions.append(_positions(env))
    curves = EpisodeCurves(torch.stack(equity), torch.stack(traded), env.rows.elapsed.clone())
    return AgentRecord(curves, env.grades(), torch.stack(cash), torch.stack(positions))


def _cash(env: VecEnv) -> Tensor:
    """Return the cash of the first row. Shape: (), float64."""
    return env.state.cash[0].double() * env.market.tick_size


def _positions(env: VecEnv) -> Tensor:
    """Return what the first row's holdings are worth. Shape: (K,), float64."""
    state = env.state
    return state.holdings[0].double() * env.market.ohlcv[state.path[0], state.day[0], :, CLOSE].double()
