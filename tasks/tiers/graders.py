"""Graders: grades of an episode in [0, 1], from its summary statistics.

A grader is a pure function of one episode's record, computed in float64; `torch.vmap` batches it. Grades are separate
from the reward: the reward trains, the grade evaluates. A grader's version changes when its grades do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.tasks.tiers.grader_names import GRADERS

STANDARD_COST = 0.002
"""Minimum trading cost charged by a calibrated grade, as a share of the value traded."""

RETURN_FLOOR = 0.02
"""Lower bound of hindsight's lead over buy-and-hold, the unit of a calibrated grade."""

LOSS_SHARE = 0.5
"""A shortfall of this share of hindsight's lead takes a calibrated grade to 0."""

LEAST_EXPOSURE = 0.1
"""Share of the exposure limit that counts as full participation even where hindsight takes less."""

RULE_BREAK_PENALTY = 0.02
"""Share of a calibrated grade lost per order against the rules."""

LEAST_DISCIPLINE = 0.5
"""Share of a calibrated grade that orders against the rules leave at least."""

LOWEST_SEED, HIGHEST_SEED = 0.001, 0.999
"""Bounds of a seed grade."""

# Rounding error: a tick on the largest account changes the deviation of its daily returns by more.
_NO_DEVIATION = 1e-12


class EpisodeStatistics(NamedTuple):
    """Summary statistics of an episode so far. Shape of each: ().

    Returns are simple ones: 0.05 is a gain of 5%. Rates and exposures are shares.

    Attributes:
        tier_days: days of the whole episode, at least 1.
        total_return: portfolio value over its start, less 1.
        deviation: of the daily returns, with n - 1; 0 with fewer than two days or constant returns.
        max_drawdown: largest loss from an earlier peak as a share of the peak, at the closes.
        mistakes: all seven kinds of mistakes together.
        rule_breaks: orders against a rule: on a day closed to buying, beyond a position limit, beyond the day's trades.
        closed_days: days closed to buying.
        respected_days: those of them without an order to buy.
        exposure: mean over the days of the positions' value over the portfolio value.
        traded: value traded over the value at the start; also ``benchmark_traded``.
        max_exposure: the tier's limit, above 0.
        costs: the tier's commission plus slippage.
        benchmark_return: of buying and holding the traded symbols within the tier's limits and at its costs.
        oracle_return: of trading with hindsight, net of at least the standard cost.
        periods_per_year: days of a year of the market.
    """

    days: Tensor
    tier_days: Tensor
    total_return: Tensor
    mean_return: Tensor
    deviation: Tensor
    max_drawdown: Tensor
    num_trades: Tensor
    mistakes: Tensor
    rule_breaks: Tensor
    closed_days: Tensor
    respected_days: Tensor
    exposure: Tensor
    traded: Tensor
    max_exposure: Tensor
    costs: Tensor
    benchmark_return: Tensor
    benchmark_traded: Tensor
    oracle_return: Tensor
    oracle_exposure: Tensor
    periods_per_year: Tensor


def in_double(record: EpisodeStatistics) -> EpisodeStatistics:
    """Return the record with every number in float64."""
    return EpisodeStatistics(*[number.double() for number in record])


def sharpe_score(record: EpisodeStatistics, flat: float) -> Tensor:
    """Return the annualised Sharpe ratio S as (S + 1) / 4 in [0, 1], ``flat`` for constant returns. Shape: ()."""
    varies = record.deviation > _NO_DEVIATION
    sharpe = record.periods_per_year.sqrt() * record.mean_return / torch.where(varies, record.deviation, 1.0)
    return torch.where(varies, ((sharpe + 1.0) / 4.0).clamp(0.0, 1.0), flat)


def faultlessness(record: EpisodeStatistics, penalty: float) -> Tensor:
    """Return 1 less ``penalty`` for each mistake, at least 0. Shape: ()."""
    return (1.0 - penalty * record.mistakes).clamp(min=0.0)


def activity(record: EpisodeStatistics) -> Tensor:
    """Score the trades a day over the tier's own days: too few, too many, or more is better. Shape: ()."""
    daily = record.num_trades / record.tier_days
    usual = 0.8 + (0.05 * daily).clamp(max=0.2)
    return torch.where(daily < 0.1, 0.3, torch.where(daily > 5.0, 0.4, usual))


def gate_respect(record: EpisodeStatistics) -> Tensor:
    """Return the share of the closed days without an order to buy, 1 where no day was closed. Shape: ()."""
    share = record.respected_days / record.closed_days.clamp(min=1.0)
    return torch.where(record.closed_days > 0, share, 1.0)


def seed_single(record: EpisodeStatistics) -> Tensor:
    """Grade the return against buying and holding: the published grader, with a real benchmark. Shape: (), float64."""
    record = in_double(record)
    gain, benchmark = record.total_return, record.benchmark_return
    ratio = gain / benchmark.clamp(min=0.001)
    against_gain = torch.where(ratio >= 0.5, 0.4 + 0.4 * (ratio - 0.5), 0.3 + 0.2 * ratio)
    against_gain = torch.where(ratio >= 1.0, 0.6 + 0.4 * (ratio - 1.0), against_gain)
    against_gain = torch.where(ratio >= 1.5, 0.8 + 0.2 * (ratio - 1.5), against_gain)
    against_loss = (0.5 + 3.0 * gain).clamp(max=0.8)
    winning = torch.where(benchmark <= 0, against_loss, against_gain)
    losing = torch.where(gain <= -0.05, 0.1, 0.2 + 2.0 * (gain + 0.05))
    return torch.where(gain <= 0, losing, winning).clamp(LOWEST_SEED, HIGHEST_SEED)


def seed_portfolio(record: EpisodeStatistics) -> Tensor:
    """Grade Sharpe ratio, mistakes and activity: the published grader of 3 and 10 symbols. Shape: (), float64."""
    record = in_double(record)
    grade = 0.6 * sharpe_score(record, flat=0.3) + 0.25 * faultlessness(record, 0.1) + 0.15 * activity(record)
    return grade.clamp(LOWEST_SEED, HIGHEST_SEED)


def seed_full(record: EpisodeStatistics) -> Tensor:
    """Grade return, Sharpe ratio, closed days and risk: the published grader of 25 symbols. Shape: (), float64."""
    record = in_double(record)
    gain = ((record.total_return + 0.05) / 0.15).clamp(0.0, 1.0)
    shallowness = (1.0 - record.max_drawdown / 0.15).clamp(min=0.0)
    risk = 0.5 * (faultlessness(record, 0.05) + shallowness)
    grade = 0.35 * gain + 0.25 * sharpe_score(record, flat=0.2) + 0.25 * gate_respect(record) + 0.15 * risk
    return grade.clamp(LOWEST_SEED, HIGHEST_SEED)


def net_return(total_return: Tensor, traded: Tensor, costs: Tensor) -> Tensor:
    """Charge the standard cost's excess over the tier's costs on the value traded. Shape: ()."""
    return total_return - (STANDARD_COST - costs).clamp(min=0.0) * traded


def position(record: EpisodeStatistics) -> Tensor:
    """Place the return: 0 far below buy-and-hold, 0.5 at it and 1 at hindsight, all net of costs. Shape: ().

    Above buy-and-hold the unit is hindsight's lead over it, at least `RETURN_FLOOR`; below, `LOSS_SHARE` of that.
    """
    benchmark = net_return(record.benchmark_return, record.benchmark_traded, record.costs)
    excess = net_return(record.total_return, record.traded, record.costs) - benchmark
    lead = (record.oracle_return - benchmark).clamp(min=RETURN_FLOOR)
    unit = torch.where(excess >= 0, lead, LOSS_SHARE * lead)
    return (0.5 + 0.5 * excess / unit).clamp(0.0, 1.0)


def participation(record: EpisodeStatistics) -> Tensor:
    """Return exposure over hindsight's, at most 1; that counts as at least `LEAST_EXPOSURE` of the limit. Shape: ()."""
    wanted = torch.maximum(record.oracle_exposure, LEAST_EXPOSURE * record.max_exposure)
    return torch.where(record.exposure > 0, (record.exposure / wanted).clamp(max=1.0), 0.0)


def discipline(record: EpisodeStatistics) -> Tensor:
    """Return 1 less `RULE_BREAK_PENALTY` for each order against the rules, at least `LEAST_DISCIPLINE`. Shape: ()."""
    return (1.0 - RULE_BREAK_PENALTY * record.rule_breaks).clamp(min=LEAST_DISCIPLINE)


def calibrated(record: EpisodeStatistics) -> Tensor:
    """Grade participation × position × discipline, so 0 without positions. Shape: (), float64."""
    record = in_double(record)
    return participation(record) * position(record) * discipline(record)


PARTS = {"participation": participation, "position": position, "discipline": discipline}
"""Factors of the grade ``calibrated``, by name."""

GradeFunction = Callable[[EpisodeStatistics], Tensor]


FUNCTIONS: dict[str, GradeFunction] = {
    "calibrated": calibrated,
    "seed_single": seed_single,
    "seed_portfolio": seed_portfolio,
    "seed_full": seed_full,
}
"""Grade functions by the names that graders have for them."""


def grade_function(name: str, kind: str) -> GradeFunction:
    """Return the grade function of a grader for a kind of tier, a ValueError for unknown ones."""
    if name not in GRADERS:
        known = ", ".join(f"{known} (version {grader.version})" for known, grader in GRADERS.items())
        raise ValueError(f"unknown grader {name!r}; there are {known}")
    grades = GRADERS[name].grades
    if kind not in grades:
        raise ValueError(f"grader {name!r} does not know the kind of tier {kind!r}; it knows {', '.join(grades)}")
    return FUNCTIONS[grades[kind]]
