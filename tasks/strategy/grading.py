"""Grades of programs: each plays many common paths of a market with the full account of `stock_trading`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from vecenv.core.checks import form
from vecenv.core.compiling import FirstCallCompiled
from vecenv.core.engine import Engine
from vecenv.core.rows import leaf_names, leaves, owned, select_rows, with_leaves
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

ROWS = 4096
"""Accounts that are stepped at a time."""

_CHANGED = ("cash", "holdings", "portfolio_value", "average_price", "day", "traded")
"""What a day changes of an account that grades or the next day depend on."""


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
        compiled: compile the day of `ROWS` accounts when it is first needed; no program is ever compiled.

    Raises:
        ValueError: market and rules do not fit each other.
    """

    def __init__(self, config: StockTradingConfig, tape: MarketTape, compiled: bool = False) -> None:
        self.config = replace(config, reward="delta_value", random_start=False, min_episode_length=0)
        self.tape, self.compiled = tape, compiled
        self.scenario = StockTrading(tape, self.config)
        self.vocabulary = vocabulary_of(self.config)
        self._engine = Engine(self.scenario, ROWS)
        self._closes = tape.ohlcv[..., CLOSE].flatten(0, 1).contiguous()
        self._form = self._opened(*torch.zeros(2, 1, dtype=torch.int64, device=tape.device))
        self._names = leaf_names(self._form)
        self._following = FirstCallCompiled(self._day, lambda: compiled, **self.scenario.compile_options)

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
        most = max(1, ROWS // len(paths))
        found = []
        for first in range(0, len(programs), most):
            some = programs[first : first + most]
            parts = zip(paths.split(ROWS), days.split(ROWS), strict=True)
            columns = [self._played(some, *part) for part in parts]
            found.append([torch.cat(values, 1) for values in zip(*columns, strict=True)])
        return Grades(*(torch.cat(part) for part in zip(*found, strict=True)), groups)

    @staticmethod
    def _check(name: str, values: Tensor, count: int, low: int, high: int) -> None:
        if values.shape != (count,) or not count or values.dtype != torch.int64:
            raise ValueError(f"{name} must be a vector of int64, one for each path, got {form(values)}")
        if int(values.min()) < low or int(values.max()) > high:
            raise ValueError(f"{name} must be in [{low}, {high}], got {int(values.min())} to {int(values.max())}")

    @torch.no_grad()
    def _played(self, programs: Sequence[Program], paths: Tensor, days: Tensor) -> list[Tensor]:
        """Return the fields of `Grades` but the groups. Shape of each: (P, M)."""
        tape, length, shape = self.tape, self.config.episode_length, (len(programs), len(paths))
        evaluator = Evaluator(programs, own_accounts=True, device=tape.device)
        # Of the paths that are played alone, and of the days that programs read there.
        played, place = paths.unique(return_inverse=True)
        early, late = max(0, int(days.min()) - evaluator.graph.history()), int(days.max()) + length
        features = market_features(tape, [*evaluator.features, "close"])
        ahead = evaluator.ahead({name: values[played, early:late] for name, values in features.items()})
        count = len(programs) * len(paths)
        # Compiled code has always as many rows: the first ones again.
        row = torch.arange(ROWS if self.compiled else count, device=tape.device) % count % len(paths)
        fixed = self._opened(paths[row], days[row])
        shown = self._shown(fixed, self._closes)
        start = [*(getattr(fixed, name) for name in _CHANGED), torch.zeros_like(row), torch.zeros_like(row)]
        now = [values.clone() for values in (*start, *shown.values())]
        after, output = [torch.empty_like(values) for values in now], torch.zeros_like(shown["held"])
        worth, traded = [fixed.portfolio_value[:count]], []
        for elapsed in range(length):
            account = dict(zip(shown, now[len(start) :], strict=True))
            own = {name: account[name][:count].unflatten(0, shape) for name in evaluator.account_features}
            output[:count] = evaluator.step(ahead[:, place, days - early + elapsed], own)[:, 0].flatten(0, 1)
            given = [*self._engine.inputs, self._closes, *leaves(fixed), output, *now[: len(start)]]
            self._following(given, after)
            now, after = after, now
            worth.append(now[_CHANGED.index("portfolio_value")][:count].clone())
            traded.append(now[_CHANGED.index("traded")][:count].clone())
        state = fixed.replace(**dict(zip(_CHANGED, now, strict=False)))
        grade = self._engine.bound().mapped(self.scenario.grade, state)[:count]
        money, moved = (torch.stack(column).double() * tape.tick_size for column in (worth, traded))
        lived = torch.arange(length, device=tape.device)[:, None] < (state.day - state.start_day)[:count]
        invested = torch.where(lived, money[:-1], 0.0).sum(0)
        turnover = moved.sum(0) / invested.clamp(min=1e-12) * tape.periods_per_year
        refusals = now[len(_CHANGED)][:count]
        found = [grade, money[-1] / money[0] - 1.0, drawdowns(money).max(0).values, turnover, refusals]
        return [values.unflatten(0, shape) for values in found]

    def _opened(self, paths: Tensor, days: Tensor) -> StockState:
        def one(path: Tensor, day: Tensor, params: Tensors, shared: Tensors) -> StockState:
            return self.scenario.opened(path, day, params["episode_length"], params, shared)

        return owned(self._engine.bound().mapped(one, paths, days))

    def _shown(self, state: StockState, closes: Tensor) -> dict[str, Tensor]:
        return account_features(state, closes[state.path * self.tape.num_days + state.day], self.tape.tick_size)

    def _day(self, *tensors: Tensor) -> list[Tensor]:
        """Return accounts and their features after a day, from those before and what the programs said."""
        first, last = len(self._engine.inputs), len(self._names)
        bound, closes = self._engine.bind(list(tensors[:first])), tensors[first]
        fixed, (output, *changing) = tensors[first + 1 : first + 1 + last], tensors[first + 1 + last :]
        *changed, refusals, over = changing
        now = dict(zip(self._names, fixed, strict=True)) | dict(zip(_CHANGED, changed, strict=True))
        state = with_leaves(self._form, [now[name] for name in self._names], output.shape[:1])

        def one(state: StockState, action: Tensor, params: Tensors, shared: Tensors) -> tuple[StockState, Tensor]:
            after = self.scenario.step(state, action, params, shared)
            return after, self.scenario.terminated(after, params, shared).to(torch.int64)

        after, ended = bound.mapped(one, state, action_of(self.config, output, bound.params["hmax"]))
        refused = after.invalid_actions + (after.buy_ratio < 1.0)
        # An account that is worth nothing stays as it is.
        after = select_rows(over > 0, state.replace(traded=torch.zeros_like(state.traded)), after)
        counted = [refusals + torch.where(over > 0, 0, refused), torch.maximum(over, ended)]
        return [*(getattr(after, name) for name in _CHANGED), *counted, *self._shown(after, closes).values()]
