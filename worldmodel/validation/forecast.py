"""Forecast scores: CRPS and coverage of each stock's next day, energy and variogram scores of the joint next weeks.

Differences of two models' scores are paired by day: what is hard for both cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.learn.intervals import Interval
from vecenv.worldmodel.validation.settings import TAILS
from vecenv.worldmodel.validation.windows import BLOCK, Windows, ratio_interval

CRPS_UNIT = 1e-4
"""Unit of a summary's CRPS: hundredths of a percent of log-return."""


class ForecastScores(NamedTuple):
    """Scores of each forecast, NaN where nothing was observed. Shape of each: (D, N).

    `sampled_error` is the mean absolute error of the draws: 1.41 times that of the median for a normal distribution,
    about 1.44 for daily returns. `direction_hit` is NaN for a zero outcome, and `pit` the outcome's mid-rank. `covered`
    by the intervals of `TAILS`, of shape (D, N, 3), is NaN with too few draws for their ends.
    """

    crps: Tensor
    median_error: Tensor
    sampled_error: Tensor
    direction_hit: Tensor
    pit: Tensor
    covered: Tensor

    def select(self, days: Tensor) -> ForecastScores:
        return ForecastScores(*(part[days] for part in self))


class ForecastSummary(NamedTuple):
    """Mean CRPS over days and stocks in units of `CRPS_UNIT`, and the calibration of `ForecastScores`.

    `pit_distance` is that of Kolmogorov and Smirnov from the uniform distribution.
    """

    crps: float
    pit_distance: float
    coverage: tuple[float, ...]


def forecast_scores(samples: Tensor, outcomes: Tensor) -> ForecastScores:
    """Score draws of each stock against the outcome. Shapes: samples (D, M, N); outcomes (D, N), NaN where missing.

    CRPS = E|X - y| - E|X - X'| / 2 over pairs of different draws, which is unbiased for any number of them (Ferro,
    "Fair scores for ensemble forecasts", QJRMS 140, 2014). Ends of intervals are quantiles at p (M + 1), between which
    a new draw of the same distribution falls with the stated probability.

    Raises:
        ValueError: shapes disagree, there are fewer than two draws, or one with an outcome is not finite.
    """
    if samples.ndim != 3 or outcomes.shape != (len(samples), samples.shape[-1]):
        raise ValueError(f"samples need (D, M, N) and outcomes (D, N), got {[*samples.shape]} and {[*outcomes.shape]}")
    count = samples.shape[1]
    _require_pairs(count)
    bad = (~samples.isfinite().all(1) & ~outcomes.isnan()).nonzero().tolist()
    if bad:
        raise ValueError(f"samples are not all finite for (day, stock) {tuple(bad[0])}, {len(bad)} in all")
    draws = samples.transpose(1, 2).sort(-1).values
    outcome = outcomes.to(draws.dtype)
    missing, target = outcome.isnan(), outcome.unsqueeze(-1)

    median = (draws[..., (count - 1) // 2] + draws[..., count // 2]) / 2
    sampled_error = (draws - target).abs().mean(-1)
    # The i-th of M sorted draws is above i others and below M - 1 - i.
    weights = 2.0 * torch.arange(count, dtype=draws.dtype, device=draws.device) - (count - 1)
    distance = 2.0 * (draws @ weights) / (count * (count - 1))
    rank = (draws < target).sum(-1) + 0.5 * (draws == target).sum(-1)
    covered = [_covered(draws, outcome, tail).to(draws.dtype).masked_fill(missing, math.nan) for tail in TAILS]
    return ForecastScores(
        crps=sampled_error - distance / 2,
        median_error=(median - outcome).abs(),
        sampled_error=sampled_error,
        direction_hit=(median.sign() == outcome.sign()).to(draws.dtype).masked_fill(missing | (outcome == 0), math.nan),
        pit=((rank + 0.5) / (count + 1)).masked_fill(missing, math.nan),
        covered=torch.stack(covered, dim=-1),
    )


def summarise(scores: ForecastScores) -> ForecastSummary:
    """Summarise scores over days and stocks."""
    pit = scores.pit[~scores.pit.isnan()].double().sort().values
    steps = torch.arange(len(pit) + 1, dtype=torch.float64, device=pit.device) / len(pit)
    return ForecastSummary(
        crps=float(scores.crps.nanmean(dtype=torch.float64)) / CRPS_UNIT,
        pit_distance=float(torch.maximum(steps[1:] - pit, pit - steps[:-1]).max()),
        coverage=tuple(scores.covered.flatten(0, 1).nanmean(0, dtype=torch.float64).tolist()),
    )


def energy_score(real: Windows, synthetic: Windows, days: int = 20) -> Tensor:
    """Score the joint distribution of all stocks' returns over the first days after each origin; lower is better.

    mean_m |x_m - y| - mean_{m != m'} |x_m - x_m'| / 2, over the root of the number of stocks, of returns in units of
    each stock's scale times sqrt(days) (Gneiting and Raftery, JASA 102, 2007). Stocks with a gap are left out of their
    origin. Shape: (O,), float64, whose mean is the score.

    Raises:
        ValueError: the windows are shorter, or there are fewer than two paths.
    """
    _require_pairs(synthetic.returns.shape[1])
    scores = []
    for outcome, draws in zip(_horizon_returns(real, days)[:, 0], _horizon_returns(synthetic, days), strict=True):
        stocks = ~outcome.isnan()
        draws, outcome = draws[:, stocks], outcome[stocks]
        # Distances by matrix products would lose precision.
        between = torch.cdist(draws, draws, compute_mode="donot_use_mm_for_euclid_dist").sum()
        spread = between / (len(draws) * (len(draws) - 1))
        scores.append(((draws - outcome).norm(dim=-1).mean() - spread / 2) / math.sqrt(len(outcome)))
    return torch.stack(scores)


def variogram_score(real: Windows, synthetic: Windows, days: int = 20, power: float = 0.5) -> Tensor:
    """Score the differences between stocks, which is more sensitive to wrong correlations than the energy score.

    Mean over pairs of stocks of (|y_i - y_j|^p - mean_m |x_mi - x_mj|^p)^2, of the same returns as the `energy_score`
    (Scheuerer and Hamill, Monthly Weather Review 143, 2015; equal weights). Shape: (O,), float64, whose mean is the
    score.

    Raises:
        ValueError: the windows are shorter.
    """
    scores = []
    for outcome, draws in zip(_horizon_returns(real, days), _horizon_returns(synthetic, days), strict=True):
        stocks = ~outcome[0].isnan()
        observed, expected = (_variogram(part[:, stocks], power) for part in (outcome, draws))
        scores.append((observed - expected).square().mean())
    return torch.stack(scores)


class DailyScores(NamedTuple):
    """A score of every forecast day or origin: its sum over the stocks, and their number, (D,); days of a block."""

    total: Tensor
    stocks: Tensor
    block: int


def daily_scores(forecasts: ForecastScores, block: int, real: Windows, synthetic: Windows) -> dict[str, DailyScores]:
    """Return a model's CRPS of each forecast day and its energy score of each origin."""
    energy = energy_score(real, synthetic)
    return {
        "crps": DailyScores(forecasts.crps.nansum(-1) / CRPS_UNIT, (~forecasts.crps.isnan()).sum(-1), block),
        "energy_score": DailyScores(energy, torch.ones_like(energy), BLOCK),
    }


def mean_scores(runs: Sequence[Mapping[str, DailyScores]]) -> dict[str, DailyScores]:
    """Return the mean over runs with different seeds."""
    return {
        name: first._replace(total=torch.stack([run[name].total for run in runs]).mean(0))
        for name, first in runs[0].items()
    }


def paired_difference(model: DailyScores, rival: DailyScores) -> Interval:
    """Return the mean difference of two models' scores with the block bootstrap's interval over common days.

    Each day's Monte-Carlo error is independent of the other days', so that the interval covers it too.
    """
    if len(model.stocks) != len(rival.stocks) or not bool((model.stocks == rival.stocks).all()):
        raise ValueError("paired scores need the same days and stocks")
    return ratio_interval(model.total - rival.total, model.stocks, model.block)


def paired_differences(scores: Mapping[str, Mapping[str, DailyScores]], model: str) -> dict[str, dict[str, Interval]]:
    """Return the differences of a model's scores less every other model's, by score and other model."""
    return {
        name: {rival: paired_difference(own, theirs[name]) for rival, theirs in scores.items() if rival != model}
        for name, own in scores[model].items()
    }


def _require_pairs(count: int) -> None:
    if count < 2:
        raise ValueError(f"a score of a distribution needs at least 2 draws, got {count}")


def _covered(draws: Tensor, outcome: Tensor, tail: float) -> Tensor:
    """Return whether the interval between two quantiles of ordered draws holds the outcome, NaN if it has no ends."""
    count = draws.shape[-1]
    fraction, whole = math.modf(tail * (count + 1))
    below = int(whole)
    if below < 1:
        return torch.full_like(outcome, math.nan)
    low = draws[..., below - 1].lerp(draws[..., below], fraction)
    high = draws[..., count - below].lerp(draws[..., count - below - 1], fraction)
    return (low <= outcome) & (outcome <= high)


def _horizon_returns(windows: Windows, days: int) -> Tensor:
    """Return standardised returns over the first days. Shape: (O, M, N), float64."""
    return windows.days(1, days).sums(days)[:, :, 0].double() / math.sqrt(days)


def _variogram(returns: Tensor, power: float) -> Tensor:
    """Return the mean over paths of |x_i - x_j|^p for each pair. Shape: (M, N) -> (N (N - 1) / 2,)."""
    first, second = torch.triu_indices(returns.shape[1], returns.shape[1], offset=1, device=returns.device)
    return (returns[:, first] - returns[:, second]).abs().pow(power).mean(0)
