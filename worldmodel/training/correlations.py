"""Calibration of a market's estimate of correlations: its decay and its shrinkage toward constant correlation.

Two errors pull apart. The joint density of a day needs the inverse of the matrix, in which noise multiplies with the
number of symbols, so likelihood asks for more shrinkage and a longer memory. Paths from many origins pool their
matrices: noise averages out, but what shrinkage takes from the differences between pairs does not come back. So among
the estimates whose joint density is within `TOLERANCE` of the best, the one with the least error of pooled correlations
is chosen. Both are measured on recent years, each day with the matrix that was known before it. A year's early days are
known to the matrices of its late ones, which favours short memories in the pooled error only: the tolerance is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from vecenv.worldmodel.data.bar_moves import log_return
from vecenv.worldmodel.data.correlation import (
    DECAY,
    SHRINKAGE,
    SHRINKAGE_SYMBOLS,
    CorrelationState,
    correlations,
)
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_chain import chain_statistics, masked_factor
from vecenv.worldmodel.sampling.training_market import Advance, TrainingMarket, recent_years

HALF_LIVES = (70.0, 100.0, 140.0, 200.0, 300.0, 500.0, 1000.0)
"""Half-lives in days; a decay is 0.5 to the power of their inverse."""

SHRINKAGES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)

CHOICES = 2
"""Number of subsets of `SHRINKAGE_SYMBOLS` symbols."""

FEWEST = 5
"""Minimum number of symbols for the calibration."""

TOLERANCE = 5e-4
"""Nats per stock-day of joint density that a closer fit of pooled correlations may cost."""


class EstimatorScore(NamedTuple):
    """Errors of an estimate of correlations, means of years.

    `nll` is the joint negative log-density of the chain, of scaled returns, in nats per stock-day; `rmse` is that of a
    year's mean matrix over pairs, from the correlations of the year's scaled returns.
    """

    half_life: float
    shrinkage: float
    nll: float
    rmse: float


def calibrate_correlations(
    network: MarketNetwork, market: TrainingMarket, advance: Advance = lambda share: None
) -> None:
    """Set decay and shrinkage of a market; the defaults if it has fewer than `FEWEST` symbols or too few days."""
    decay, shrinkage = network.estimator_of(market.name)
    decay.fill_(DECAY)
    shrinkage.fill_(SHRINKAGE)
    if network.settings.joint != "correlations" or len(market.often()) < FEWEST or not recent_years(market):
        return
    best = closest(estimator_scores(network, market, advance))
    decay.fill_(0.5 ** (1.0 / best.half_life))
    shrinkage.fill_(best.shrinkage)


class Score(Protocol):
    """Errors of an estimate: negative log-density, and RMSE of pooled correlations."""

    @property
    def nll(self) -> float: ...

    @property
    def rmse(self) -> float: ...


AnyScore = TypeVar("AnyScore", bound=Score)


def closest(scores: Sequence[AnyScore]) -> AnyScore:
    """Return the score of least error of correlations among those within `TOLERANCE` of the best density."""
    best = min(score.nll for score in scores)
    return min((score for score in scores if score.nll <= best + TOLERANCE), key=lambda score: score.rmse)


def estimator_scores(
    network: MarketNetwork, market: TrainingMarket, advance: Advance = lambda share: None
) -> list[EstimatorScore]:
    """Return the scores of all decays and shrinkages on subsets of a market's symbols over `recent_years`."""
    generator = np.random.default_rng([0, SHRINKAGE_SYMBOLS])
    years = recent_years(market)
    totals = np.zeros((len(HALF_LIVES), len(SHRINKAGES), 2))
    for _ in range(CHOICES):
        subset = market.only(market.some(SHRINKAGE_SYMBOLS, generator))
        trials = [_Year.read(network, subset, year) for year in years]
        returns, valid = log_return(subset.observed.scaled[0]), subset.observed.valid[0]
        for row, half_life in zip(totals, HALF_LIVES, strict=True):
            for cell, shrinkage in zip(row, SHRINKAGES, strict=True):
                returns_alone = correlations(returns, valid, 0.5 ** (1.0 / half_life), shrinkage).unsqueeze(1)
                estimated = replace(subset, matrices=returns_alone, level_shares=subset.level_shares[:1])
                cell += np.mean([trial.errors(network, estimated) for trial in trials], axis=0)
            advance(1 / (CHOICES * len(HALF_LIVES)))
    totals /= CHOICES
    return [
        EstimatorScore(half_life, shrinkage, *totals[row, column].tolist())
        for row, half_life in enumerate(HALF_LIVES)
        for column, shrinkage in enumerate(SHRINKAGES)
    ]


class _Year(NamedTuple):
    """A year's outcomes, and what the network knew before them.

    `days` are the positions of the days in the history; `realised` are the correlations of the year's returns, of the
    `pairs` that share a day.
    """

    known: Tensor
    returns: Tensor
    valid: Tensor
    days: Tensor
    realised: Tensor
    pairs: Tensor

    @classmethod
    @torch.no_grad()
    def read(cls, network: MarketNetwork, market: TrainingMarket, days: range) -> _Year:
        known = market.known(network, days.start, days.stop, network.settings.trunk.reach)
        returns = log_return(market.observed.scaled[0, days.start : days.stop])
        valid = market.observed.valid[0, days.start : days.stop]
        realised, pairs = realised_correlations(returns, valid)
        place = torch.arange(days.start, days.stop, device=returns.device)
        return cls(network.returns.known(known), returns.float(), valid, place, realised, pairs)

    @torch.no_grad()
    def errors(self, network: MarketNetwork, market: TrainingMarket) -> tuple[float, float]:
        """Return the joint density and the error of the pooled correlations."""
        daily = market.matrices_before(self.days)[:, 0]
        statistics = chain_statistics(self.returns, self.valid, masked_factor(daily.float(), self.valid))
        density = network.returns(self.known, statistics).log_prob(self.returns)
        nll = -density.where(self.valid, 0.0).sum() / self.valid.sum().clamp(min=1)
        return float(nll), pooled_error(daily, self.realised, self.pairs)


def realised_correlations(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the plain correlations of days, and the pairs that share one, each once. Shapes: (T, K) -> (K, K)."""
    state = CorrelationState.empty(values.shape[1], values.device).after(values, valid, 1.0)
    return state.raw(), (state.days > 0).triu(1)


def pooled_error(daily: Tensor, realised: Tensor, pairs: Tensor) -> float:
    """Return the RMSE over pairs of the mean matrix of days. Shapes: (D, K, K), (K, K), (K, K)."""
    return float((daily.mean(0) - realised)[pairs].square().mean().sqrt())
