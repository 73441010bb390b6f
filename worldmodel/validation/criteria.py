"""Criteria of realism: what is measured, how it is called, what counts as good, and in which order it is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from vecenv.learn.intervals import Interval
from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN
from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation, GarchT
from vecenv.worldmodel.data.bar_moves import encode_history
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.network.market_network import RUNNING_MEAN_CHAIN
from vecenv.worldmodel.validation import bar_statistics as bars
from vecenv.worldmodel.validation import returns as of
from vecenv.worldmodel.validation.acceptance import (
    Bar,
    at_least,
    at_most,
    below,
    half_leverage,
    half_to_double,
    in_interval,
    least,
    near,
    near_drift,
    near_leverage,
    near_share,
    small,
    surely_below,
    within,
)
from vecenv.worldmodel.validation.discriminator import FORMS, Told
from vecenv.worldmodel.validation.forecast import (
    CRPS_UNIT,
    ForecastScores,
    ForecastSummary,
    energy_score,
    summarise,
    variogram_score,
)
from vecenv.worldmodel.validation.trial import Trial
from vecenv.worldmodel.validation.windows import BLOCK, Windows, block_bootstrap, ratio_interval

Figures = dict[str, Interval]
"""Figures of the real days or of a model, by key of the criterion."""

HORIZONS = (1, 5, 20)
"""Horizons in days of the compared return distributions."""

COVERAGES = (50, 90, 99)
"""Central intervals of a forecast, in percent."""

DAY_BUCKETS = ((1, 10), (11, 20), (21, 30), (31, 40))
"""First and last days since the origin."""

NLL_BLOCK = 20
"""Bootstrap block length in test days: volatility, and with it the density, is autocorrelated for weeks."""

REAL_DRAWS = 300
"""Bootstrap draws for the real days, which give bounds to about a tenth of the interval's width."""

BASIS_POINT = 1e-4

LAST_YEAR = 250
"""Days of the shorter bootstrap."""

LAST_YEAR_BOOTSTRAP = f"bootstrap, last {LAST_YEAR} days"


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
        bar: what counts as good; `former` is the bar of earlier tables if it differs.
        earlier: whether earlier tables had the line.
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
    earlier: bool = True

    def reference(self, real: Figures) -> Interval:
        """Return the value of the real days, or else of a perfect model; NaN if the figure is only to be small."""
        return real.get(self.key, point(self.perfect))


def figures_of(criteria: Sequence[Criterion], evidence: Evidence) -> Figures:
    """Return a model's figures, but those that are measured apart."""
    found = {each.key: each.measure(evidence) for each in criteria if each.measure is not None}
    return {key: figure if isinstance(figure, Interval) else point(figure) for key, figure in found.items()}


def real_figures(real: Windows, every: int, draws: int = REAL_DRAWS) -> Figures:
    """Return the figures of the real days, with intervals over origins, and of a perfect model."""
    figures = {each.key: point(each.perfect) for each in CRITERIA if not math.isnan(each.perfect)}
    for criterion in CRITERIA:
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
    """Return the discriminative scores of classifiers, the test error of the LSTM, and of whole bars the AUC."""
    figures = {f"{name}_score": distance_from_chance(each.accuracy) for name, each in told.items() if name != "lstm"}
    mean, low, high = told["lstm"].accuracy
    figures["lstm_error"] = Interval(1.0 - mean, 1.0 - high, 1.0 - low)
    return figures | {f"{name}_auc": each.auc for name, each in told.items() if FORMS[name].whole_bars}


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


def by_day(first: int, last: int) -> tuple[Criterion, ...]:
    """Return the criteria of the days `first` to `last` since the origin, to detect drift in long rollouts.

    Autocorrelations are of days within the bucket, so that of d days there are at most d - 1 lags.
    """
    lags = min(of.ACF_LAGS, last - first)

    def ks(real: Windows, synthetic: Windows) -> float:
        return of.sample_distances(real.standardised, synthetic.standardised).ks

    def line(key: str, label: str, measure: Comparison, digits: int = 4, **more: Any) -> Criterion:  # noqa: ANN401
        def within(evidence: Evidence) -> float:
            return measure(evidence.real.days(first, last), evidence.synthetic.days(first, last))

        key, label = f"{key}_days_{first}_{last}", f"days {first}–{last}: {label}"
        return Criterion(key, label, digits=digits, measure=within, **more)

    return (
        line("volatility_ratio", "volatility ratio", of.volatility_ratio, 3, **VOLATILITY),
        line("market_volatility_ratio", "market's", of.market_volatility_ratio, 3, **VOLATILITY),
        line("ks", "KS, 1-day returns", ks),
        line("return_acf_error", "ACF of r, error", _error_by_lag(_acf, lags)),
        line("magnitude_acf_error", "ACF of |r|, error", _error_by_lag(_magnitude_acf, lags)),
    )


def _selected(statistic: Statistic, windows: Windows, origins: Tensor) -> float:
    return statistic(windows.select(origins))


def _averaged(figures: Sequence[Interval]) -> Interval:
    mean, low, high = torch.tensor(figures, dtype=torch.float64).mean(0).tolist()
    if len(figures) > 1 and math.isnan(low):
        low, high = min(figure.mean for figure in figures), max(figure.mean for figure in figures)
    return Interval(mean, low, high)


def _real(key: str, label: str, digits: int, of_side: Statistic, bar: Bar | None = None, **more: Any) -> Criterion:  # noqa: ANN401
    """Return the criterion of a statistic that the real days have as well."""
    return Criterion(key, label, Aim.REAL, digits, bar, lambda each: of_side(each.synthetic), of_side, **more)


def _lower(key: str, label: str, digits: int, of_both: Comparison, bar: Bar | None = None) -> Criterion:
    """Return the criterion of a distance between generated and real windows."""
    return Criterion(key, label, Aim.LOWER, digits, bar, lambda each: of_both(each.real, each.synthetic))


def _mean_of(scores: Callable[[ForecastScores], Tensor]) -> Measure:
    """Return the mean of a score of one-day forecasts over days and stocks."""

    def measure(evidence: Evidence) -> Interval:
        by = scores(evidence.forecasts)
        return ratio_interval(by.nansum(-1), (~by.isnan()).sum(-1), evidence.block)

    return measure


def _mean_of_origins(score: Callable[[Windows, Windows], Tensor]) -> Measure:
    def measure(evidence: Evidence) -> Interval:
        scores = score(evidence.real, evidence.synthetic)
        return ratio_interval(scores, torch.ones_like(scores))

    return measure


def _acf(windows: Windows, lags: int = of.ACF_LAGS) -> Tensor:
    return of.autocorrelation(windows.returns, lags)


def _magnitude_acf(windows: Windows, lags: int = of.ACF_LAGS) -> Tensor:
    return of.autocorrelation(windows.returns.abs(), lags)


def _leverage(windows: Windows, lags: int = of.LEVERAGE_LAGS) -> Tensor:
    return of.leverage(windows.returns, lags)


def _error_by_lag(curve: Callable[[Windows, int], Tensor], lags: int) -> Comparison:
    """Return the mean absolute difference of a statistic by lag."""
    return lambda real, synthetic: float((curve(synthetic, lags) - curve(real, lags)).abs().mean())


def _correlation_error(real: Windows, synthetic: Windows) -> float:
    return of.correlation_rmse(of.cross_correlation(real), of.cross_correlation(synthetic))


def _drawdown_distance(real: Windows, synthetic: Windows) -> float:
    return of.sample_distances(of.max_drawdowns(real), of.max_drawdowns(synthetic)).wasserstein


def _stock_volatility(evidence: Evidence) -> Interval:
    return of.stock_volatility_ratios(evidence.real, evidence.synthetic)


def _pairs(ratio: Callable[[Windows], Tensor]) -> Statistic:
    return lambda side: float(of.pair_correlations(ratio(side)).nanmean())


def _correlation(field: str) -> Statistic:
    """Return a number of the stocks' cross-correlation."""
    return lambda side: getattr(of.cross_correlation(side), field)


def _tail(share: float, left: bool = False) -> Statistic:
    return lambda side: of.tail_index(side, share, left)


def _drift(side: Windows) -> float:
    return float(side.returns.nanmean(dtype=torch.float64)) / BASIS_POINT


def _drawdown(side: Windows) -> float:
    return float(of.max_drawdowns(side).nanmean(dtype=torch.float64))


def _by(*path: str | int) -> Measure:
    """Return a number of the evidence, by its path of attributes and keys."""

    def measure(evidence: Evidence) -> float:
        found: Any = evidence
        for step in path:
            found = getattr(found, step) if isinstance(step, str) else found[step]
        return float(found)

    return measure


LOWER, HIGHER, REAL = Aim
VOLATILITY: dict[str, Any] = {"aim": REAL, "bar": within(0.92, 1.08), "perfect": 1.0}
FHS = FilteredHistoricalSimulation.name
BEST = (FHS, LAST_YEAR_BOOTSTRAP)

_FORECASTS = (
    Criterion("nll", "NLL, nats per stock-day", LOWER, 4, below(GarchT.name, margin=0.02)),
    Criterion("joint_nll", "joint NLL / N, nats per stock-day", LOWER, 4, below(RUNNING_MEAN_CHAIN, margin=0.03)),
    Criterion(
        "crps",
        "CRPS, 1 day, 1e-4",
        LOWER,
        2,
        surely_below(FHS),
        _mean_of(lambda each: each.crps / CRPS_UNIT),
        former=below(FHS),
    ),
    Criterion("mae", "MAE of the median, 1 day", LOWER, 5, None, _mean_of(lambda each: each.median_error)),
    Criterion("sampled_mae", "MAE of a draw, 1 day", LOWER, 5, None, _mean_of(lambda each: each.sampled_error)),
    Criterion(
        "direction_accuracy",
        "direction accuracy",
        REAL,
        3,
        within(0.48, 0.52),
        _mean_of(lambda each: each.direction_hit),
        perfect=0.5,
    ),
    Criterion("pit_distance", "PIT, KS distance from uniform", measure=_by("summary", "pit_distance")),
    *(
        Criterion(
            f"coverage_{percent}",
            f"coverage of the {percent}% interval",
            REAL,
            measure=_by("summary", "coverage", place),
            perfect=percent / 100,
        )
        for place, percent in enumerate(COVERAGES)
    ),
    Criterion(
        "energy_score",
        "energy score, 20 days",
        LOWER,
        4,
        surely_below(*BEST),
        _mean_of_origins(energy_score),
        former=below(*BEST),
    ),
    Criterion("variogram_score", "variogram score, 20 days", LOWER, 4, None, _mean_of_origins(variogram_score)),
)
_DISTRIBUTIONS = (
    replace(_lower("volatility_ratio", "volatility ratio", 3, of.volatility_ratio), **VOLATILITY),
    replace(
        _lower("market_volatility_ratio", "volatility ratio of the market", 3, of.market_volatility_ratio), **VOLATILITY
    ),
    # The range over stocks is reported as the interval.
    Criterion("stock_volatility_ratio", "volatility ratio, median stock", REAL, measure=_stock_volatility, perfect=1.0),
    *(
        Criterion(f"ks_{days}", f"KS, {days}-day returns", LOWER, 4, least(), _by("distances", days, "ks"))
        for days in HORIZONS
    ),
    *(
        Criterion(
            f"w1_{days}", f"W1, {days}-day returns, real std", LOWER, 4, least(), _by("distances", days, "wasserstein")
        )
        for days in HORIZONS
    ),
    _real("excess_kurtosis", "excess kurtosis", 2, of.excess_kurtosis, in_interval()),
    _real("skew", "skew", 2, of.skew),
    _real("hill", "Hill index, 1%", 2, _tail(of.TAIL_SHARE), in_interval()),
    _real("hill_wide", "Hill index, 2.5%", 2, _tail(of.WIDE_TAIL_SHARE)),
    _real("hill_left", "Hill index, left 1%", 2, _tail(of.TAIL_SHARE, left=True)),
)
_DEPENDENCE = (
    _lower("return_acf_error", "ACF of r, lags 1–20, mean error", 4, _error_by_lag(_acf, of.ACF_LAGS)),
    _real("magnitude_acf", "ACF of |r|, lags 1–20, mean", 4, lambda side: float(_magnitude_acf(side).mean())),
    _lower(
        "magnitude_acf_error",
        "ACF of |r|, lags 1–20, mean error",
        4,
        _error_by_lag(_magnitude_acf, of.ACF_LAGS),
        small(0.010),
    ),
    _real(
        "leverage",
        "leverage, lags 1–5, mean",
        4,
        lambda side: float(_leverage(side, of.LEVERAGE_MEAN_LAGS).mean()),
        near_leverage(),
        former=half_leverage(),
    ),
    _lower("leverage_error", "leverage, lags 1–10, mean error", 4, _error_by_lag(_leverage, of.LEVERAGE_LAGS)),
    _real("mean_correlation", "mean correlation of stocks", 3, _correlation("mean"), near(0.03)),
    _lower("correlation_rmse", "RMSE of correlations", 3, _correlation_error, at_most(0.06)),
    _real("first_eigenvalue", "first eigenvalue, share", 3, _correlation("first_eigenvalue"), near(0.03)),
    _real("worst_days_correlation", "mean correlation, worst 5% of days", 3, _correlation("worst_days")),
)
_BARS = (
    _real("volume_correlation", "correlation of |r| and volume", 3, bars.volume_correlation, near(0.03)),
    _real(
        "volume_persistence",
        "ACF of volume, lag 1",
        3,
        lambda side: float(of.autocorrelation(bars.log_volume_ratio(side), 1)),
    ),
    _lower("gap_ks", "KS, overnight gap", 4, partial(bars.bar_distance, numerator=OPEN)),
    _lower("body_ks", "KS, open to close", 4, partial(bars.bar_distance, numerator=CLOSE, denominator=OPEN)),
    _lower("range_ks", "KS, high to low", 4, partial(bars.bar_distance, numerator=HIGH, denominator=LOW)),
    Criterion(
        "invalid_bars",
        "invalid bars, share",
        LOWER,
        4,
        at_most(0.0),
        lambda each: bars.invalid_share(each.synthetic),
        perfect=0.0,
    ),
    _real("drawdown_mean", "40-day drawdown, mean, points", 2, _drawdown),
    _lower("drawdown_w1", "40-day drawdown, W1, points", 2, _drawdown_distance, small(0.5)),
    Criterion(
        "memory_ratio",
        "nearest training window, over real",
        HIGHER,
        3,
        at_least(1.0),
        _by("memory", "distance_ratio"),
        perfect=1.0,
    ),
    Criterion(
        "memory_share",
        "nearer than the nearest 1% of real",
        REAL,
        4,
        measure=_by("memory", "share_below"),
        perfect=0.01,
    ),
)
_DISCRIMINATORS = (
    Criterion("boosting_score", "discriminator, boosting, |acc − 0.5|", bar=at_most(0.02)),
    Criterion("gru_score", "discriminator, GRU, |acc − 0.5|", bar=at_most(0.05)),
    Criterion("panel_boosting_score", "25 stocks, boosting, |acc − 0.5|", bar=at_most(0.10)),
    Criterion("panel_gru_score", "25 stocks, GRU, |acc − 0.5|", bar=at_most(0.10)),
    Criterion("lstm_error", "discriminator, LSTM-32, test error", REAL),
)
_WHOLE_BARS = (
    _real("volume_pair_correlation", "mean correlation of volume moves", 3, _pairs(bars.log_volume_ratio), near(0.05)),
    _real("range_pair_correlation", "mean correlation of log-range moves", 3, _pairs(bars.log_range_ratio), near(0.05)),
    _real("zero_gaps", "gaps of zero, share", 4, bars.zero_gaps, half_to_double()),
    replace(
        _real("gap_kurtosis", "excess kurtosis of gaps", 1, bars.gap_kurtosis, half_to_double(), apart=True),
        measure=lambda each: bars.gap_kurtosis(apart(each.synthetic, each.every)),
    ),
    _real("gap_body_ratio", "std of gaps over std of bodies", 3, bars.gap_body_ratio, near_share(0.10)),
    _real("drift", "drift, basis points a day", 2, _drift, near_drift(FHS)),
    *(
        criterion
        for name, label, limit in (
            ("bars_boosting", "whole bars, boosting", 0.05),
            ("bars_gru", "whole bars, GRU", 0.05),
            ("panel_bars_boosting", "25 stocks' whole bars, boosting", 0.15),
            ("panel_bars_gru", "25 stocks' whole bars, GRU", 0.15),
        )
        for criterion in (
            Criterion(f"{name}_score", f"{label}, |acc − 0.5|", bar=at_most(limit)),
            Criterion(f"{name}_auc", f"{label}, AUC"),
        )
    ),
)

CRITERIA = (
    *(*_FORECASTS, *_DISTRIBUTIONS, *_DEPENDENCE, *_BARS, *_DISCRIMINATORS),
    *(replace(criterion, earlier=False) for criterion in _WHOLE_BARS),
)
"""Criteria of whole paths, in the order of the table."""


def criteria(long_days: int = 0) -> tuple[Criterion, ...]:
    """Return the lines of the table, those by rollout day last; without long paths `long_days` is 0."""
    buckets = (*DAY_BUCKETS, *([(DAY_BUCKETS[-1][1] + 1, long_days)] if long_days else []))
    return (*CRITERIA, *(criterion for bucket in buckets for criterion in by_day(*bucket)))
