"""Table of realism metrics: labels, directions of improvement, and acceptance bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from vecenv.learn.metrics import Interval
from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation, GarchT
from vecenv.worldmodel.metrics.paths import DAY_BUCKETS
from vecenv.worldmodel.network.architectures import RUNNING_MEAN_CHAIN
from vecenv.worldmodel.validation.figures import COVERAGES, HORIZONS, PERFECT, Figures, point

LAST_YEAR = 250
"""Days of the shorter bootstrap."""

LAST_YEAR_BOOTSTRAP = f"bootstrap, last {LAST_YEAR} days"

MISSING = "–"


class Aim(Enum):
    """Direction of improvement of a figure: lower, higher, or nearer to the real one."""

    LOWER = "↓"
    HIGHER = "↑"
    REAL = "≈"


@dataclass(frozen=True)
class Case:
    """A figure with its references.

    Attributes:
        value: of the model.
        real: of the real days, or of a perfect model; NaN if neither exists.
        rivals: of every baseline with the figure, by name.
    """

    value: float
    real: Interval
    rivals: Mapping[str, float]


@dataclass(frozen=True)
class Bar:
    """Acceptance bar of a figure.

    Attributes:
        text: description.
        met: test of a case; None if undecidable from the run.
    """

    text: str
    met: Callable[[Case], bool | None]


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        key: of the figure.
        label: with the unit.
        aim: direction of improvement.
        digits: after the decimal point.
        bar: acceptance bar, if any.
    """

    key: str
    label: str
    aim: Aim
    digits: int = 3
    bar: Bar | None = None


def _below(*names: str, margin: float = 0.0) -> Bar:
    def met(case: Case) -> bool | None:
        if not all(name in case.rivals for name in names):
            return None
        return all(case.value < case.rivals[name] - margin for name in names)

    return Bar((f"{margin:g} " if margin else "") + "below " + " and ".join(names), met)


def _below_all(case: Case) -> bool | None:
    return case.value < min(case.rivals.values()) if case.rivals else None


def _within(low: float, high: float) -> Bar:
    return Bar(f"{low:g} to {high:g}", lambda case: low <= case.value <= high)


def _near(tolerance: float) -> Bar:
    return Bar(f"within {tolerance:g} of real", lambda case: abs(case.value - case.real.mean) <= tolerance)


def _at_most(limit: float) -> Bar:
    return Bar(f"at most {limit:g}", lambda case: case.value <= limit)


def _small(limit: float) -> Bar:
    return Bar(f"at most {limit:g}, or below all", lambda case: case.value <= limit or _below_all(case))


def _in_interval(case: Case) -> bool | None:
    return None if math.isnan(case.real.low) else case.real.low <= case.value <= case.real.high


LEAST = Bar("below all", _below_all)
VOLATILITY = _within(0.92, 1.08)
IN_INTERVAL = Bar("within real interval", _in_interval)
HALF_LEVERAGE = Bar(
    "sign of real, half its size", lambda case: case.value * case.real.mean >= 0.5 * case.real.mean * case.real.mean
)
NOT_BELOW_REAL = Bar("at least 1", lambda case: case.value >= 1.0)

_FORECASTS = (
    Row("nll", "NLL, nats per stock-day", Aim.LOWER, 4, _below(GarchT.name, margin=0.02)),
    Row("joint_nll", "joint NLL / N, nats per stock-day", Aim.LOWER, 4, _below(RUNNING_MEAN_CHAIN, margin=0.03)),
    Row("crps", "CRPS, 1 day, 1e-4", Aim.LOWER, 2, _below(FilteredHistoricalSimulation.name)),
    Row("mae", "MAE of the median, 1 day", Aim.LOWER, 5),
    Row("sampled_mae", "MAE of a draw, 1 day", Aim.LOWER, 5),
    Row("direction_accuracy", "direction accuracy", Aim.REAL, 3, _within(0.48, 0.52)),
    Row("pit_distance", "PIT, KS distance from uniform", Aim.LOWER),
    *(Row(f"coverage_{percent}", f"coverage of the {percent}% interval", Aim.REAL) for percent in COVERAGES),
    Row(
        "energy_score",
        "energy score, 20 days",
        Aim.LOWER,
        4,
        _below(FilteredHistoricalSimulation.name, LAST_YEAR_BOOTSTRAP),
    ),
    Row("variogram_score", "variogram score, 20 days", Aim.LOWER, 4),
)
_DISTRIBUTIONS = (
    Row("volatility_ratio", "volatility ratio", Aim.REAL, 3, VOLATILITY),
    Row("market_volatility_ratio", "volatility ratio of the market", Aim.REAL, 3, VOLATILITY),
    Row("stock_volatility_ratio", "volatility ratio, median stock", Aim.REAL),
    *(Row(f"ks_{days}", f"KS, {days}-day returns", Aim.LOWER, 4, LEAST) for days in HORIZONS),
    *(Row(f"w1_{days}", f"W1, {days}-day returns, real std", Aim.LOWER, 4, LEAST) for days in HORIZONS),
    Row("excess_kurtosis", "excess kurtosis", Aim.REAL, 2, IN_INTERVAL),
    Row("skew", "skew", Aim.REAL, 2),
    Row("hill", "Hill index, 1%", Aim.REAL, 2, IN_INTERVAL),
    Row("hill_wide", "Hill index, 2.5%", Aim.REAL, 2),
    Row("hill_left", "Hill index, left 1%", Aim.REAL, 2),
)
_DEPENDENCE = (
    Row("return_acf_error", "ACF of r, lags 1–20, mean error", Aim.LOWER, 4),
    Row("magnitude_acf", "ACF of |r|, lags 1–20, mean", Aim.REAL, 4),
    Row("magnitude_acf_error", "ACF of |r|, lags 1–20, mean error", Aim.LOWER, 4, _small(0.010)),
    Row("leverage", "leverage, lags 1–5, mean", Aim.REAL, 4, HALF_LEVERAGE),
    Row("leverage_error", "leverage, lags 1–10, mean error", Aim.LOWER, 4),
    Row("mean_correlation", "mean correlation of stocks", Aim.REAL, 3, _near(0.03)),
    Row("correlation_rmse", "RMSE of correlations", Aim.LOWER, 3, _at_most(0.06)),
    Row("first_eigenvalue", "first eigenvalue, share", Aim.REAL, 3, _near(0.03)),
    Row("worst_days_correlation", "mean correlation, worst 5% of days", Aim.REAL),
)
_BARS = (
    Row("volume_correlation", "correlation of |r| and volume", Aim.REAL, 3, _near(0.03)),
    Row("volume_persistence", "ACF of volume, lag 1", Aim.REAL),
    Row("gap_ks", "KS, overnight gap", Aim.LOWER, 4),
    Row("body_ks", "KS, open to close", Aim.LOWER, 4),
    Row("range_ks", "KS, high to low", Aim.LOWER, 4),
    Row("invalid_bars", "invalid bars, share", Aim.LOWER, 4, _at_most(0.0)),
    Row("drawdown_mean", "40-day drawdown, mean, points", Aim.REAL, 2),
    Row("drawdown_w1", "40-day drawdown, W1, points", Aim.LOWER, 2, _small(0.5)),
    Row("memory_ratio", "nearest training window, over real", Aim.HIGHER, 3, NOT_BELOW_REAL),
    Row("memory_share", "nearer than the nearest 1% of real", Aim.REAL, 4),
)
_DISCRIMINATORS = (
    Row("boosting_score", "discriminator, boosting, |acc − 0.5|", Aim.LOWER, 3, _at_most(0.02)),
    Row("gru_score", "discriminator, GRU, |acc − 0.5|", Aim.LOWER, 3, _at_most(0.05)),
    Row("panel_boosting_score", "25 stocks, boosting, |acc − 0.5|", Aim.LOWER, 3, _at_most(0.10)),
    Row("panel_gru_score", "25 stocks, GRU, |acc − 0.5|", Aim.LOWER, 3, _at_most(0.10)),
    Row("lstm_error", "discriminator, LSTM-32, test error", Aim.REAL, 3),
)


def rows(long_days: int = 0) -> tuple[Row, ...]:
    """Return the lines of the table, those by rollout day last.

    Args:
        long_days: days of the long paths; 0 without any.
    """
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
    return (*_FORECASTS, *_DISTRIBUTIONS, *_DEPENDENCE, *_BARS, *_DISCRIMINATORS, *by_day)


def reference(row: Row, real: Figures) -> Interval:
    """Return the value of the real days, or else of a perfect model; NaN if the figure is only to be small."""
    if row.key in real:
        return real[row.key]
    # A volatility ratio by rollout day uses the reference of the overall ratio.
    return point(PERFECT.get(row.key.partition("_days_")[0], math.nan))


def verdict(row: Row, real: Figures, model: Figures, rivals: Mapping[str, Figures]) -> bool | None:
    """Return whether a model meets a row's bar; None if there is no bar, or it is undecidable from the run.

    Args:
        row: of the table.
        real: figures of the real days.
        model: figures of the model.
        rivals: figures of the baselines, by name.
    """
    if row.bar is None or row.key not in model or math.isnan(model[row.key].mean):
        return None
    known = {name: figures[row.key].mean for name, figures in rivals.items() if row.key in figures}
    return row.bar.met(Case(model[row.key].mean, reference(row, real), known))


def cells(
    table: Sequence[Row],
    real: Figures,
    models: Mapping[str, Figures],
    judged: str | None = None,
    intervals: bool = True,
) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines of the table as text.

    Args:
        table: lines.
        real: figures of the real days.
        models: figures of each model, by name.
        judged: name of the model held to the bars, if any.
        intervals: show them.
    """
    headings = ["figure", "better", "real"]
    names = list(models)
    if judged is not None:
        names.remove(judged)
        headings += [judged, "good", "met"]
    rivals = {name: models[name] for name in names}
    lines = []
    for row in table:
        line = [row.label, row.aim.value, _text(reference(row, real), row.digits, intervals)]
        if judged is not None:
            met = verdict(row, real, models[judged], rivals)
            line.append(_text(models[judged].get(row.key), row.digits, intervals))
            line += [row.bar.text if row.bar else "", {True: "yes", False: "no", None: MISSING if row.bar else ""}[met]]
        lines.append(line + [_text(models[name].get(row.key), row.digits, intervals) for name in names])
    return headings + names, lines


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rules = ["---" if index < 2 else "---:" for index in range(len(headings))]
    return "\n".join(
        "| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in (headings, rules, *lines)
    )


def _text(figure: Interval | None, digits: int, interval: bool) -> str:
    if figure is None or math.isnan(figure.mean):
        return MISSING
    text = f"{figure.mean:.{digits}f}"
    if interval and not math.isnan(figure.low):
        text += f" [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"
    return text
