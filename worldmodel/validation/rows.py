"""Lines of the table of realism: labels, directions of improvement, and acceptance bars."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation, GarchT
from vecenv.worldmodel.metrics.paths import DAY_BUCKETS
from vecenv.worldmodel.network.architectures import RUNNING_MEAN_CHAIN
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
from vecenv.worldmodel.validation.figures import COVERAGES, HORIZONS

LAST_YEAR = 250
"""Days of the shorter bootstrap."""

LAST_YEAR_BOOTSTRAP = f"bootstrap, last {LAST_YEAR} days"


class Aim(Enum):
    """Direction of improvement of a figure: lower, higher, or nearer to the real one."""

    LOWER = "↓"
    HIGHER = "↑"
    REAL = "≈"


@dataclass(frozen=True)
class Row:
    """A line of the table; `former` is the bar of earlier tables if it differs, and `earlier` whether they had it."""

    key: str
    label: str
    aim: Aim
    digits: int = 3
    bar: Bar | None = None
    former: Bar | None = None
    earlier: bool = True


VOLATILITY = within(0.92, 1.08)

_FORECASTS = (
    Row("nll", "NLL, nats per stock-day", Aim.LOWER, 4, below(GarchT.name, margin=0.02)),
    Row("joint_nll", "joint NLL / N, nats per stock-day", Aim.LOWER, 4, below(RUNNING_MEAN_CHAIN, margin=0.03)),
    Row(
        "crps",
        "CRPS, 1 day, 1e-4",
        Aim.LOWER,
        2,
        surely_below(FilteredHistoricalSimulation.name),
        below(FilteredHistoricalSimulation.name),
    ),
    Row("mae", "MAE of the median, 1 day", Aim.LOWER, 5),
    Row("sampled_mae", "MAE of a draw, 1 day", Aim.LOWER, 5),
    Row("direction_accuracy", "direction accuracy", Aim.REAL, 3, within(0.48, 0.52)),
    Row("pit_distance", "PIT, KS distance from uniform", Aim.LOWER),
    *(Row(f"coverage_{percent}", f"coverage of the {percent}% interval", Aim.REAL) for percent in COVERAGES),
    Row(
        "energy_score",
        "energy score, 20 days",
        Aim.LOWER,
        4,
        surely_below(FilteredHistoricalSimulation.name, LAST_YEAR_BOOTSTRAP),
        below(FilteredHistoricalSimulation.name, LAST_YEAR_BOOTSTRAP),
    ),
    Row("variogram_score", "variogram score, 20 days", Aim.LOWER, 4),
)
_DISTRIBUTIONS = (
    Row("volatility_ratio", "volatility ratio", Aim.REAL, 3, VOLATILITY),
    Row("market_volatility_ratio", "volatility ratio of the market", Aim.REAL, 3, VOLATILITY),
    Row("stock_volatility_ratio", "volatility ratio, median stock", Aim.REAL),
    *(Row(f"ks_{days}", f"KS, {days}-day returns", Aim.LOWER, 4, least()) for days in HORIZONS),
    *(Row(f"w1_{days}", f"W1, {days}-day returns, real std", Aim.LOWER, 4, least()) for days in HORIZONS),
    Row("excess_kurtosis", "excess kurtosis", Aim.REAL, 2, in_interval()),
    Row("skew", "skew", Aim.REAL, 2),
    Row("hill", "Hill index, 1%", Aim.REAL, 2, in_interval()),
    Row("hill_wide", "Hill index, 2.5%", Aim.REAL, 2),
    Row("hill_left", "Hill index, left 1%", Aim.REAL, 2),
)
_DEPENDENCE = (
    Row("return_acf_error", "ACF of r, lags 1–20, mean error", Aim.LOWER, 4),
    Row("magnitude_acf", "ACF of |r|, lags 1–20, mean", Aim.REAL, 4),
    Row("magnitude_acf_error", "ACF of |r|, lags 1–20, mean error", Aim.LOWER, 4, small(0.010)),
    Row("leverage", "leverage, lags 1–5, mean", Aim.REAL, 4, near_leverage(), half_leverage()),
    Row("leverage_error", "leverage, lags 1–10, mean error", Aim.LOWER, 4),
    Row("mean_correlation", "mean correlation of stocks", Aim.REAL, 3, near(0.03)),
    Row("correlation_rmse", "RMSE of correlations", Aim.LOWER, 3, at_most(0.06)),
    Row("first_eigenvalue", "first eigenvalue, share", Aim.REAL, 3, near(0.03)),
    Row("worst_days_correlation", "mean correlation, worst 5% of days", Aim.REAL),
)
_BARS = (
    Row("volume_correlation", "correlation of |r| and volume", Aim.REAL, 3, near(0.03)),
    Row("volume_persistence", "ACF of volume, lag 1", Aim.REAL),
    Row("gap_ks", "KS, overnight gap", Aim.LOWER, 4),
    Row("body_ks", "KS, open to close", Aim.LOWER, 4),
    Row("range_ks", "KS, high to low", Aim.LOWER, 4),
    Row("invalid_bars", "invalid bars, share", Aim.LOWER, 4, at_most(0.0)),
    Row("drawdown_mean", "40-day drawdown, mean, points", Aim.REAL, 2),
    Row("drawdown_w1", "40-day drawdown, W1, points", Aim.LOWER, 2, small(0.5)),
    Row("memory_ratio", "nearest training window, over real", Aim.HIGHER, 3, at_least(1.0)),
    Row("memory_share", "nearer than the nearest 1% of real", Aim.REAL, 4),
)
_DISCRIMINATORS = (
    Row("boosting_score", "discriminator, boosting, |acc − 0.5|", Aim.LOWER, 3, at_most(0.02)),
    Row("gru_score", "discriminator, GRU, |acc − 0.5|", Aim.LOWER, 3, at_most(0.05)),
    Row("panel_boosting_score", "25 stocks, boosting, |acc − 0.5|", Aim.LOWER, 3, at_most(0.10)),
    Row("panel_gru_score", "25 stocks, GRU, |acc − 0.5|", Aim.LOWER, 3, at_most(0.10)),
    Row("lstm_error", "discriminator, LSTM-32, test error", Aim.REAL, 3),
)


_WHOLE_BARS = (
    Row("volume_pair_correlation", "mean correlation of volume moves", Aim.REAL, 3, near(0.05)),
    Row("range_pair_correlation", "mean correlation of log-range moves", Aim.REAL, 3, near(0.05)),
    Row("zero_gaps", "gaps of zero, share", Aim.REAL, 4, half_to_double()),
    Row("gap_kurtosis", "excess kurtosis of gaps", Aim.REAL, 1, half_to_double()),
    Row("gap_body_ratio", "std of gaps over std of bodies", Aim.REAL, 3, near_share(0.10)),
    Row("drift", "drift, basis points a day", Aim.REAL, 2, near_drift(FilteredHistoricalSimulation.name)),
    Row("bars_boosting_score", "whole bars, boosting, |acc − 0.5|", Aim.LOWER, 3, at_most(0.05)),
    Row("bars_boosting_auc", "whole bars, boosting, AUC", Aim.LOWER),
    Row("bars_gru_score", "whole bars, GRU, |acc − 0.5|", Aim.LOWER, 3, at_most(0.05)),
    Row("bars_gru_auc", "whole bars, GRU, AUC", Aim.LOWER),
    Row("panel_bars_boosting_score", "25 stocks' whole bars, boosting, |acc − 0.5|", Aim.LOWER, 3, at_most(0.15)),
    Row("panel_bars_boosting_auc", "25 stocks' whole bars, boosting, AUC", Aim.LOWER),
    Row("panel_bars_gru_score", "25 stocks' whole bars, GRU, |acc − 0.5|", Aim.LOWER, 3, at_most(0.15)),
    Row("panel_bars_gru_auc", "25 stocks' whole bars, GRU, AUC", Aim.LOWER),
)


def rows(long_days: int = 0) -> tuple[Row, ...]:
    """Return the lines of the table, those by rollout day last; without long paths `long_days` is 0."""
    buckets = (*DAY_BUCKETS, *([(DAY_BUCKETS[-1][1] + 1, long_days)] if long_days else []))
    by_day = []
    for first, last in buckets:
        where, days = f"days_{first}_{last}", f"days {first}–{last}"
        by_day += [
            Row(f"volatility_ratio_{where}", f"{days}: volatility ratio", Aim.REAL, 3, VOLATILITY),
            Row(f"market_volatility_ratio_{where}", f"{days}: market's", Aim.REAL, 3, VOLATILITY),
            Row(f"ks_{where}", f"{days}: KS, 1-day returns", Aim.LOWER, 4),
            Row(f"return_acf_error_{where}", f"{days}: ACF of r, error", Aim.LOWER, 4),
            Row(f"magnitude_acf_error_{where}", f"{days}: ACF of |r|, error", Aim.LOWER, 4),
        ]
    whole_bars = (replace(row, earlier=False) for row in _WHOLE_BARS)
    return (*_FORECASTS, *_DISTRIBUTIONS, *_DEPENDENCE, *_BARS, *_DISCRIMINATORS, *whole_bars, *by_day)
