"""Realism metrics by name as numbers with intervals, for the real days and for models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from vecenv.learn.intervals import Interval
from vecenv.worldmodel.data.bar_moves import encode_history
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.metrics.bar_discriminator import Told
from vecenv.worldmodel.metrics.bar_statistics import (
    bar_distances,
    gap_kurtosis,
    gap_statistics,
    invalid_share,
    log_range_ratio,
    log_volume_ratio,
    volume_statistics,
)
from vecenv.worldmodel.metrics.dependence import (
    ACF_LAGS,
    LEVERAGE_MEAN_LAGS,
    autocorrelation,
    correlation_rmse,
    cross_correlation,
    leverage,
    leverage_curves,
    magnitude_autocorrelation,
    pair_correlations,
    return_autocorrelation,
)
from vecenv.worldmodel.metrics.distribution import horizon_distances, return_shape, tail_indices, volatility_ratios
from vecenv.worldmodel.metrics.forecast import CRPS_UNIT, ForecastScores, energy_score, summarise, variogram_score
from vecenv.worldmodel.metrics.intervals import BLOCK, block_bootstrap
from vecenv.worldmodel.metrics.paths import DAY_BUCKETS, drawdown_comparison, drift, max_drawdowns, memorisation
from vecenv.worldmodel.metrics.windows import Windows
from vecenv.worldmodel.validation.judge import Trial

Figures = dict[str, Interval]

HORIZONS = (1, 5, 20)
"""Horizons in days of the compared return distributions."""

DISCRIMINATORS = ("boosting", "gru", "panel_boosting", "panel_gru")
"""Classifiers reported by their distance from chance."""

COVERAGES = (50, 90, 99)
"""Central intervals of a forecast, in percent."""

NLL_BLOCK = 20
"""Bootstrap block length in test days: volatility, and with it the density, is autocorrelated for weeks."""

REAL_DRAWS = 300
"""Bootstrap draws for the real days, which give bounds to about a tenth of the interval's width."""

PERFECT = {
    "volatility_ratio": 1.0,
    "market_volatility_ratio": 1.0,
    "stock_volatility_ratio": 1.0,
    "direction_accuracy": 0.5,
    "memory_ratio": 1.0,
    "memory_share": 0.01,
    "invalid_bars": 0.0,
} | {f"coverage_{percent}": percent / 100 for percent in COVERAGES}
"""Values of a perfect model, for metrics without a value of the real days."""


def real_figures(real: Windows, draws: int = REAL_DRAWS) -> Figures:
    """Return the metrics of the real days, with intervals over origins, and the values of a perfect model."""
    statistics: dict[str, Callable[[Windows], float]] = {
        "excess_kurtosis": lambda windows: return_shape(windows).excess_kurtosis,
        "skew": lambda windows: return_shape(windows).skew,
        "hill": lambda windows: tail_indices(windows).both,
        "hill_wide": lambda windows: tail_indices(windows).both_wide,
        "hill_left": lambda windows: tail_indices(windows).left,
        "magnitude_acf": lambda windows: float(autocorrelation(windows.returns.abs(), ACF_LAGS).mean()),
        "leverage": lambda windows: float(leverage(windows.returns, LEVERAGE_MEAN_LAGS).mean()),
        "mean_correlation": lambda windows: cross_correlation(windows).mean,
        "first_eigenvalue": lambda windows: cross_correlation(windows).first_eigenvalue,
        "worst_days_correlation": lambda windows: cross_correlation(windows).worst_days,
        "volume_correlation": lambda windows: volume_statistics(windows).correlation,
        "volume_persistence": lambda windows: volume_statistics(windows).persistence,
        "drawdown_mean": lambda windows: float(max_drawdowns(windows).nanmean()),
    }
    figures = {name: point(value) for name, value in PERFECT.items()}
    for name, statistic in statistics.items():
        figures[name] = over_origins(real, statistic, draws)
    return figures


def density_figures(trial: Trial, model: MarketModel) -> Figures:
    """Return the negative log-densities of the test days' returns, alone and joint, in nats per stock-day.

    Densities that the model lacks are left out.
    """
    bars = trial.test_days()
    returns = encode_history(bars).valid[0].sum(-1)
    test = slice(trial.first - len(trial.bars.dates), None)
    figures: Figures = {}
    densities = (
        ("nll", model.has_density, model.log_density),
        ("joint_nll", model.has_joint_density, model.joint_log_density),
    )
    for name, defined, density in densities:
        if not defined:
            continue
        total = -density(bars).reshape(len(returns), -1).nansum(-1)
        figures[name] = _ratio(total[test], returns[test], NLL_BLOCK)
    return figures


def forecast_figures(scores: ForecastScores, block: int) -> Figures:
    """Return the scores of one-day forecasts, means of days with intervals."""
    means = {
        "crps": scores.crps / CRPS_UNIT,
        "mae": scores.median_error,
        "sampled_mae": scores.sampled_error,
        "direction_accuracy": scores.direction_hit,
    }
    figures = {name: _ratio(by.nansum(-1), (~by.isnan()).sum(-1), block) for name, by in means.items()}
    summary = summarise(scores)
    figures["pit_distance"] = point(summary.pit_distance)
    for percent, share in zip(COVERAGES, summary.coverage, strict=True):
        figures[f"coverage_{percent}"] = point(share)
    return figures


def path_figures(real: Windows, synthetic: Windows, train_returns: Tensor) -> Figures:
    """Return the metrics that compare generated days with the real ones after the same origins."""
    scores = {"energy_score": energy_score(real, synthetic), "variogram_score": variogram_score(real, synthetic)}
    figures = {name: _ratio(score, torch.ones_like(score)) for name, score in scores.items()}
    ratios = volatility_ratios(real, synthetic)
    shape, tails = return_shape(synthetic), tail_indices(synthetic)
    magnitude, effect = magnitude_autocorrelation(real, synthetic), leverage_curves(real, synthetic)
    observed, generated = cross_correlation(real), cross_correlation(synthetic)
    volume, bars = volume_statistics(synthetic), bar_distances(real, synthetic)
    drawdown, memory = drawdown_comparison(real, synthetic), memorisation(train_returns, real, synthetic)
    values = {
        "volatility_ratio": ratios.pooled,
        "market_volatility_ratio": ratios.market,
        "stock_volatility_ratio": ratios.stock_median,
        "excess_kurtosis": shape.excess_kurtosis,
        "skew": shape.skew,
        "hill": tails.both,
        "hill_wide": tails.both_wide,
        "hill_left": tails.left,
        "return_acf_error": return_autocorrelation(real, synthetic).error,
        "magnitude_acf": magnitude.means(ACF_LAGS).synthetic,
        "magnitude_acf_error": magnitude.error,
        "leverage": effect.means(LEVERAGE_MEAN_LAGS).synthetic,
        "leverage_error": effect.error,
        "mean_correlation": generated.mean,
        "correlation_rmse": correlation_rmse(observed, generated),
        "first_eigenvalue": generated.first_eigenvalue,
        "worst_days_correlation": generated.worst_days,
        "volume_correlation": volume.correlation,
        "volume_persistence": volume.persistence,
        "gap_ks": bars.gap,
        "body_ks": bars.body,
        "range_ks": bars.range,
        "invalid_bars": invalid_share(synthetic),
        "drawdown_mean": drawdown.synthetic_mean,
        "drawdown_w1": drawdown.wasserstein,
        "memory_ratio": memory.distance_ratio,
        "memory_share": memory.share_below,
    }
    for days in HORIZONS:
        distances = horizon_distances(real, synthetic, days)
        values |= {f"ks_{days}": distances.ks, f"w1_{days}": distances.wasserstein}
    figures |= {name: point(value) for name, value in values.items()}
    # The range over stocks is reported as the interval.
    figures["stock_volatility_ratio"] = Interval(ratios.stock_median, ratios.stock_low, ratios.stock_high)
    return figures | drift_figures(real, synthetic, DAY_BUCKETS)


def drift_figures(real: Windows, synthetic: Windows, buckets: Sequence[tuple[int, int]]) -> Figures:
    """Return metrics by rollout day, with the days in each name."""
    figures: Figures = {}
    for bucket in drift(real, synthetic, buckets):
        first, last = bucket.first, bucket.last
        market = volatility_ratios(real.days(first, last), synthetic.days(first, last)).market
        values = {
            "volatility_ratio": bucket.volatility_ratio,
            "market_volatility_ratio": market,
            "ks": bucket.ks,
            "return_acf_error": bucket.return_acf_error,
            "magnitude_acf_error": bucket.magnitude_acf_error,
        }
        figures |= {f"{name}_days_{first}_{last}": point(value) for name, value in values.items()}
    return figures


def discriminator_figures(accuracies: Mapping[str, Interval]) -> Figures:
    """Return the discriminative score |accuracy - 0.5| of classifiers, and the test error of the LSTM."""
    figures = {f"{name}_score": distance_from_chance(accuracies[name]) for name in DISCRIMINATORS}
    lstm = accuracies["lstm"]
    return figures | {"lstm_error": Interval(1.0 - lstm.mean, 1.0 - lstm.high, 1.0 - lstm.low)}


def average(runs: Sequence[Figures]) -> Figures:
    """Return the mean of every metric, and of its bounds, over runs with different seeds or weights.

    Bounds that a metric lacks are those of its range over the runs.
    """
    return {name: _averaged([run[name] for run in runs]) for name in runs[0]}


def point(value: float) -> Interval:
    """Return a figure without an interval."""
    return Interval(value, math.nan, math.nan)


def to_json(figures: Mapping[str, Interval]) -> dict[str, dict[str, float | None]]:
    """Return figures with None where there is no number."""
    return {
        name: {part: number if math.isfinite(number) else None for part, number in figure._asdict().items()}
        for name, figure in figures.items()
    }


def distance_from_chance(accuracy: Interval) -> Interval:
    """Return |accuracy - 0.5|, with lower bound 0 if the interval contains 0.5."""
    mean, low, high = (part - 0.5 for part in accuracy)
    nearest = 0.0 if low < 0.0 < high else min(abs(low), abs(high))
    return Interval(abs(mean), nearest, max(abs(low), abs(high)))


def over_origins(windows: Windows, statistic: Callable[[Windows], float], draws: int) -> Interval:
    """Return a statistic of windows with the bootstrap's interval over origins."""
    return block_bootstrap(lambda origins: statistic(windows.select(origins)), len(windows.returns), draws=draws)


def _ratio(total: Tensor, count: Tensor, block: int = BLOCK) -> Interval:
    """Return the sum of totals over the sum of counts, with the bootstrap's interval over days. Shapes: (D,), (D,)."""
    return block_bootstrap(lambda days: float(total[days].sum() / count[days].sum()), len(total), block)


def _averaged(figures: Sequence[Interval]) -> Interval:
    mean, low, high = torch.tensor(figures, dtype=torch.float64).mean(0).tolist()
    if len(figures) > 1 and math.isnan(low):
        low, high = min(figure.mean for figure in figures), max(figure.mean for figure in figures)
    return Interval(mean, low, high)


BASIS_POINT = 1e-4

STATISTICS: dict[str, Callable[[Windows], float]] = {
    "volume_pair_correlation": lambda windows: float(pair_correlations(log_volume_ratio(windows)).nanmean()),
    "range_pair_correlation": lambda windows: float(pair_correlations(log_range_ratio(windows)).nanmean()),
    "zero_gaps": lambda windows: gap_statistics(windows).zero_share,
    "gap_body_ratio": lambda windows: gap_statistics(windows).body_ratio,
    "drift": lambda windows: float(windows.returns.nanmean(dtype=torch.float64)) / BASIS_POINT,
}
"""Statistics of windows by name, defined equally for real and generated ones."""


def real_bar_figures(real: Windows, every: int, draws: int = REAL_DRAWS) -> Figures:
    """Return the statistics of the real days' bars, with intervals over origins."""
    figures = {name: over_origins(real, statistic, draws) for name, statistic in STATISTICS.items()}
    apart = _apart(real, every)
    figures["gap_kurtosis"] = block_bootstrap(
        lambda origins: gap_kurtosis(apart.select(origins)), len(apart.returns), block=1, draws=draws
    )
    return figures


def bar_figures(synthetic: Windows, every: int) -> Figures:
    """Return the statistics of a model's bars."""
    figures = {name: point(statistic(synthetic)) for name, statistic in STATISTICS.items()}
    return figures | {"gap_kurtosis": point(gap_kurtosis(_apart(synthetic, every)))}


def bar_discriminator_figures(told: Mapping[str, Told]) -> Figures:
    """Return the discriminative score |accuracy - 0.5| and the AUC of classifiers of whole bars."""
    figures = {f"{name}_score": distance_from_chance(each.accuracy) for name, each in told.items()}
    return figures | {f"{name}_auc": each.auc for name, each in told.items()}


def _apart(windows: Windows, every: int) -> Windows:
    """Return the windows of origins whose days do not overlap."""
    step = -(-windows.horizon // every)
    return windows.select(torch.arange(0, len(windows.returns), step))
