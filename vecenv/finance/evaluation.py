"""Evaluation of agents that trade: the metrics of their accounts with confidence intervals, and market positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vecenv.finance.account_figures import drawdown_figure, equity_figure, exposure_figure, holdings_figure
from vecenv.finance.metrics import (
    EpisodeCurves,
    Summary,
    deflated_sharpe,
    independent_groups,
    returns_by_day,
    summarise,
    sums_interval,
    values_interval,
)
from vecenv.finance.worst_days import worst_days, worst_days_figure, worst_days_json
from vecenv.learn.domain import BEST_RULE, AgentRecord
from vecenv.learn.evaluation import Evaluation
from vecenv.learn.intervals import Interval, interval_json, interval_text, or_none, scaled_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

_COLUMNS = (
    ("Sharpe", "sharpe", 1.0),
    ("Max\nDD %", "max_drawdown", 100.0),
    ("Turn-\nover\n/year", "turnover", 1.0),
    ("Cash\n%", "cash_share", 100.0),
    ("CVaR\n5%, %", "cvar", 100.0),
    ("Return\n/ MDD", "return_over_max_drawdown", 1.0),
)
"""Header, metric and factor of the table's columns."""

CASH_ALONE = "hold"
"""Agent that places no orders, which its name does not tell."""


@dataclass(frozen=True, kw_only=True)
class AccountRecord(AgentRecord):
    """Results and accounts of one agent in N episodes, money in currency.

    Attributes:
        curves: equity, traded value, cash and length of every episode.
        positions: value of the holdings in the first episode. Shape: (T + 1, K), float64.
    """

    curves: EpisodeCurves
    positions: Tensor


@dataclass(frozen=True)
class Traded:
    """Market positions of the episodes of a trading task.

    Attributes:
        dates: of the market. Shape: (T,), datetime64.
        path: of each episode. Shape: (N,).
        start_day: of each episode. Shape: (N,).
        return_bound: upper bound of the cumulative return, None without one. Shape: (N,).
        generated: whether the market is a generator's, whose dates are of no calendar.
    """

    symbols: tuple[str, ...]
    dates: np.ndarray
    path: Tensor
    start_day: Tensor
    return_bound: Tensor | None
    generated: bool = False


@dataclass(frozen=True, kw_only=True)
class TradingEvaluation(Evaluation):
    """Accounts of agents that all played the same N episodes.

    Attributes:
        traded: market positions of the episodes.
        beside_account: names of the outcomes that are shown beside the metrics of the account.
    """

    records: Mapping[str, AccountRecord]
    traded: Traded
    beside_account: Sequence[str] = ()

    @cached_property
    def groups(self) -> Tensor:
        longest = max(len(record.curves.traded) for record in self.records.values())
        return independent_groups(self.traded.path, self.traded.start_day, longest)

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Means of the account metrics, by agent."""
        return {name: summarise(record.curves, self.groups) for name, record in self.records.items()}

    @cached_property
    def lived(self) -> Tensor:
        """Whether an episode ran on each day, of any agent: one may be ruined before. Shape: (T, N)."""
        return torch.stack([self._padded(record.curves.lived) for record in self.records.values()]).any(0)

    def daily_log_returns(self, name: str) -> Tensor:
        """Return the log-return of an agent's account on each day, 0 after its end. Shape: (T, N)."""
        return self._padded(self.records[name].curves.log_growth.double().diff(dim=0))

    def _padded(self, daily: Tensor) -> Tensor:
        return torch.cat([daily, daily.new_zeros(len(self.groups) - len(daily), daily.shape[1])])

    def of_days(self, daily: Tensor) -> Interval:
        """Return the mean over episodes of the sums of their first days, with the interval over blocks of days."""
        return sums_interval(daily, self.lived[: len(daily)], self.groups[: len(daily)])

    @cached_property
    def excess_log_returns(self) -> dict[str, Interval]:
        """Mean log-return of an episode minus the reference's, with intervals over blocks of days, by agent."""
        if self.reference not in self.records:
            return {}
        held = self.daily_log_returns(self.reference)
        others = [name for name in self.records if name != self.reference]
        return {name: self.of_days(self.daily_log_returns(name) - held) for name in others}

    @cached_property
    def shares_of_best(self) -> dict[str, Interval]:
        """Excess log-return as a share of the best rule's, a ratio of two means whose interval is linearised, by agent.

        Empty if no best rule played, or it has no excess.
        """
        if BEST_RULE not in self.excess_log_returns or self.excess_log_returns[BEST_RULE].mean <= 0:
            return {}
        held, whole = self.daily_log_returns(self.reference), self.excess_log_returns[BEST_RULE].mean
        best, shares = self.daily_log_returns(BEST_RULE) - held, {}
        for name, excess in self.excess_log_returns.items():
            share, own = excess.mean / whole, self.daily_log_returns(name) - held
            around = self.of_days((own - share * best) / whole)
            shares[name] = Interval(share, share + around.low, share + around.high)
        return shares

    @cached_property
    def deflated_sharpes(self) -> dict[str, float]:
        """Deflated Sharpe ratios, by agent; NaN for those that know the future or the law, no trials."""
        knowing = [name for name in (self.hindsight, BEST_RULE) if name in self.records]
        tried = {
            name: returns_by_day(record.curves.returns, record.curves.lived, self.traded.path, self.traded.start_day)
            for name, record in self.records.items()
            if name not in knowing
        }
        return {**dict.fromkeys(knowing, math.nan), **deflated_sharpe(tried)}

    def interval(self, values: Tensor, *agents: str) -> Interval:
        names = dict.fromkeys((*agents, self.reference))
        return self._of_values(values, [self.daily_log_returns(name) for name in names if name in self.records])

    def _of_values(self, values: Tensor, series: Sequence[Tensor]) -> Interval:
        market = self.traded
        day = torch.arange(len(self.groups), device=self.groups.device)[:, None]
        places = market.path * len(market.dates) + market.start_day + day
        return values_interval(values.to(self.groups.device), series, self.lived, self.groups, places)

    def above(self, names: Sequence[str], benchmark: str) -> Interval:
        growth = torch.stack([self.daily_log_returns(name) for name in names]).mean(0)
        held = self.daily_log_returns(benchmark)
        if self.judged_by == "grade":
            return self._of_values(self.worth_above(names, benchmark), [growth, held])
        return self.of_days(growth - held)

    @property
    def measures(self) -> dict[str, dict[str, Interval]]:
        return {"excess_log_return": self.excess_log_returns}

    def title(self) -> str:
        source = Path(self.metadata["market"]["source"]).name
        return f"{super().title()} on {source}, {len(self.traded.symbols)} symbols"

    def lengths(self) -> str:
        shortest, longest = map(int, self.lived.sum(0).aminmax())
        days = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
        return f" of {days} day{'' if longest == 1 else 's'}"

    def figures_json(self) -> dict[str, Any]:
        bound = self.traded.return_bound
        return {} if bound is None else {"return_bound": float(bound.mean())}

    def agent_json(self, name: str) -> dict[str, Any]:
        summary, reference = self.summaries[name], self.summaries.get(self.reference)
        entry: dict[str, Any] = {metric: interval_json(summary.interval(metric)) for metric in summary.mean}
        exposure = self.records[name].curves.mean_exposure()
        entry["exposure_by_day"] = [or_none(round(share, 4)) for share in exposure.tolist()]
        entry |= {outcome: interval_json(self.outcomes[name][outcome]) for outcome in self.beside_account}
        entry["deflated_sharpe"] = or_none(self.deflated_sharpes[name])
        if name in self.excess_log_returns:
            entry["excess_log_return"] = interval_json(self.excess_log_returns[name])
        if name in self.shares_of_best and name != BEST_RULE:
            entry["share_of_best"] = interval_json(self.shares_of_best[name])
        if reference is not None and name != self.reference:
            entry[f"minus_{self.reference}"] = {
                metric: interval_json(summary.interval(metric, reference)) for metric in summary.mean
            }
        return entry

    def headers(self) -> list[str]:
        account = ["Return\n%", "95%\ninterval", "Excess\npoints", "95%\ninterval", "DSR"]
        return [*map(self.header, self.beside_account), *account, *(name for name, _, _ in _COLUMNS)]

    def cells(self, name: str) -> list[str]:
        summary, excess = self.summaries[name], self.excess_log_returns.get(name)
        total, deflated = summary.interval("cumulative_return"), self.deflated_sharpes[name]
        beside = {outcome: self.outcomes[name][outcome].mean for outcome in self.beside_account}
        cells = [scaled_text(mean, self.factor(outcome), 3) for outcome, mean in beside.items()]
        cells += [scaled_text(total.mean, 100.0), interval_text(total)]
        cells += ["", ""] if excess is None else [scaled_text(excess.mean, 100.0), interval_text(excess)]
        cells.append("" if math.isnan(deflated) else f"{deflated:.2f}")
        return cells + [scaled_text(summary.mean[metric], scale) for _, metric, scale in _COLUMNS]

    def caption(self) -> str:
        return (
            "Means over episodes; 95% intervals from blocks of the market's days, since episodes overlap. Excess: mean "
            f"log-return of an episode less {self.reference.replace('_', ' ')}'s, in points of 0.01. DSR: deflated "
            "Sharpe ratio, the chance that the true Sharpe ratio is above the best that so many agents show by luck. "
            "Whether an agent is better than another is for the verdict to say."
        )

    def notes(self) -> list[str]:
        notes, first = [], next(iter(self.records))
        if CASH_ALONE in self.records and not self.records[CASH_ALONE].curves.exposure.any():
            notes.append(f"{CASH_ALONE}: no orders, all in cash.")
        if first in self.shares_of_best and first != BEST_RULE:
            share = self.shares_of_best[first]
            notes.append(f"{first}: {100 * share.mean:.1f}% ({interval_text(share)}) of the best rule's excess.")
        if (bound := self.traded.return_bound) is not None:
            notes.append(f"No account could have returned more than {100 * float(bound.mean()):,.0f}%.")
        return notes

    def pictures(self, agent: str, beside: Sequence[str]) -> tuple[dict[str, Any], dict[str, Figure]]:
        worst = worst_days(self, agent, beside)
        return {"worst_days": worst_days_json(worst)}, {
            "equity": equity_figure(self),
            "drawdown": drawdown_figure(self),
            "exposure": exposure_figure(self),
            "holdings": holdings_figure(self, agent),
            "worst_days": worst_days_figure(worst, self, agent),
        }
