"""Figures of daily returns over the whole test of the study of scores, and the page that shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vecenv.benchmarks.studies.matrix import Column
from vecenv.finance.metrics import CVAR_TAIL, EpisodeCurves, episode_metrics
from vecenv.learn.intervals import Interval, bootstrap_interval, student_quantile

BLOCK = 21
"""Days of a block of the bootstrap, a month."""

COLUMNS = {
    "Sharpe": Column("sharpe"),
    "IR": Column("information", interval=False),
    "CVaR, %": Column("cvar", interval=False),
    "Rachev": Column("rachev", interval=False),
    "DD, %": Column("drawdown", digits=1, interval=False),
    "Growth, %": Column("growth", digits=1, interval=False),
    "Excess, % (seeds)": Column("excess", digits=1),
    "(days)": Column("excess_over_days", digits=1),
}


class Figures(NamedTuple):
    """Figures of one account over the test; returns of a day unless told, log-returns in percent a year.

    Attributes:
        sharpe: ratio of the year.
        information: ratio of the year of what is earned above equal weights.
        cvar: mean of the worst 5% of days, in percent.
        rachev: mean of the best 5% of days over the size of the mean of the worst (Biglova, Ortobelli, Rachev and
            Stoyanov, "Different approaches to risk estimation in portfolio theory", 2004).
        drawdown: largest loss from a peak, in percent.
        growth: log-return a year, in percent.
        excess: log-return above buy and hold a year, in percent.
    """

    sharpe: float
    information: float
    cvar: float
    rachev: float
    drawdown: float
    growth: float
    excess: float


def figures_of(returns: Tensor, equal_weight: Tensor, held: Tensor, days: float) -> Figures:
    curves = EpisodeCurves.of_returns(returns, days)
    metrics = {name: float(value) for name, value in episode_metrics(curves).items()}
    above = returns - equal_weight
    spread, ranked = float(above.std()), returns.sort().values
    tail = math.ceil(round(len(returns) * CVAR_TAIL, 9))
    year = 100.0 * days / len(returns)
    growth = float(returns.log1p().sum())
    return Figures(
        sharpe=metrics["sharpe"],
        information=math.sqrt(days) * float(above.mean()) / spread if spread > 1e-12 else 0.0,
        cvar=100.0 * metrics["cvar"],
        rachev=float(ranked[-tail:].mean()) / max(abs(float(ranked[:tail].mean())), 1e-12),
        drawdown=100.0 * metrics["max_drawdown"],
        growth=year * growth,
        excess=year * (growth - float(held.log1p().sum())),
    )


def over_seeds(values: list[float]) -> Interval:
    """Return the mean over seeds with the 95% interval by Student's t; no bounds for one seed."""
    numbers = torch.tensor(values, dtype=torch.float64)
    mean = float(numbers.mean())
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan)
    margin = student_quantile(len(values) - 1) * float(numbers.std()) / math.sqrt(len(values))
    return Interval(mean, mean - margin, mean + margin)


def over_days(excess: Tensor, days: float) -> Interval:
    """Return the mean of daily log-returns above another's, in percent a year, with a 95% interval over months."""
    blocks = torch.arange(len(excess)) // BLOCK
    return bootstrap_interval(100.0 * days * excess, blocks)


def told(own: list[Tensor], equal_weight: Tensor, held: Tensor, days: float) -> dict[str, dict[str, float]]:
    """Return the figures of a variant: means over its seeds with intervals, and the excess with that over days too.

    ``days`` are those of a year.
    """
    by_seed = [figures_of(one, equal_weight, held, days) for one in own]
    found = {
        name: over_seeds(list(values)) for name, values in zip(Figures._fields, zip(*by_seed, strict=True), strict=True)
    }
    mean = torch.stack([one.log1p() for one in own]).mean(0)
    found["excess_over_days"] = over_days(mean - held.log1p(), days)
    return {name: interval._asdict() for name, interval in found.items()}


def study_page(result: Mapping[str, Any]) -> str:
    """Return the table as a page of Markdown, with the market, its spans and the size of the training."""
    market = result["market"]
    lines = [
        "# What scores are worth on real prices",
        "",
        f"{market['source']}: {market['symbols']} symbols, training {' to '.join(market['training'])}, test",
        f"{' to '.join(market['test'])}, {market['scored']:.0%} of its days and symbols with a score.",
        f"{result['learning']}.",
        "Means over seeds with 95% intervals by Student's t; of the excess over buy and hold, log-return a year, also",
        "by a bootstrap over months (days). IR is against equal weights. Shuffled controls share one random order.",
        "",
        f"| variant | {' | '.join(COLUMNS)} |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    lines += [
        f"| {name} | {' | '.join(column.text(told[column.of]) for column in COLUMNS.values())} |"
        for name, told in result["variants"].items()
    ]
    return "\n".join(lines) + "\n"
