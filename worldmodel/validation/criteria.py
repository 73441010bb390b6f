"""Criteria of realism: what is measured, how it is called, what counts as good, and in which order it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vecenv.learn.intervals import Interval
from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN
from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation, GarchT
from vecenv.worldmodel.network.settings import RUNNING_MEAN_CHAIN
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
    surely_within,
    within,
)
from vecenv.worldmodel.validation.figures import (
    HORIZONS,
    Aim,
    Comparison,
    Criterion,
    Evidence,
    Measure,
    Statistic,
    apart,
)
from vecenv.worldmodel.validation.forecast import CRPS_UNIT, energy_score, variogram_score
from vecenv.worldmodel.validation.settings import LAST_YEAR
from vecenv.worldmodel.validation.windows import Windows, ratio_interval

COVERAGES = (50, 90, 99)
"""Central intervals of a forecast, in percent."""

DAY_BUCKETS = ((1, 10), (11, 20), (21, 30), (31, 40))
"""First and last days since the origin."""

BASIS_POINT = 1e-4

STOCK_AUC, PANEL_AUC = 0.60, 0.75
"""Largest AUC of discriminators of single stocks and of panels."""

EDITIONS = {"all": 3, "without_auc": 2, "earlier": 1}
"""Totals of criteria that a model meets, by the edition of the table whose lines and bars they count."""

LAST_YEAR_BOOTSTRAP = f"bootstrap, last {LAST_YEAR} days"


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
        line("return_acf_error", "ACF of r, error", _error(_acf, lags)),
        line("magnitude_acf_error", "ACF of |r|, error", _error(_magnitude_acf, lags)),
    )


def _real(key: str, label: str, digits: int, of_side: Statistic, bar: Bar | None = None, **more: Any) -> Criterion:  # noqa: ANN401
    """Return the criterion of a statistic that the real days have as well."""
    return Criterion(key, label, Aim.REAL, digits, bar, lambda each: of_side(each.synthetic), of_side, **more)


def _lower(key: str, label: str, digits: int, of_both: Comparison, bar: Bar | None = None) -> Criterion:
    """Return the criterion of a distance between generated and real windows."""
    return Criterion(key, label, Aim.LOWER, digits, bar, lambda each: of_both(each.real, each.synthetic))


def _ratio(key: str, label: str, of_both: Comparison) -> Criterion:
    return replace(_lower(key, label, 3, of_both), **VOLATILITY)


def _classifier(name: str, label: str, score: float, auc: float) -> tuple[Criterion, Criterion]:
    """Return the criteria of a discriminator: of its accuracy, and of its AUC, which no threshold can spoil.

    An AUC below 0.5 is as far from chance as one above it. Windows that cannot be told apart are ranked at random; a
    classifier that ranks those of later days the wrong way round has found a difference whose sign has changed.
    """
    return (
        Criterion(f"{name}_score", f"{label}, |acc − 0.5|", bar=at_most(score)),
        Criterion(f"{name}_auc", f"{label}, AUC", REAL, bar=surely_within(1 - auc, auc), since=3),
    )


def _mean(part: str, unit: float = 1.0) -> Measure:
    """Return the mean of a score of one-day forecasts over days and stocks."""

    def measure(evidence: Evidence) -> Interval:
        by = getattr(evidence.forecasts, part) / unit
        return ratio_interval(by.nansum(-1), (~by.isnan()).sum(-1), evidence.block)

    return measure


def _score(score: Callable[[Windows, Windows], Tensor]) -> Measure:
    """Return the mean of a score over origins."""

    def measure(evidence: Evidence) -> Interval:
        scores = score(evidence.real, evidence.synthetic)
        return ratio_interval(scores, torch.ones_like(scores))

    return measure


def _acf(windows: Windows, lags: int) -> Tensor:
    return of.autocorrelation(windows.returns, lags)


def _magnitude_acf(windows: Windows, lags: int) -> Tensor:
    return of.autocorrelation(windows.returns.abs(), lags)


def _leverage(windows: Windows, lags: int) -> Tensor:
    return of.leverage(windows.returns, lags)


def _mean_lag(curve: Callable[[Windows, int], Tensor], lags: int) -> Statistic:
    return lambda side: float(curve(side, lags).mean())


def _error(curve: Callable[[Windows, int], Tensor], lags: int) -> Comparison:
    """Return the mean absolute difference of a statistic by lag."""
    return lambda real, synthetic: float((curve(synthetic, lags) - curve(real, lags)).abs().mean())


def _correlation_error(real: Windows, synthetic: Windows) -> float:
    return of.correlation_rmse(of.cross_correlation(real), of.cross_correlation(synthetic))


def _drawdown_distance(real: Windows, synthetic: Windows) -> float:
    return of.sample_distances(of.max_drawdowns(real), of.max_drawdowns(synthetic)).wasserstein


def _invalid(evidence: Evidence) -> float:
    return bars.invalid_share(evidence.synthetic)


def _volume_persistence(side: Windows) -> float:
    return float(of.autocorrelation(bars.log_volume_ratio(side), 1))


def _stock_volatility(evidence: Evidence) -> Interval:
    """Return the median stock's ratio; the range over stocks is reported as the interval."""
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
_NEAREST, _NEARER = _by("memory", "distance_ratio"), _by("memory", "share_below")

_FORECASTS = (
    Criterion("nll", "NLL, nats per stock-day", LOWER, 4, below(GarchT.name, margin=0.02)),
    Criterion("joint_nll", "joint NLL / N, nats per stock-day", LOWER, 4, below(RUNNING_MEAN_CHAIN, margin=0.03)),
    Criterion("crps", "CRPS, 1 day, 1e-4", LOWER, 2, surely_below(FHS), _mean("crps", CRPS_UNIT), former=below(FHS)),
    Criterion("mae", "MAE of the median, 1 day", LOWER, 5, None, _mean("median_error")),
    Criterion("sampled_mae", "MAE of a draw, 1 day", LOWER, 5, None, _mean("sampled_error")),
    Criterion(
        "direction_accuracy", "direction accuracy", REAL, 3, within(0.48, 0.52), _mean("direction_hit"), perfect=0.5
    ),
    Criterion("pit_distance", "PIT, KS distance from uniform", LOWER, 3, None, _by("summary", "pit_distance")),
    *(
        Criterion(
            f"coverage_{p}",
            f"coverage of the {p}% interval",
            REAL,
            3,
            None,
            _by("summary", "coverage", i),
            perfect=p / 100,
        )
        for i, p in enumerate(COVERAGES)
    ),
    Criterion(
        "energy_score",
        "energy score, 20 days",
        LOWER,
        4,
        surely_below(*BEST),
        _score(energy_score),
        former=below(*BEST),
    ),
    Criterion("variogram_score", "variogram score, 20 days", LOWER, 4, None, _score(variogram_score)),
)
_DISTRIBUTIONS = (
    _ratio("volatility_ratio", "volatility ratio", of.volatility_ratio),
    _ratio("market_volatility_ratio", "volatility ratio of the market", of.market_volatility_ratio),
    Criterion(
        "stock_volatility_ratio", "volatility ratio, median stock", REAL, 3, None, _stock_volatility, perfect=1.0
    ),
    *(Criterion(f"ks_{d}", f"KS, {d}-day returns", LOWER, 4, least(), _by("distances", d, "ks")) for d in HORIZONS),
    *(
        Criterion(f"w1_{d}", f"W1, {d}-day returns, real std", LOWER, 4, least(), _by("distances", d, "wasserstein"))
        for d in HORIZONS
    ),
    _real("excess_kurtosis", "excess kurtosis", 2, of.excess_kurtosis, in_interval()),
    _real("skew", "skew", 2, of.skew),
    _real("hill", "Hill index, 1%", 2, _tail(of.TAIL_SHARE), in_interval()),
    _real("hill_wide", "Hill index, 2.5%", 2, _tail(of.WIDE_TAIL_SHARE)),
    _real("hill_left", "Hill index, left 1%", 2, _tail(of.TAIL_SHARE, left=True)),
)
_DEPENDENCE = (
    _lower("return_acf_error", "ACF of r, lags 1–20, mean error", 4, _error(_acf, of.ACF_LAGS)),
    _real("magnitude_acf", "ACF of |r|, lags 1–20, mean", 4, _mean_lag(_magnitude_acf, of.ACF_LAGS)),
    _lower(
        "magnitude_acf_error", "ACF of |r|, lags 1–20, mean error", 4, _error(_magnitude_acf, of.ACF_LAGS), small(0.01)
    ),
    replace(
        _real("leverage", "leverage, lags 1–5, mean", 4, _mean_lag(_leverage, of.LEVERAGE_MEAN_LAGS), near_leverage()),
        former=half_leverage(),
    ),
    _lower("leverage_error", "leverage, lags 1–10, mean error", 4, _error(_leverage, of.LEVERAGE_LAGS)),
    _real("mean_correlation", "mean correlation of stocks", 3, _correlation("mean"), near(0.03)),
    _lower("correlation_rmse", "RMSE of correlations", 3, _correlation_error, at_most(0.06)),
    _real("first_eigenvalue", "first eigenvalue, share", 3, _correlation("first_eigenvalue"), near(0.03)),
    _real("worst_days_correlation", "mean correlation, worst 5% of days", 3, _correlation("worst_days")),
)
_BARS = (
    _real("volume_correlation", "correlation of |r| and volume", 3, bars.volume_correlation, near(0.03)),
    _real("volume_persistence", "ACF of volume, lag 1", 3, _volume_persistence),
    _lower("gap_ks", "KS, overnight gap", 4, partial(bars.bar_distance, numerator=OPEN)),
    _lower("body_ks", "KS, open to close", 4, partial(bars.bar_distance, numerator=CLOSE, denominator=OPEN)),
    _lower("range_ks", "KS, high to low", 4, partial(bars.bar_distance, numerator=HIGH, denominator=LOW)),
    Criterion("invalid_bars", "invalid bars, share", LOWER, 4, at_most(0.0), _invalid, perfect=0.0),
    _real("drawdown_mean", "40-day drawdown, mean, points", 2, _drawdown),
    _lower("drawdown_w1", "40-day drawdown, W1, points", 2, _drawdown_distance, small(0.5)),
    Criterion("memory_ratio", "nearest training window, over real", HIGHER, 3, at_least(1.0), _NEAREST, perfect=1.0),
    Criterion("memory_share", "nearer than the nearest 1% of real", REAL, 4, None, _NEARER, perfect=0.01),
)
_DISCRIMINATORS = (
    *_classifier("boosting", "discriminator, boosting", 0.02, STOCK_AUC),
    *_classifier("gru", "discriminator, GRU", 0.05, STOCK_AUC),
    *_classifier("panel_boosting", "25 stocks, boosting", 0.10, PANEL_AUC),
    *_classifier("panel_gru", "25 stocks, GRU", 0.10, PANEL_AUC),
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
    *_classifier("bars_boosting", "whole bars, boosting", 0.05, STOCK_AUC),
    *_classifier("bars_gru", "whole bars, GRU", 0.05, STOCK_AUC),
    *_classifier("panel_bars_boosting", "25 stocks' whole bars, boosting", 0.15, PANEL_AUC),
    *_classifier("panel_bars_gru", "25 stocks' whole bars, GRU", 0.15, PANEL_AUC),
)

CRITERIA = (
    *(*_FORECASTS, *_DISTRIBUTIONS, *_DEPENDENCE, *_BARS, *_DISCRIMINATORS),
    *(replace(criterion, since=max(criterion.since, 2)) for criterion in _WHOLE_BARS),
)
"""Criteria of whole paths, in the order of the table."""


def criteria(long_days: int = 0) -> tuple[Criterion, ...]:
    """Return the lines of the table, those by rollout day last; without long paths `long_days` is 0."""
    buckets = (*DAY_BUCKETS, *([(DAY_BUCKETS[-1][1] + 1, long_days)] if long_days else []))
    return (*CRITERIA, *(criterion for bucket in buckets for criterion in by_day(*bucket)))
