"""Calibration of the shares of the fast levels in a market's correlations of returns, gaps, wicks and volumes.

As paths do, matrices stay those of an origin for `HORIZON` days, and their level is followed. Two errors are measured
after origins in recent years: that of the density, each day with the level that was known before it, and that of the
pooled correlations, with the level that a path would have. Without news a level forgets the distance to its matrix's by
the share of the fast one: it is drawn toward its own past, which has the share in it. The share is chosen as the
estimate is, by `closest`: of those whose density is within a tolerance of the best, that of least error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.worldmodel.data.bar_moves import log_return
from vecenv.worldmodel.data.correlation import CORRELATION_STRIDE, SHRINKAGE_SYMBOLS
from vecenv.worldmodel.data.correlation_level import (
    LEVEL_DECAY,
    LEVEL_SHARES,
    LEVEL_STRIDE,
    mean_correlation,
    with_level,
)
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_chain import chain_statistics, masked_factor
from vecenv.worldmodel.sampling.training_market import Advance, TrainingMarket, recent_years
from vecenv.worldmodel.training.correlations import CHOICES, FEWEST, closest, pooled_error, realised_correlations

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)

HORIZON = 40
"""Days after an origin."""

EVERY = 2 * CORRELATION_STRIDE
"""Days between origins, which are days of a new matrix."""


class ShareScore(NamedTuple):
    """Errors of a share, means of years: negative log-density, in nats per stock-day, and RMSE of correlations."""

    share: float
    nll: float
    rmse: float


def calibrate_levels(network: MarketNetwork, market: TrainingMarket, advance: Advance = lambda share: None) -> None:
    """Set the shares of a market; the defaults if it has too few symbols or days."""
    shares = network.level_shares_of(market.name)
    shares.copy_(torch.tensor(LEVEL_SHARES))
    if network.settings.joint != "correlations" or len(market.often()) < FEWEST or not recent_years(market):
        return
    found = [closest(scores).share for scores in share_scores(network, market, advance)]
    shares.copy_(torch.tensor(found))


def share_scores(
    network: MarketNetwork, market: TrainingMarket, advance: Advance = lambda share: None
) -> list[list[ShareScore]]:
    """Return the scores of all shares by quantity, on subsets of a market's symbols over `recent_years`."""
    generator = np.random.default_rng([0, SHRINKAGE_SYMBOLS])
    totals = np.zeros((len(LEVEL_SHARES), len(SHARES), 2))
    years = recent_years(market)
    for _ in range(CHOICES):
        subset = market.only(market.some(SHRINKAGE_SYMBOLS, generator))
        for year in years:
            after = _AfterOrigins.read(network, subset, year)
            for quantity, row in enumerate(totals):
                for cell, share in zip(row, SHARES, strict=True):
                    cell += after.errors(network, subset, quantity, share)
            advance(1 / (CHOICES * len(years)))
    totals /= CHOICES * len(years)
    return [[ShareScore(share, *cell.tolist()) for share, cell in zip(SHARES, row, strict=True)] for row in totals]


class _AfterOrigins(NamedTuple):
    """Days after a year's origins, and what the network knew before them.

    `days` (O * HORIZON,) are positions in the history, `matrices` (O, HORIZON, 4, K, K) those of each day's origin.
    `realised` (4, K, K) and `pairs` are of all days of the year.
    """

    known: Tensor
    days: Tensor
    matrices: Tensor
    realised: Tensor
    pairs: Tensor

    @classmethod
    @torch.no_grad()
    def read(cls, network: MarketNetwork, market: TrainingMarket, year: range) -> _AfterOrigins:
        first = -(-year.start // CORRELATION_STRIDE) * CORRELATION_STRIDE
        origins = torch.arange(first, max(first + 1, year.stop - HORIZON + 1), EVERY, device=market.device)
        days = (origins[:, None] + torch.arange(HORIZON, device=market.device)).clamp(max=year.stop - 1)
        known = market.known(network, first, year.stop, network.settings.trunk.reach)[days.flatten() - first]
        valid = market.observed.valid[0, year.start : year.stop]
        values = market.observed.quantities[0, year.start : year.stop]
        realised, pairs = zip(*(realised_correlations(each, valid) for each in values.unbind(-1)), strict=True)
        matrices = market.matrices[origins // CORRELATION_STRIDE].unsqueeze(1).expand(-1, HORIZON, -1, -1, -1)
        return cls(known, days.flatten(), matrices, torch.stack(realised), torch.stack(pairs))

    @torch.no_grad()
    def errors(
        self, network: MarketNetwork, market: TrainingMarket, quantity: int, share: float
    ) -> tuple[float, float]:
        """Return the two errors of a quantity's share, with the other quantities' matrices as at the origins."""
        shares, levels = torch.tensor(share, device=market.device), market.observed.levels[0, :, quantity]
        own = self.matrices[:, :, quantity]
        followed = with_level(own.flatten(0, 1), levels[self.days // LEVEL_STRIDE * LEVEL_STRIDE], shares)
        nll = -self._log_prob(network, market, quantity, followed)
        mean, at_first = mean_correlation(own), levels[self.days].unflatten(0, own.shape[:2])[:, :1]
        kept = LEVEL_DECAY ** ((1.0 - share) * torch.arange(HORIZON, device=market.device))
        drawn = with_level(own, mean + share * kept * (at_first - mean), torch.ones_like(shares))
        return nll, pooled_error(drawn.flatten(0, 1), self.realised[quantity], self.pairs[quantity])

    def _log_prob(self, network: MarketNetwork, market: TrainingMarket, quantity: int, followed: Tensor) -> float:
        """Return the mean log-density of returns, or of bars, a stock-day, with matrices (D, K, K) of a quantity."""
        valid, scaled = market.observed.valid[0, self.days], market.observed.scaled[0, self.days].float()
        if quantity:
            matrices = self.matrices.flatten(0, 1).clone()
            matrices[:, quantity] = followed
            scales = market.observed.scales[0, self.days]
            calendar = market.calendar[self.days]
            density = network.bar_log_prob(self.known, scaled, valid, matrices, scales, calendar, market.name)
        else:
            returns = log_return(scaled)
            statistics = chain_statistics(returns, valid, masked_factor(followed, valid))
            density = network.returns(network.returns.known(self.known), statistics).log_prob(returns)
        return float(density.where(valid, 0.0).sum() / valid.sum().clamp(min=1))
