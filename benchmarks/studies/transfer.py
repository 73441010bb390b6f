"""What the study of training on synthetic paths is made of: markets, test episodes, and statistics of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.learn.agents import Agent
from vecenv.learn.evaluation import play
from vecenv.learn.metrics import (
    Interval,
    Summary,
    episode_metrics,
    independent_groups,
    student_quantile,
    summarise,
)
from vecenv.learn.significance import DRAWS
from vecenv.market.bars import Bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.commands.comparison import held_out_environment
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.validation.judge import SEED_STRIDE, Trial

WARM_UP = 60
"""Warm-up days before episodes in every market, for indicators and fixed policies."""

SHORTEST_HISTORY = 250
"""Minimum history of a path in days, about a year."""


def complete_symbols(bars: Bars, most: int) -> Bars:
    """Return the bars of the first symbols without gaps."""
    chosen = bars.listed[0].all(0).nonzero().squeeze(-1)[:most]
    symbols = tuple(bars.symbols[index] for index in chosen.tolist())
    return Bars(symbols, bars.dates, bars.ohlcv[:, :, chosen], source=bars.source)


def real_test(trial: Trial, config: StockTradingConfig) -> MarketTape:
    """Return the real test days, with preceding days as warm-up."""
    tape = MarketTape.from_bars(trial.bars, config.features, config.context)
    return _warmed_up(tape.days(trial.first - WARM_UP, tape.num_days))


def replay(trial: Trial, config: StockTradingConfig) -> MarketTape:
    """Return the real training days."""
    return _warmed_up(MarketTape.from_bars(trial.train, config.features, config.context))


def generated(
    trial: Trial, model: MarketModel, config: StockTradingConfig, paths: int, starts: int, num_days: int, seed: int
) -> MarketTape:
    """Draw paths of a model: as many after each of some distinct random training days with a year of history."""
    usable = trial.train.listed[0].all(-1).nonzero().squeeze(-1)
    usable = usable[usable >= SHORTEST_HISTORY - 1]
    drawn = torch.randperm(len(usable), generator=torch.Generator().manual_seed(seed))[:starts]
    days = sorted(usable[drawn].tolist())
    seeds = [seed * SEED_STRIDE + day for day in days]
    parts = list(model.generate_after(trial.train, days, paths // starts, num_days, seeds))
    # Paths of different starts share a nominal calendar.
    dates = np.busday_offset(trial.train.dates[-1], np.arange(1, num_days + 1), roll="backward")
    bars = Bars(trial.bars.symbols, dates, torch.cat(parts), source=f"{model.name}, seed {seed}")
    return _warmed_up(MarketTape.from_bars(bars, config.features, config.context))


def _warmed_up(tape: MarketTape) -> MarketTape:
    return replace(tape, first_day=max(tape.first_day, WARM_UP))


class Played(NamedTuple):
    """Episodes of an agent: means of the metrics, and the return of each, net of costs. Shape: (N,)."""

    summary: Summary
    returns: Tensor


class Arena:
    """Evaluation episodes of a market, the same for every agent."""

    def __init__(self, tape: MarketTape, config: StockTradingConfig, episodes: int) -> None:
        self.env, _ = held_out_environment("stock_trading", tape, config, episodes)
        self.env.reset_groups(episodes, 1, 0)
        state = self.env.state
        self._groups = independent_groups(state.path, state.start_day, int((state.end_day - state.start_day).max()))
        self.blocks = self._groups[0].cpu()

    def play(self, agent: Agent) -> Played:
        """Run an agent to the end of all episodes."""
        curves = play(self.env, agent, 0).curves
        return Played(summarise(curves, self._groups), episode_metrics(curves)["cumulative_return"].cpu())


def difference_over_seeds(
    first: Sequence[Summary], second: Sequence[Summary] | None, metric: str, paired: bool = True
) -> Interval:
    """Return the mean of a metric, or of a difference, over training seeds with a 95% interval.

    Training and market days are random. The variance is the sum of that of the mean over seeds, and of the
    delete-a-group jackknife over days of the mean of all seeds (as `vecenv.learn.metrics.Summary`). Both contain the
    variance of the seed-day interaction, so the interval is conservative (Cameron, Gelbach and Miller, "Robust
    inference with multiway clustering", Journal of Business and Economic Statistics 29(2), 2011, subtract it once).
    The margin is of Student's t with the degrees of freedom of Satterthwaite, Biometrics Bulletin 2(6), 1946.

    ``paired``: both have the same days, else days of independent markets. NaN bounds with fewer than three groups.
    """
    seeds, without = _values(first, metric)
    markets = [without]
    if second is not None:
        other_seeds, other_without = _values(second, metric)
        seeds = seeds - other_seeds
        markets = [without - other_without] if paired else [without, other_without]
    mean = float(seeds.mean())
    if any(len(groups) < 3 for groups in markets):
        return Interval(mean, math.nan, math.nan)
    parts = [(_jackknife_variance(groups), len(groups) - 1) for groups in markets]
    if len(seeds) > 1:
        parts.append((float(seeds.var()) / len(seeds), len(seeds) - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0.0:
        return Interval(mean, mean, mean)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    margin = student_quantile(freedom) * math.sqrt(variance)
    return Interval(mean, mean - margin, mean + margin)


def rank_agreement(simulated: Tensor, simulated_groups: Tensor, real: Tensor, real_groups: Tensor) -> Interval:
    """Return Kendall's τ-b of policies' mean scores in two markets, with a 95% percentile interval.

    The bootstrap draws whole groups of episodes in both markets, the same ones for all policies. Resampling noise adds
    to the noise of the scores, so the interval may lie below the value.
    Scores are those of each of A policies in each episode (A, N), and episodes of a group share market days.
    """
    value = float(kendall_tau(simulated.mean(1), real.mean(1)))
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (_drawn_means(*side, generator) for side in ((simulated, simulated_groups), (real, real_groups)))
    quantiles = kendall_tau(ours, theirs).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return Interval(value, *quantiles.tolist())


def kendall_tau(first: Tensor, second: Tensor) -> Tensor:
    """Return Kendall's τ-b (Kendall, "The treatment of ties in ranking problems", Biometrika 33(3), 1945).

    Shapes: (..., A) -> (...), float64. NaN where all numbers of one are equal.
    """
    signs = [(scores.unsqueeze(-1) - scores.unsqueeze(-2)).sign().double() for scores in (first, second)]
    untied = [sign.abs().sum((-2, -1)) for sign in signs]
    return (signs[0] * signs[1]).sum((-2, -1)) / (untied[0] * untied[1]).sqrt()


def _values(summaries: Sequence[Summary], metric: str) -> tuple[Tensor, Tensor]:
    """Return means by seed (S,), and leave-one-group-out means of all seeds (G,)."""
    seeds = torch.tensor([summary.mean[metric] for summary in summaries], dtype=torch.float64)
    return seeds, torch.stack([summary.without[metric] for summary in summaries]).mean(0)


def _jackknife_variance(without: Tensor) -> float:
    count = len(without)
    return (count - 1) / count * float((without - without.mean()).square().sum())


def _drawn_means(scores: Tensor, groups: Tensor, generator: torch.Generator) -> Tensor:
    """Return the means of policies over drawn groups. Shape: (DRAWS, A)."""
    numbered = groups.unique(return_inverse=True)[1]
    count = int(numbered.max()) + 1
    sums = torch.zeros(count, len(scores), dtype=torch.float64).index_add(0, numbered, scores.double().mT)
    sizes = torch.bincount(numbered, minlength=count).double()
    drawn = torch.randint(count, (DRAWS, count), generator=generator)
    return sums[drawn].sum(1) / sizes[drawn].sum(1, keepdim=True)
