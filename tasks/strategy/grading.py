"""Grades of programs: each plays many common paths of a market with the full account of `stock_trading`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from vecenv.core.checks import form
from vecenv.core.engine import Engine
from vecenv.core.rows import owned, select_rows
from vecenv.finance.metrics import drawdowns, independent_groups
from vecenv.market.bars import CLOSE
from vecenv.market.tape import MarketTape
from vecenv.programs.evaluation import Evaluator
from vecenv.programs.expressions import Program
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.law import StockState, Tensors
from vecenv.tasks.stock_trading.programs import (
    account_features,
    action_of,
    market_features,
    refuse_other_rules,
    vocabulary_of,
)
from vecenv.tasks.stock_trading.scenario import StockTrading
from vecenv.tasks.strategy.accounts import Played, in_native_form, played_natively

PATHS, ACCOUNTS = 256, 16384
"""Paths and accounts that are played at a time."""

ROUNDING = 1e-5
"""Part of an account by which purchases of fractional shares may pass its cash by rounding."""


@dataclass(frozen=True)
class Grades:
    """What P programs made on M common paths.

    Attributes:
        grade: of the scenario, in [0, 1]. Shape: (P, M), float32.
        total_return: last value over the first, less 1. Shape: (P, M), float64.
        drawdown: largest loss from an earlier peak as a share of the peak, at the closes. Shape: (P, M), float64.
        turnover: purchases plus sales over the mean value at the start of a day, per year. Shape: (P, M), float64.
        refusals: entries of actions that were no numbers, and days on which cash did not cover the purchases. Shape:
            (P, M), int64.
        groups: of the paths; grades of one group are not independent. Shape: (M,), int64.
    """

    grade: Tensor
    total_return: Tensor
    drawdown: Tensor
    turnover: Tensor
    refusals: Tensor
    groups: Tensor

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
        config: rules of the account; reward and random starts have no effect.
        tape: market with the features and series of the config.
        native: play in C++ where there is a compiler, on a CPU, by rules that `in_native_form` names.

    Raises:
        ValueError: market and rules do not fit each other.
    """

    def __init__(self, config: StockTradingConfig, tape: MarketTape, native: bool = True) -> None:
        self.config = replace(config, reward="delta_value", random_start=False, min_episode_length=0)
        self.tape, self.scenario = tape, StockTrading(tape, self.config)
        self.vocabulary = vocabulary_of(self.config)
        self.native = native and in_native_form(self.scenario)
        self._bound = Engine(self.scenario, 1).bound()

    def grades(self, programs: Sequence[Program], paths: Tensor | None = None, days: Tensor | None = None) -> Grades:
        """Return what programs make on some paths of the tape, by default on each, from its first day.

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
        days = torch.full_like(paths, tape.first_day) if days is None else days
        self._check("paths", paths, len(paths), 0, tape.num_paths - 1)
        self._check("days", days, len(paths), tape.first_day, tape.num_days - 1 - self.config.episode_length)
        distinct = len(paths.unique()) == len(paths)
        groups = torch.arange(len(paths)) if distinct else independent_groups(paths, days, 1)[0]
        most = ACCOUNTS // min(PATHS, len(paths))
        found = []
        for first in range(0, len(programs), most):
            some = programs[first : first + most]
            parts = zip(paths.split(PATHS), days.split(PATHS), strict=True)
            columns = [self._part(some, *part) for part in parts]
            found.append([torch.cat(values, 1) for values in zip(*columns, strict=True)])
        grade, total_return, drawdown, turnover, refusals = (torch.cat(part) for part in zip(*found, strict=True))
        return Grades(grade, total_return, drawdown, turnover, refusals, groups)

    @staticmethod
    def _check(name: str, values: Tensor, count: int, low: int, high: int) -> None:
        if values.shape != (count,) or not count or values.dtype != torch.int64:
            raise ValueError(f"{name} must be a vector of int64, one for each path, got {form(values)}")
        if int(values.min()) < low or int(values.max()) > high:
            raise ValueError(f"{name} must be in [{low}, {high}], got {int(values.min())} to {int(values.max())}")

    def _part(self, programs: Sequence[Program], paths: Tensor, days: Tensor) -> list[Tensor]:
        """Return the fields of `Grades` but the groups. Shape of each: (P, M)."""
        shape, state = (len(programs), len(paths)), self.opened(paths, days)
        value, traded, refusals, lived = self._play(programs, paths, days, state)
        last = state[torch.arange(len(paths), device=paths.device).repeat(len(programs))]
        worth = value[-1].flatten().to(state.portfolio_value.dtype)
        last = last.replace(portfolio_value=worth, day=last.start_day + lived.flatten())
        grade = self._bound.mapped(self.scenario.grade, last)
        running = torch.arange(len(traded), device=paths.device)[:, None, None] < lived
        invested = torch.where(running, value[:-1], 0.0).sum(0)
        turnover = traded.sum(0) / invested.clamp(min=1e-12) * self.tape.periods_per_year
        money = value * self.tape.tick_size
        total = money[-1] / money[0] - 1.0
        return [grade.view(shape), total, drawdowns(money).max(0).values, turnover, refusals]

    def _play(self, programs: Sequence[Program], paths: Tensor, days: Tensor, state: StockState) -> Played:
        play = played_natively if self.native else played_by_law
        return play(self.scenario, programs, paths, days, state)

    def opened(self, paths: Tensor, days: Tensor) -> StockState:
        """Return the accounts at the start of some episodes. Batch: (M,)."""

        def one(path: Tensor, day: Tensor, params: Tensors, shared: Tensors) -> StockState:
            return self.scenario.opened(path, day, params["episode_length"], params, shared)

        return owned(self._bound.mapped(one, paths, days))


def played_by_law(
    scenario: StockTrading, programs: Sequence[Program], paths: Tensor, days: Tensor, state: StockState
) -> Played:
    """Play programs as `played_natively` does, by the scenario's own functions: the reference, of any rules."""
    tape, shape = scenario.tape, (len(programs), len(paths))
    evaluator = Evaluator(programs, own_accounts=True, device=tape.device)
    # Of the paths that are played alone, and of the days that programs read there.
    distinct, place = paths.unique(return_inverse=True)
    early = max(0, int(days.min()) + 1 - evaluator.graph.history())
    late = int(days.max()) + scenario.config.episode_length
    features = market_features(tape, [*evaluator.features, "close"])
    ahead = evaluator.ahead({name: values[distinct, early:late] for name, values in features.items()})

    def decide(elapsed: int, account: Tensors) -> Tensor:
        own = {name: account[name].unflatten(0, shape) for name in evaluator.account_features}
        return evaluator.step(ahead[:, place, days - early + elapsed], own)[:, 0].flatten(0, 1)

    return played(scenario, decide, len(programs), paths, days, state)


Decide = Callable[[int, Tensors], Tensor]
"""Given the days since the start and the features of P × M accounts, the outputs (P × M, K) of that day."""


@torch.no_grad()
def played(
    scenario: StockTrading, decide: Decide, count: int, paths: Tensor, days: Tensor, state: StockState
) -> Played:
    """Play what decides for P programs on M paths by the scenario's own functions, from accounts of each path."""
    tape, shape, bound = scenario.tape, (count, len(paths)), Engine(scenario, 1).bound()
    closes, hmax = tape.ohlcv[..., CLOSE], scenario.params["hmax"]

    def one(state: StockState, action: Tensor, params: Tensors, shared: Tensors) -> tuple[StockState, Tensor]:
        after = scenario.step(state, action, params, shared)
        return after, scenario.terminated(after, params, shared)

    state = state[torch.arange(len(paths), device=paths.device).repeat(count)]
    ended, refusals = torch.zeros_like(state.day, dtype=torch.bool), torch.zeros_like(state.day)
    value, traded = [state.portfolio_value.double()], []
    for elapsed in range(scenario.config.episode_length):
        account = account_features(state, closes[state.path, state.day], tape.tick_size)
        after, over = bound.mapped(one, state, action_of(scenario.config, decide(elapsed, account), hmax))
        refused = after.invalid_actions - state.invalid_actions + _cut(scenario, after)
        refusals += torch.where(ended, 0, refused)
        traded.append(torch.where(ended, 0.0, after.traded.double()))
        # An account that is worth nothing stays as it is.
        state, ended = select_rows(ended, state, after), ended | over
        value.append(state.portfolio_value.double())
    worth, moved = (torch.stack(column).unflatten(1, shape) for column in (value, traded))
    return Played(worth, moved, refusals.view(shape), (state.day - state.start_day).view(shape))


def _cut(scenario: StockTrading, after: StockState) -> Tensor:
    """Return where cash did not cover the purchases of a day, of fractional shares by more than a rounding. (B,)."""
    if scenario.config.whole_shares:
        return after.buy_ratio < 1.0
    # No more than this: what was traded are purchases, after the cut, and sales.
    lacking = after.traded * (1.0 / after.buy_ratio.clamp(min=1e-12) - 1.0)
    return (after.buy_ratio <= 0.0) | (lacking > ROUNDING * after.portfolio_value)
