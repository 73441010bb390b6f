"""Figures of daily returns over the whole test: ratios, tails, drawdown, and excess with intervals."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.learn.metrics import CVAR_TAIL, TRADING_DAYS, EpisodeCurves, Interval, episode_metrics, student_quantile
from vecenv.learn.significance import bootstrap_interval

BLOCK = 21
"""Days of a block of the bootstrap, a month."""


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


def figures_of(returns: Tensor, equal_weight: Tensor, held: Tensor) -> Figures:
    """Return the figures of an account.

    Args:
        returns: simple, of each day of the test. Shape: (T,), float64.
        equal_weight: those of equal weights.
        held: those of buy and hold.
    """
    metrics = {name: float(value) for name, value in episode_metrics(EpisodeCurves.of_returns(returns)).items()}
    above = returns - equal_weight
    spread, ranked = float(above.std()), returns.sort().values
    tail = math.ceil(round(len(returns) * CVAR_TAIL, 9))
    year = 100.0 * TRADING_DAYS / len(returns)
    growth = float(returns.log1p().sum())
    return Figures(
        sharpe=metrics["sharpe"],
        information=math.sqrt(TRADING_DAYS) * float(above.mean()) / spread if spread > 1e-12 else 0.0,
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


def over_days(excess: Tensor) -> Interval:
    """Return the mean of daily log-returns above another's, in percent a year, with a 95% interval over blocks of days.

    Args:
        excess: mean over the seeds of each day. Shape: (T,), float64.
    """
    blocks = torch.arange(len(excess)) // BLOCK
    return bootstrap_interval(100.0 * TRADING_DAYS * excess, blocks)
