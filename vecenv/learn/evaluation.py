"""Evaluation of agents on the same episodes: grades, outcomes and trading metrics with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.memory import check_memory
from vecenv.learn.agents import Agent
from vecenv.learn.metrics import EpisodeCurves, Interval, Summary, independent_groups, summarise
from vecenv.learn.significance import bootstrap_interval, deflated_sharpe, returns_by_day
from vecenv.market.account import AccountView
from vecenv.registry import BEST_RULE, task_of


@dataclass(frozen=True)
class AccountRecord:
    """Accounts of one agent in N episodes, money in currency.

    Attributes:
        positions: value of the holdings in the first episode. Shape: (T + 1, K), float64.
    """

    curves: EpisodeCurves
    positions: Tensor


@dataclass(frozen=True)
class AgentRecord:
    """Results of one agent in N episodes.

    Attributes:
        grades: of every episode in [0, 1], by grader. Shape of each: (N,).
        outcomes: episode outcomes by name. Shape of each: (N,).
        reward: sum of the rewards of every episode. Shape: (N,), float64.
        length: steps of every episode. Shape: (N,), int64.
        account: of a trading task; else None.
        grade_parts: what the grade is made of, if it has parts. Shape of each: (N,).
    """

    grades: dict[str, Tensor]
    outcomes: dict[str, Tensor]
    reward: Tensor
    length: Tensor
    account: AccountRecord | None
    grade_parts: dict[str, Tensor] = field(default_factory=dict)

    @property
    def curves(self) -> EpisodeCurves:
        """Equity, traded value, cash and length of every episode; ValueError of a task that does not trade."""
        if self.account is None:
            raise ValueError("the task has no accounts")
        return self.account.curves


@dataclass(frozen=True)
class Traded:
    """Market positions of the episodes of a trading task.

    Attributes:
        dates: of the market. Shape: (T,), datetime64.
        path: of each episode. Shape: (N,).
        start_day: of each episode. Shape: (N,).
        return_bound: upper bound of the cumulative return, None without one. Shape: (N,).
    """

    symbols: tuple[str, ...]
    dates: np.ndarray
    path: Tensor
    start_day: Tensor
    return_bound: Tensor | None


@dataclass(frozen=True)
class Evaluation:
    """Records of agents that all played the same N episodes.

    Attributes:
        metadata: of the task and its market, from the scenario.
        traded: market positions of the episodes; None for a task that does not trade.
        reference: name of the agent to which differences are taken, if it played.
        hindsight: name of the agent that sees the future.
        units: of the outcomes, by name: ``currency``, ``share`` or ``count``.
        blocks: of each episode; those of one block are not independent. Shape: (N,), int64.
        beside_account: names of the outcomes of a trading task that are shown beside the metrics of its account.
        scale: what values of the grade mean.
        part: of the data that the episodes are of, such as ``test``, where it is known.
    """

    metadata: dict[str, Any]
    seed: int
    num_episodes: int
    records: dict[str, AgentRecord]
    traded: Traded | None
    reference: str
    hindsight: str
    units: Mapping[str, str]
    blocks: Tensor
    beside_account: Sequence[str] = ()
    scale: str = ""
    part: str = ""

    @property
    def market(self) -> Traded:
        """Market positions of the episodes; ValueError of a task that does not trade."""
        if self.traded is None:
            raise ValueError(f"{self.metadata['task']} does not trade")
        return self.traded

    def with_record(self, name: str, record: AgentRecord) -> Evaluation:
        """Return the evaluation with another agent that played the same episodes."""
        return replace(self, records={**self.records, name: record})

    @cached_property
    def _groups(self) -> Tensor:
        """Group of each day of each episode; without a market its block. Shape: (T, N)."""
        if self.traded is None:
            return self.blocks.unsqueeze(0)
        longest = max(len(record.curves.traded) for record in self.records.values())
        return independent_groups(self.traded.path, self.traded.start_day, longest)

    def interval(self, values: Tensor) -> Interval:
        """Return the mean of per-episode values with its bootstrap interval. Shape: (N,)."""
        return bootstrap_interval(values, self._groups[0].to(values.device))

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Means of the account metrics, by agent; empty for a task that does not trade."""
        if self.traded is None:
            return {}
        return {name: summarise(record.curves, self._groups) for name, record in self.records.items()}

    @cached_property
    def grades(self) -> dict[str, dict[str, Interval]]:
        """Mean grades with bootstrap intervals, by agent and grader."""
        return {
            name: {grader: self.interval(grade) for grader, grade in record.grades.items()}
            for name, record in self.records.items()
        }

    @cached_property
    def outcomes(self) -> dict[str, dict[str, Interval]]:
        """Mean outcomes with bootstrap intervals, by agent and name."""
        return {
            name: {outcome: self.interval(values.double()) for outcome, values in record.outcomes.items()}
            for name, record in self.records.items()
        }

    @cached_property
    def reward_differences(self) -> dict[str, Interval]:
        """Mean reward of an episode minus the reference's, with bootstrap intervals, by agent."""
        reference = self.records.get(self.reference)
        if reference is None:
            return {}
        others = {name: record for name, record in self.records.items() if name != self.reference}
        return {name: self.interval(record.reward - reference.reward) for name, record in others.items()}

    @cached_property
    def excess_log_returns(self) -> dict[str, Interval]:
        """Mean log-return of an episode minus the reference's, with bootstrap intervals, by agent."""
        reference = self.records.get(self.reference)
        if reference is None or self.traded is None:
            return {}
        held = reference.curves.log_growth[-1]
        return {
            name: self.interval(record.curves.log_growth[-1] - held)
            for name, record in self.records.items()
            if name != self.reference
        }

    @cached_property
    def shares_of_best(self) -> dict[str, Interval]:
        """Excess log-return as a share of the best rule's, a ratio of two means whose interval is linearised, by agent.

        Empty if no best rule played, or it has no excess.
        """
        if BEST_RULE not in self.excess_log_returns or self.excess_log_returns[BEST_RULE].mean <= 0:
            return {}
        held = self.records[self.reference].curves.log_growth[-1]
        best = self.records[BEST_RULE].curves.log_growth[-1] - held
        shares = {}
        for name, excess in self.excess_log_returns.items():
            share = excess.mean / float(best.mean())
            own = self.records[name].curves.log_growth[-1] - held
            around = self.interval((own - share * best) / best.mean())
            shares[name] = Interval(share, share + around.low, share + around.high)
        return shares

    @cached_property
    def deflated_sharpes(self) -> dict[str, float]:
        """Deflated Sharpe ratios, by agent; NaN for those that know the future or the law, no trials."""
        if self.traded is None:
            return {}
        knowing = [name for name in (self.hindsight, BEST_RULE) if name in self.records]
        tried = {
            name: returns_by_day(record.curves.returns, record.curves.lived, self.traded.path, self.traded.start_day)
            for name, record in self.records.items()
            if name not in knowing
        }
        return {**dict.fromkeys(knowing, math.nan), **deflated_sharpe(tried)}

    def to_json(self) -> dict[str, Any]:
        """Return the comparison: grades, outcomes or metrics and differences to the reference, with 95% intervals."""
        result: dict[str, Any] = {"num_episodes": self.num_episodes, "seed": self.seed, **self.metadata, "agents": {}}
        if self.traded is not None and self.traded.return_bound is not None:
            result["return_bound"] = float(self.traded.return_bound.mean())
        for name, grades in self.grades.items():
            entry: dict[str, Any] = {
                grader: {"mean": interval.mean, "ci": _bounds(interval)} for grader, interval in grades.items()
            }
            if parts := self.records[name].grade_parts:
                entry["grade_parts"] = {part: float(values.double().mean()) for part, values in parts.items()}
            result["agents"][name] = entry | (self._outcomes_json(name) if self.traded is None else self._metrics(name))
        return result

    def _outcomes_json(self, name: str) -> dict[str, Any]:
        told = {outcome: _interval_json(interval) for outcome, interval in self.outcomes[name].items()}
        entry: dict[str, Any] = {"reward": _interval_json(self.interval(self.records[name].reward)), **told}
        if name in self.reward_differences:
            entry[f"minus_{self.reference}"] = {"reward": _interval_json(self.reward_differences[name])}
        return entry

    def _metrics(self, name: str) -> dict[str, Any]:
        summary, reference = self.summaries[name], self.summaries.get(self.reference)
        entry: dict[str, Any] = {metric: _interval_json(summary.interval(metric)) for metric in summary.mean}
        exposure = self.records[name].curves.mean_exposure()
        entry["exposure_by_day"] = [_or_none(round(share, 4)) for share in exposure.tolist()]
        entry |= {outcome: _interval_json(self.outcomes[name][outcome]) for outcome in self.beside_account}
        entry["deflated_sharpe"] = _or_none(self.deflated_sharpes[name])
        if name in self.excess_log_returns:
            entry["excess_log_return"] = _interval_json(self.excess_log_returns[name])
        if name in self.shares_of_best and name != BEST_RULE:
            entry["share_of_best"] = _interval_json(self.shares_of_best[name])
        if reference is not None and name != self.reference:
            entry[f"minus_{self.reference}"] = {
                metric: _interval_json(summary.interval(metric, reference)) for metric in summary.mean
            }
        return entry


def _or_none(value: float) -> float | None:
    """Return None for NaN, which JSON lacks."""
    return None if math.isnan(value) else value


def _bounds(interval: Interval) -> list[float | None]:
    return [_or_none(interval.low), _or_none(interval.high)]


def _interval_json(interval: Interval) -> dict[str, float | None]:
    return {name: _or_none(value) for name, value in interval._asdict().items()}


def evaluate(env: VecEnv, agents: Mapping[str, Agent], seed: int = 0, eager: bool = False) -> Evaluation:
    """Play the same episodes with every agent, one per row of the environment, whose rows are overwritten.

    The episodes are the first of each row under ``seed``, without auto-reset.

    Args:
        env: the environment; its task declares the episode outcomes.
        agents: by name.
        seed: of the episodes and of random agents.
        eager: step eagerly even if the environment is compiled: faster than compiling for one pass.

    Raises:
        ValueError: there is no agent, or an agent does not act for every row, or the curves do not fit in memory.
    """
    if not agents:
        raise ValueError("there is no agent to evaluate")
    # Equity, turnover and cash of every day, in float64.
    needed = 24 * env.num_envs * (env.scenario.longest or 1) * len(agents)
    check_memory(needed, env.device, f"the curves of {env.num_envs:,} episodes of {len(agents)} agents")
    env.reset_groups(env.num_envs, 1, seed)
    task = task_of(env)
    # Those of one world are one block.
    worlds = torch.arange(env.num_envs) // env.scenario.num_agents
    blocks = worlds if task.blocks is None else task.blocks(env.state).cpu()
    traded = None
    if task.account is not None:
        tape = task.account.tape(env)
        # Before the first step: the bound is computed at the start of episodes.
        bound = None if task.bound is None else task.bound(env)
        path, start_day = env.state.path.clone(), env.state.start_day.clone()
        traded = Traded(tape.symbols, tape.dates, path, start_day, bound)
    return Evaluation(
        metadata=env.scenario.metadata(),
        seed=seed,
        num_episodes=env.num_envs,
        records={name: play(env, agent, seed, eager) for name, agent in agents.items()},
        traded=traded,
        reference=task.reference,
        hindsight=task.hindsight,
        units=env.scenario.outcomes,
        blocks=blocks,
        beside_account=task.beside_account,
        scale=task.scale,
    )


@torch.no_grad()
def play(env: VecEnv, agent: Agent, seed: int, eager: bool = False) -> AgentRecord:
    """Play the first episode of every row under ``seed`` to its end.

    Raises:
        ValueError: the agent does not act for every row, or its actions have another shape or type.
    """
    env.reset_groups(env.num_envs, 1, seed)
    account = task_of(env).account
    views = [] if account is None else [account.view(env)]
    rewards = torch.zeros(env.num_envs, dtype=torch.float64, device=env.rows.elapsed.device)
    while not bool(env.rows.done.all()):
        action = agent.act(env)
        if len(action) != env.num_envs:
            raise ValueError(f"{type(agent).__name__} returned {len(action)} actions for {env.num_envs} rows")
        running = ~env.rows.done
        rewards += env.advance(action, eager=eager or not env.compiled).double()
        if account is not None:
            now = account.view(env)
            views.append(now._replace(traded=torch.where(running, now.traded, 0.0)))
    info, length = env.info(), env.rows.elapsed.clone()
    told = {name: info[name] for name in env.scenario.outcomes}
    accounts = None if account is None else _account_record(views, length, account.tape(env).periods_per_year)
    return AgentRecord(env.grades(), told, rewards, length, accounts, env.engine.bound().grade_parts(env.rows))


def _account_record(views: list[AccountView], length: Tensor, year: float) -> AccountRecord:
    equity, traded, cash, positions = (torch.stack(column) for column in zip(*views, strict=True))
    return AccountRecord(EpisodeCurves(equity, traded[1:], cash, length, year), positions)
