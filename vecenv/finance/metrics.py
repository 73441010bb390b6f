"""Trading metrics batched over episodes, with jackknife intervals of means, and the significance of Sharpe ratios.

A metric is a function of daily returns and a mask of the counted days, so that episodes may end early, and the
jackknife, which leaves days out, uses the same code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from vecenv.learn.intervals import Interval, jackknife, student_quantile

TRADING_DAYS = 252
"""Days of a year for annualisation, unless the curves say otherwise."""

CVAR_TAIL = 0.05
"""Tail share of the days of the conditional value at risk."""

MIN_GROUPS = 20
"""Least number of groups of `independent_groups`, if the market has enough days."""

MAX_GROUPS = 64
"""Largest number of groups, beyond which paths share groups: more cost time without narrower intervals."""

MIN_BLOCK_DAYS = 20
"""Shortest block of days: returns a month apart count as independent."""

# Standard deviations of daily returns below this are rounding errors.
_NO_DEVIATION = 1e-12

_EULER_MASCHERONI = 0.5772156649015329


@dataclass(frozen=True)
class EpisodeCurves:
    """Daily equity, traded value and cash of N episodes of at most T days. Money is in currency, float64.

    Attributes:
        equity: portfolio value at the start and after each day; constant after the end. Shape: (T + 1, N).
        traded: purchases plus sales of each day. Shape: (T, N).
        cash: at the start and after each day; constant after the end. Shape: (T + 1, N).
        length: days of each episode, at least 1. Shape: (N,), int64.
        periods_per_year: days of a year of the market.
    """

    equity: Tensor
    traded: Tensor
    cash: Tensor
    length: Tensor
    periods_per_year: float = TRADING_DAYS

    @classmethod
    def of_returns(cls, returns: Tensor, periods_per_year: float = TRADING_DAYS) -> EpisodeCurves:
        """Return the curves of an account of 1 at the start, of simple daily returns alone. Shape: (T,), float64."""
        equity = torch.cat([returns.new_ones(1), (1.0 + returns).cumprod(0)]).unsqueeze(1)
        length = torch.tensor([len(returns)])
        return cls(equity, torch.zeros_like(equity[1:]), torch.zeros_like(equity), length, periods_per_year)

    def of_episodes(self, ids: Tensor) -> EpisodeCurves:
        parts = (self.equity[:, ids], self.traded[:, ids], self.cash[:, ids], self.length[ids])
        return EpisodeCurves(*parts, self.periods_per_year)

    @property
    def lived(self) -> Tensor:
        """Whether the episode ran on each day. Shape: (T, N)."""
        return torch.arange(len(self.traded), device=self.length.device)[:, None] < self.length

    @property
    def returns(self) -> Tensor:
        """Simple daily returns, 0 after the end and where equity is not positive. Shape: (T, N)."""
        before, after = self.equity[:-1], self.equity[1:]
        return torch.where(before > 0, (after - before) / torch.where(before > 0, before, 1.0), 0.0)

    @property
    def exposure(self) -> Tensor:
        """Invested share of equity, below 0 with shorts; 0 where equity is not positive. Shape: (T + 1, N)."""
        return torch.where(self.equity > 0, 1.0 - self.cash / torch.where(self.equity > 0, self.equity, 1.0), 0.0)

    @property
    def log_growth(self) -> Tensor:
        """Log-return since the start, of a value of at least a millionth of it. Shape: (T + 1, N)."""
        return torch.log((self.equity / self.equity[0]).clamp(min=1e-6))

    def mean_exposure(self) -> Tensor:
        """Return the mean exposure of the episodes that run until each day; NaN without any. Shape: (T + 1,)."""
        running = torch.cat([torch.ones_like(self.lived[:1]), self.lived])
        return torch.where(running, self.exposure, 0.0).sum(1) / running.sum(1)


def drawdowns(equity: Tensor) -> Tensor:
    """Return the relative drawdown from the running maximum. Shapes: (T + 1, N) -> (T + 1, N)."""
    return 1.0 - equity / equity.cummax(0).values


def episode_metrics(curves: EpisodeCurves, counted: Tensor | None = None) -> dict[str, Tensor]:
    """Compute the metrics of every episode.

    With r the n simple daily returns of an episode, y the market's days of a year and a risk-free rate of 0:

    * ``cumulative_return``: prod(1 + r) - 1 = last value / first value - 1.
    * ``sharpe``: sqrt(y) mean(r) / std(r), std with n - 1 (Sharpe 1994); 0 if r is constant.
    * ``sortino``: sqrt(y) mean(r) / sqrt(mean(min(r, 0)²)) (Sortino and Price 1994, target 0); 0 without losses.
    * ``max_drawdown``: largest loss from an earlier peak as a share of the peak, at the closes; at least 0.
    * ``turnover``: purchases plus sales over the mean value at the start of a day, times y / n: turnovers of the
      account per year, a round trip counting twice.
    * ``win_loss_ratio``: days with r > 0 over days with r < 0, the latter at least 1.
    * ``cvar``: mean of the ceil(5% n) lowest r (Rockafellar and Uryasev 2000); a loss is negative.
    * ``cash_share``: mean share of cash at the ends of the days, 1 - `EpisodeCurves.exposure`.
    * ``return_over_max_drawdown``: cumulative return / maximum drawdown, the Calmar ratio of the episode without
      annualisation; 0 without drawdown.

    Args:
        curves: the episodes.
        counted: days to use, all by default; the others are removed and the rest is joined. Shape: (T, N), bool.

    Returns:
        Metrics by name; NaN without counted days. Shape of each: (N,), float64.
    """
    days = curves.lived if counted is None else curves.lived & counted
    returns = torch.where(days, curves.returns, 0.0)
    number = days.sum(0).double()
    growth = torch.cat([torch.ones_like(returns[:1]), (1.0 + returns).cumprod(0)])
    total = growth[-1] - 1.0
    worst = drawdowns(growth).max(0).values
    held = torch.where(days, curves.equity[:-1], 0.0).sum(0) / number
    traded = torch.where(days, curves.traded, 0.0).sum(0)
    losing = (returns < 0).sum(0)
    metrics = {
        "cumulative_return": total,
        **_ratios(returns, days, number, math.sqrt(curves.periods_per_year)),
        "max_drawdown": worst,
        "turnover": _quotient(traded, held) * curves.periods_per_year / number,
        "win_loss_ratio": (returns > 0).sum(0) / losing.clamp(min=1).double(),
        "cvar": _tail_mean(returns, days, number),
        "cash_share": torch.where(days, 1.0 - curves.exposure[1:], 0.0).sum(0) / number,
        "return_over_max_drawdown": _quotient(total, worst),
    }
    return {name: torch.where(number > 0, value, math.nan) for name, value in metrics.items()}


def _quotient(value: Tensor, divisor: Tensor, smallest: float = _NO_DEVIATION) -> Tensor:
    """Return value / divisor, 0 where the divisor is at most ``smallest``."""
    present = divisor > smallest
    return torch.where(present, value / torch.where(present, divisor, 1.0), 0.0)


def _ratios(returns: Tensor, days: Tensor, number: Tensor, year: float) -> dict[str, Tensor]:
    """Return Sharpe and Sortino ratio, of ``year`` times a day's. Shape of each: (N,)."""
    mean = returns.sum(0) / number
    deviation = torch.where(days, returns - mean, 0.0)
    spread = (deviation.square().sum(0) / (number - 1.0).clamp(min=1.0)).sqrt()
    downside = (returns.clamp(max=0.0).square().sum(0) / number).sqrt()
    return {"sharpe": year * _quotient(mean, spread), "sortino": year * _quotient(mean, downside)}


def _tail_mean(returns: Tensor, days: Tensor, number: Tensor) -> Tensor:
    """Return the mean of each episode's lowest 5% of returns, at least one return. Shape: (N,)."""
    lowest = torch.where(days, returns, math.inf).sort(0).values
    # Rounded first, so that ceil(0.05 * 20) is 1.
    taken = torch.ceil((number * CVAR_TAIL).round(decimals=9)).clamp(min=1.0)
    in_tail = torch.arange(len(returns), device=returns.device)[:, None] < taken
    return torch.where(in_tail, lowest, 0.0).sum(0) / taken


def independent_groups(path: Tensor, start_day: Tensor, num_days: int) -> Tensor:
    """Assign the days of episodes to groups of nearly independent returns, from 0. Shapes: (N,), (N,) -> (T, N), int64.

    Episodes are not independent: on one real path those that start within a year share most of their days, and
    treating 250 of them as a sample of 250 makes an interval several times too narrow. The market is what is random,
    so a group is one block of days on one path, for all episodes that ran on them. Generated paths are independent: if
    there are `MIN_GROUPS` of them, each is one block; fewer are cut into blocks of equal length, of at least
    `MIN_BLOCK_DAYS`. Correlation of returns beyond a block, as in a long regime, still makes the interval too narrow.
    """
    paths, rank = path.unique(return_inverse=True)
    first = int(start_day.min())
    span = int(start_day.max()) - first + num_days
    width = max(MIN_BLOCK_DAYS, math.ceil(span / math.ceil(MIN_GROUPS / len(paths))))
    day = start_day - first + torch.arange(num_days, device=path.device)[:, None]
    groups = (rank * math.ceil(span / width) + day // width) % MAX_GROUPS
    return groups.unique(return_inverse=True)[1]


def sums_interval(daily: Tensor, lived: Tensor, groups: Tensor, share: Tensor | None = None) -> Interval:
    """Return the mean over episodes of their sums over days, with the `jackknife` interval over groups of days.

    Without a group's days the sum of the remaining ones is divided by their share of the episodes: by default every
    day that was lived has the same, else that of ``share``. Groups are those of `independent_groups`: episodes that
    share days do not count as independent, as they would by their first days. Shape of all: (T, N).
    """
    share = torch.ones_like(daily) if share is None else share
    told = torch.stack([daily[lived].double(), share[lived].double()], 1)
    numbered = groups[lived].unique(return_inverse=True)[1]
    sums = torch.zeros(int(numbered.max()) + 1, 2, dtype=torch.float64, device=daily.device).index_add(
        0, numbered, told
    )
    rest, per_episode = sums.sum(0) - sums, float(share[lived].sum()) / lived.shape[1]
    return jackknife(float(daily.double().sum(0).mean()), (rest[:, 0] / rest[:, 1] * per_episode).cpu())


def values_interval(
    values: Tensor, series: Sequence[Tensor], lived: Tensor, groups: Tensor, places: Tensor
) -> Interval:
    """Return the mean of values of whole episodes, such as grades, with a 95% interval that allows for shared days.

    The values are split by their least squares on the episodes' sums of ``series`` of the days, such as log-returns.
    What these tell has a part of each day, and the variance of `sums_interval`. The rest has none: two episodes are
    taken to share as much of it as of their days, which have equal ``places`` where they are the same of one market.
    With a mean share r of the days and a variance s² the variance of its mean is s² r / (1 - r), as episodes differ
    only by what they do not share. Bounds are NaN with no more episodes than coefficients and one, fewer than three
    groups, or a rest of episodes that share all days, which tells nothing of others.
    Shapes: (N,), (T, N) of the others.
    """
    values, length = values.double(), lived.sum(0)
    sums = torch.stack([torch.ones_like(values), *(one.double().sum(0) for one in series)], 1)
    mean, left = float(values.mean()), len(values) - sums.shape[1]
    if left < 2 or not bool(values.isfinite().all()):
        return Interval(mean, math.nan, math.nan)
    # On the CPU this driver takes columns that depend on each other, as those of an agent that holds nothing.
    found = torch.linalg.lstsq(sums.cpu(), values.cpu()[:, None], driver="gelsd").solution[:, 0].to(values.device)
    share = lived / length
    told = found[0] * share
    for slope, one in zip(found[1:], series, strict=True):
        told += slope * one
    _, low, high = sums_interval(told, lived, groups, share)
    if math.isnan(low):
        return Interval(mean, math.nan, math.nan)
    weight = (lived / length.double().sqrt())[lived]
    days, rank = places[lived].unique(return_inverse=True)
    held = torch.zeros(len(days), dtype=torch.float64, device=values.device).index_add(0, rank, weight)
    shared = float(held.square().sum()) / len(values) ** 2
    rest = float((values - sums @ found).square().sum()) / left * shared
    if 1.0 - shared < 1e-9:
        rest = math.nan if rest > 1e-12 else 0.0
    else:
        rest /= 1.0 - shared
    margin = math.hypot((high - low) / 2, student_quantile(int(groups[lived].unique().numel()) - 1) * math.sqrt(rest))
    return Interval(mean, mean - margin, mean + margin)


@dataclass(frozen=True)
class Summary:
    """Means over episodes by metric, and those without each group. Shape of the latter: (G,), float64."""

    mean: dict[str, float]
    without: dict[str, Tensor]

    def interval(self, metric: str, minus: Summary | None = None) -> Interval:
        """Return the `jackknife` interval of a mean, or of its paired difference to that of the same episodes.

        Pairing removes the common market noise, so a difference is more precise than either mean.
        """
        mean, without = self.mean[metric], self.without[metric]
        if minus is not None:
            mean, without = mean - minus.mean[metric], without - minus.without[metric]
        return jackknife(mean, without)


def summarise(curves: EpisodeCurves, groups: Tensor) -> Summary:
    """Average the metrics over episodes, with all groups of `independent_groups` and leaving out each one."""
    values = episode_metrics(curves)
    without: dict[str, list[Tensor]] = {name: [] for name in values}
    for group in range(int(groups.max()) + 1):
        left_out = groups[: len(curves.traded)] == group
        touched = (left_out & curves.lived).any(0).nonzero().squeeze(-1)
        part = curves.of_episodes(touched)
        changed = episode_metrics(part, ~left_out[:, touched])
        for name, value in values.items():
            # An episode without remaining days is NaN and is excluded from the mean.
            without[name].append(value.index_copy(0, touched, changed[name]).nanmean())
    return Summary(
        {name: float(value.mean()) for name, value in values.items()},
        {name: torch.stack(means) for name, means in without.items()},
    )


def returns_by_day(returns: Tensor, lived: Tensor, path: Tensor, start_day: Tensor) -> Tensor:
    """Average returns over the episodes that ran on the same day of the same path, so that each day counts once.

    Shapes: (T, N), (T, N), (N,), (N,) -> (days,), float64.
    """
    day = start_day + torch.arange(len(returns), device=path.device)[:, None]
    place = (path * (int(day.max()) + 1) + day)[lived].unique(return_inverse=True)[1]
    count = int(place.max()) + 1
    total = torch.zeros(count, dtype=torch.float64, device=path.device).index_add(0, place, returns[lived].double())
    return total / torch.bincount(place, minlength=count)


def deflated_sharpe(returns: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the probability that each agent's true Sharpe ratio exceeds the expected maximum of trials without skill.

    Bailey and López de Prado, "The Deflated Sharpe Ratio", Journal of Portfolio Management 40(5), 2014: the
    `probabilistic_sharpe` ratio against the `expected_maximum_sharpe` of as many trials as agents whose returns vary.
    Returns are of distinct days; those that are constant get NaN.
    """
    ratios = {name: _sharpe(series) for name, series in returns.items()}
    known = torch.tensor([ratio for ratio in ratios.values() if not math.isnan(ratio)], dtype=torch.float64)
    deviation = float(known.std()) if len(known) > 1 else 0.0
    best_by_luck = expected_maximum_sharpe(len(known), deviation)
    # NaN ratios propagate to the probability.
    return {
        name: probabilistic_sharpe(ratio, best_by_luck, len(returns[name]), *_skewness_and_kurtosis(returns[name]))
        for name, ratio in ratios.items()
    }


def expected_maximum_sharpe(num_trials: int, deviation: float) -> float:
    """Return the expected maximum Sharpe ratio of trials without skill (eq. 1 of Bailey and López de Prado).

    Fewer than two independent trials give 0. ``deviation`` is that of the trials' ratios.
    """
    if num_trials < 2:
        return 0.0
    quantile = NormalDist().inv_cdf
    first, second = quantile(1 - 1 / num_trials), quantile(1 - 1 / (num_trials * math.e))
    return deviation * ((1 - _EULER_MASCHERONI) * first + _EULER_MASCHERONI * second)


def probabilistic_sharpe(ratio: float, benchmark: float, num_days: int, skewness: float, kurtosis: float) -> float:
    """Return the probability that the true Sharpe ratio exceeds a benchmark (eq. 2 of Bailey and López de Prado).

    Ratios are of daily returns, not annualised; the kurtosis of a normal distribution is 3.
    """
    variance = 1 - skewness * ratio + (kurtosis - 1) / 4 * ratio**2
    return NormalDist().cdf((ratio - benchmark) * math.sqrt(num_days - 1) / math.sqrt(max(variance, 1e-12)))


def _sharpe(returns: Tensor) -> float:
    deviation = float(returns.std()) if len(returns) > 1 else 0.0
    return float(returns.mean()) / deviation if deviation > _NO_DEVIATION else math.nan


def _skewness_and_kurtosis(returns: Tensor) -> tuple[float, float]:
    scaled = (returns - returns.mean()) / returns.std(correction=0)
    return float(scaled.pow(3).mean()), float(scaled.pow(4).mean())
