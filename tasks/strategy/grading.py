"""Grades of programs: each plays many common paths of a market with a full account, by the law of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from vecenv.core.checks import form
from vecenv.core.engine import Engine
from vecenv.core.rows import owned, select_rows
from vecenv.finance.metrics import drawdowns, independent_groups
from vecenv.finance.programs import Strategies, refuse_other_rules
from vecenv.market.tape import MarketTape
from vecenv.programs.evaluation import Evaluator
from vecenv.programs.expressions import Program
from vecenv.registry import task_named
from vecenv.tasks.stock_trading.scenario import StockTrading
from vecenv.tasks.strategy.accounts import Played, in_native_form, played_natively

PATHS, ACCOUNTS = 256, 16384
"""Paths and accounts that are played at a time."""


@dataclass(frozen=True)
class Grades:
    """What P programs made on M common paths.

    Attributes:
        grade: of the scenario, in [0, 1]. Shape: (P, M), float32.
        total_return: last value over the first, less 1. Shape: (P, M), float64.
        drawdown: largest loss from an earlier peak as a share of the peak, at the closes. Shape: (P, M), float64.
        turnover: purchases plus sales over the mean value at the start of a day, per year. Shape: (P, M), float64.
        refusals: orders that were cut or refused, and invalid actions, as the task counts them. Shape: (P, M), int64.
        groups: of the paths; grades of one group are not independent. Shape: (M,), int64.
        told: what else the task tells of an account's end, by name. Shape of each: (P, M).
    """

    grade: Tensor
    total_return: Tensor
    drawdown: Tensor
    turnover: Tensor
    refusals: Tensor
    groups: Tensor
    told: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def mean(self) -> Tensor:
        """Mean grade. Shape: (P,), float64."""
        return self.grade.double().mean(1)

    @cached_property
    def standard_error(self) -> Tensor:
        """Standard error of the mean grade, the delete-a-group jackknife's; NaN with one group. Shape: (P,), float64.

        With a group for each path it is the standard deviation over the root of M.
        """
        counts = torch.bincount(self.groups)
        if len(counts) < 2:
            return torch.full_like(self.mean, torch.nan)
        grade = self.grade.double()
        sums = grade.new_zeros(len(grade), len(counts)).index_add(1, self.groups, grade)
        without = (sums.sum(1, keepdim=True) - sums) / (grade.shape[1] - counts)
        variance = (without - without.mean(1, keepdim=True)).square().sum(1) * (len(counts) - 1) / len(counts)
        return variance.sqrt()


class Grader:
    """Plays programs on paths of a market: an account of its own for each program and path, of full length.

    Args:
        task: name of a task that programs play.
        config: of the task; a random start has no effect.
        tape: market with the features and series of the config.
        native: play in C++ where there is a compiler, on a CPU, by the rules that `in_native_form` names.

    Raises:
        ValueError: market and rules do not fit each other.
    """

    def __init__(self, task: str, config: Any, tape: MarketTape, native: bool = True) -> None:  # noqa: ANN401
        record = task_named(task)
        self.strategies: Strategies = record.check_programs()
        self.config, self.tape = self.strategies.full(config), tape
        self.scenario: Any = record.build(tape, self.config)
        self.vocabulary = self.strategies.vocabulary(self.config)
        self.native = native and type(self.scenario) is StockTrading and in_native_form(self.scenario)
        self.first_day = self.strategies.first_day(self.scenario)
        self._bound = Engine(self.scenario, 1).bound()

    def grades(self, programs: Sequence[Program], paths: Tensor | None = None, days: Tensor | None = None) -> Grades:
        """Return what programs make on some paths of the tape, by default on each, from the first day.

        Args:
            programs: P programs of the config's vocabulary.
            paths: of the tape. Shape: (M,), int64.
            days: at whose closes the episodes start. Shape: (M,), int64.

        Raises:
            ValueError: there is no program, one was read for other rules, or an episode is not on the tape.
        """
        tape = self.tape
        if not programs:
            raise ValueError("there must be a program to grade")
        refuse_other_rules(programs, self.vocabulary)
        paths = torch.arange(tape.num_paths, device=tape.device) if paths is None else paths
        days = torch.full_like(paths, self.first_day) if days is None else days
        self._check("paths", paths, len(paths), 0, tape.num_paths - 1)
        self._check("days", days, len(paths), self.first_day, tape.num_days - 1 - self.scenario.longest)
        distinct = len(paths.unique()) == len(paths)
        groups = torch.arange(len(paths)) if distinct else independent_groups(paths, days, 1)[0]
        most = ACCOUNTS // min(PATHS, len(paths))
        rows = []
        for first in range(0, len(programs), most):
            some = programs[first : first + most]
            parts = zip(paths.split(PATHS), days.split(PATHS), strict=True)
            rows.append(_joined([self._part(some, *part) for part in parts], 1))
        found = _joined(rows, 0)
        own = {name: found.pop(name) for name in MADE}
        return Grades(**own, groups=groups, told=found)

    @staticmethod
    def _check(name: str, values: Tensor, count: int, low: int, high: int) -> None:
        if values.shape != (count,) or not count or values.dtype != torch.int64:
            raise ValueError(f"{name} must be a vector of int64, one for each path, got {form(values)}")
        if int(values.min()) < low or int(values.max()) > high:
            raise ValueError(f"{name} must be in [{low}, {high}], got {int(values.min())} to {int(values.max())}")

    def _part(self, programs: Sequence[Program], paths: Tensor, days: Tensor) -> dict[str, Tensor]:
        """Return the fields of `Grades` but the groups, and what is told. Shape of each: (P, M)."""
        shape, played = (len(programs), len(paths)), self._play(programs, paths, days, self.opened(paths, days))
        running = torch.arange(len(played.traded), device=paths.device)[:, None, None] < played.days
        invested = torch.where(running, played.value[:-1], 0.0).sum(0)
        money, year = played.value * self.tape.tick_size, self.tape.periods_per_year
        told = self.strategies.told(self.scenario, played.last, played.reward)
        return {name: values.view(shape) for name, values in told.items()} | {
            "grade": self._bound.mapped(self.scenario.grade, played.last).view(shape),
            "total_return": money[-1] / money[0] - 1.0,
            "drawdown": drawdowns(money).max(0).values,
            "turnover": played.traded.sum(0) / invested.clamp(min=1e-12) * year,
            "refusals": played.refusals,
        }

    def _play(self, programs: Sequence[Program], paths: Tensor, days: Tensor, state: Any) -> Played:  # noqa: ANN401
        if self.native:
            return played_natively(self.scenario, programs, paths, days, state)
        return played_by_law(self.strategies, self.scenario, programs, paths, days, state)

    def opened(self, paths: Tensor, days: Tensor) -> Any:  # noqa: ANN401
        """Return the accounts at the start of some episodes. Batch: (M,)."""
        return owned(self._bound.mapped(partial(self.strategies.opened, self.scenario), paths, days))


MADE = ("grade", "total_return", "drawdown", "turnover", "refusals")
"""Fields of `Grades` that are numbers of accounts."""


def _joined(parts: Sequence[Mapping[str, Tensor]], dimension: int) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts], dimension) for name in parts[0]}


def played_by_law(
    strategies: Strategies,
    scenario: Any,  # noqa: ANN401
    programs: Sequence[Program],
    paths: Tensor,
    days: Tensor,
    state: Any,  # noqa: ANN401
) -> Played:
    """Play programs as `played_natively` does, by the scenario's own functions: the reference, of any rules."""
    evaluator = Evaluator(programs, own_accounts=True, device=scenario.tape.device)
    # Of the paths that are played alone, and of the days that programs read there.
    distinct, place = paths.unique(return_inverse=True)
    early, late = max(0, int(days.min()) + 1 - evaluator.graph.history()), int(days.max()) + scenario.longest
    features = strategies.market(scenario, [*evaluator.features, "close"])
    ahead = evaluator.ahead({name: values[distinct, early:late] for name, values in features.items()})

    def decide(elapsed: int, account: Mapping[str, Tensor]) -> Tensor:
        own = {name: account[name].unflatten(0, (len(programs), -1)) for name in evaluator.account_features}
        return evaluator.step(ahead[:, place, days - early + elapsed], own)[:, 0].flatten(0, 1)

    return played(strategies, scenario, decide, len(programs), state)


Decide = Callable[[int, Mapping[str, Tensor]], Tensor]
"""Given the days since the start and the features of P × M accounts, the outputs (P × M, K) of that day."""


@torch.no_grad()
def played(strategies: Strategies, scenario: Any, decide: Decide, count: int, state: Any) -> Played:  # noqa: ANN401
    """Play what decides for P programs by the scenario's own functions, each from the accounts of M paths."""
    shape, bound = (count, len(state)), Engine(scenario, 1).bound()

    def one(state: Any, action: Tensor, params: Any, shared: Any) -> tuple[Any, Tensor, Tensor]:  # noqa: ANN401
        after = scenario.step(state, action, params, shared)
        paid = scenario.reward(state, action, after, params, shared)
        return after, paid, scenario.terminated(after, params, shared)

    state = state[torch.arange(len(state), device=state.day.device).repeat(count)]
    ended, refusals = torch.zeros_like(state.day, dtype=torch.bool), torch.zeros_like(state.day)
    value, traded, reward = [state.portfolio_value.double()], [], torch.zeros_like(state.day, dtype=torch.float64)
    for elapsed in range(scenario.longest):
        action = strategies.action(scenario, decide(elapsed, strategies.account(scenario, state)))
        after, paid, over = bound.mapped(one, state, action)
        refusals += torch.where(ended, 0, strategies.refused(scenario, state, after))
        reward += torch.where(ended, 0.0, paid.double())
        traded.append(torch.where(ended, 0.0, after.traded.double()))
        # An account that is worth nothing stays as it is.
        state, ended = select_rows(ended, state, after), ended | over
        value.append(state.portfolio_value.double())
    worth, moved = (torch.stack(column).unflatten(1, shape) for column in (value, traded))
    lived = (state.day - state.start_day).view(shape)
    return Played(worth, moved, refusals.view(shape), lived, state, reward)
