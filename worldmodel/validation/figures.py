"""Figures of a criterion: what a model is judged by, how a criterion measures it, and means over runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial

import torch
from torch import Tensor

from vecenv.learn.intervals import Interval
from vecenv.worldmodel.data.bar_moves import encode_history
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.validation import returns as of
from vecenv.worldmodel.validation.acceptance import Bar
from vecenv.worldmodel.validation.discriminator import Told
from vecenv.worldmodel.validation.forecast import ForecastScores, ForecastSummary, summarise
from vecenv.worldmodel.validation.trial import Trial
from vecenv.worldmodel.validation.windows import BLOCK, Windows, block_bootstrap, ratio_interval

Figures = dict[str, Interval]
"""Figures of the real days or of a model, by key of the criterion."""

HORIZONS = (1, 5, 20)
"""Horizons in days of the compared return distributions."""

NLL_BLOCK = 20
"""Bootstrap block length in test days: volatility, and with it the density, is autocorrelated for weeks."""

REAL_DRAWS = 300
"""Bootstrap draws for the real days, which give bounds to about a tenth of the interval's width."""


class Aim(Enum):
    """Direction of improvement of a figure: lower, higher, or nearer to the real one."""

    LOWER = "↓"
    HIGHER = "↑"
    REAL = "≈"


@dataclass
class Evidence:
    """What a model is judged by: its windows beside the real ones, and its forecasts.

    `every` are the days between origins, `train_returns` (T, N) the training days' log-returns, and `block` the length
    of bootstrap blocks in forecast days.
    """

    real: Windows
    synthetic: Windows
    every: int
    train_returns: Tensor
    forecasts: ForecastScores
    block: int

    @cached_property
    def distances(self) -> dict[int, of.Distances]:
        """Distances of sums of standardised returns by `HORIZONS`."""
        return {days: of.horizon_distances(self.real, self.synthetic, days) for days in HORIZONS}

    @cached_property
    def memory(self) -> of.Memorisation:
        return of.memorisation(self.train_returns, self.real, self.synthetic)

    @cached_property
    def summary(self) -> ForecastSummary:
        return summarise(self.forecasts)


Measure = Callable[[Evidence], Interval | float]
Statistic = Callable[[Windows], float]
Comparison = Callable[[Windows, Windows], float]


@dataclass(frozen=True)
class Criterion:
    """A line of the table.

    Attributes:
        measure: a model's figure, without an interval as a number; None for densities and discriminators, which are
            measured apart.
        statistic: the same of one side's windows, told of the real days with an interval.
        apart: the statistic is of windows that do not overlap.
        perfect: figure of a perfect model, where the real days have none of their own.
        bar: what counts as good; `former` is the bar of the first edition if it differs.
        since: first edition of the table with the line: 1 for returns, 2 for whole bars, 3 for the AUC.
    """

    key: str
    label: str
    aim: Aim = Aim.LOWER
    digits: int = 3
    bar: Bar | None = None
    measure: Measure | None = None
    statistic: Statistic | None = None
    apart: bool = False
    perfect: float = math.nan
    former: Bar | None = None
    since: int = 1

    def reference(self, real: Figures) -> Interval:
        """Return the value of the real days, or else of a perfect model; NaN if the figure is only to be small."""
        return real.get(self.key, point(self.perfect))

    def bar_of(self, edition: int) -> Bar | None:
        """Return the bar that an edition of the table had for this line; None if it had none."""
        if self.since > edition:
            return None
        return self.former if self.former and edition == 1 else self.bar


def figures_of(criteria: Sequence[Criterion], evidence: Evidence) -> Figures:
    """Return a model's figures, but those that are measured apart."""
    found = {each.key: each.measure(evidence) for each in criteria if each.measure is not None}
    return {key: figure if isinstance(figure, Interval) else point(figure) for key, figure in found.items()}


def real_figures(criteria: Sequence[Criterion], real: Windows, every: int, draws: int = REAL_DRAWS) -> Figures:
    """Return the figures of the real days, with intervals over origins, and of a perfect model."""
    figures = {each.key: point(each.perfect) for each in criteria if not math.isnan(each.perfect)}
    for criterion in criteria:
        if (statistic := criterion.statistic) is not None:
            windows, block = (apart(real, every), 1) if criterion.apart else (real, BLOCK)
            measure = partial(_selected, statistic, windows)
            figures[criterion.key] = block_bootstrap(measure, len(windows.returns), block, draws)
    return figures


def density_figures(trial: Trial, model: MarketModel) -> Figures:
    """Return the negative log-densities of the test days' returns, alone and joint, in nats per stock-day.

    Densities that the model lacks are left out.
    """
    history = trial.test_days()
    returns = encode_history(history).valid[0].sum(-1)
    test = slice(trial.first - len(trial.bars.dates), None)
    densities = {"nll": model.log_density} if model.has_density else {}
    densities |= {"joint_nll": model.joint_log_density} if model.has_joint_density else {}
    totals = {name: -density(history).reshape(len(returns), -1).nansum(-1) for name, density in densities.items()}
    return {name: ratio_interval(total[test], returns[test], NLL_BLOCK) for name, total in totals.items()}


def discriminator_figures(told: Mapping[str, Told]) -> Figures:
    """Return the discriminative scores and AUCs of classifiers, and of the LSTM the test error instead."""
    mean, low, high = told["lstm"].accuracy
    figures = {"lstm_error": Interval(1.0 - mean, 1.0 - high, 1.0 - low)}
    for name, each in told.items():
        if name != "lstm":
            figures |= {f"{name}_score": distance_from_chance(each.accuracy), f"{name}_auc": each.auc}
    return figures


def average(runs: Sequence[Figures]) -> Figures:
    """Return the mean of every figure, and of its bounds, over runs with different seeds or weights.

    Bounds that a figure lacks are those of its range over the runs.
    """
    return {name: _averaged([run[name] for run in runs]) for name in runs[0]}


def point(value: float) -> Interval:
    """Return a figure without an interval."""
    return Interval(value, math.nan, math.nan)


def apart(windows: Windows, every: int) -> Windows:
    """Return the windows of origins whose days do not overlap."""
    step = -(-windows.horizon // every)
    return windows.select(torch.arange(0, len(windows.returns), step))


def distance_from_chance(accuracy: Interval) -> Interval:
    """Return |accuracy - 0.5|, with lower bound 0 if the interval contains 0.5."""
    mean, low, high = (part - 0.5 for part in accuracy)
    nearest = 0.0 if low < 0.0 < high else min(abs(low), abs(high))
    return Interval(abs(mean), nearest, max(abs(low), abs(high)))


def _selected(statistic: Statistic, windows: Windows, origins: Tensor) -> float:
    return statistic(windows.select(origins))


def _averaged(figures: Sequence[Interval]) -> Interval:
    mean, low, high = torch.tensor(figures, dtype=torch.float64).mean(0).tolist()
    if len(figures) > 1 and math.isnan(low):
        low, high = min(figure.mean for figure in figures), max(figure.mean for figure in figures)
    return Interval(mean, low, high)
