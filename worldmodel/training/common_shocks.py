"""Calibration of the common shocks of a market's returns: how likely days are of each scale and common move.

The chain is trained symbol by symbol, and the tails of a day's mean change the likelihood of a symbol little; on later
days there are more surprises than on those of training. So after training the probabilities of the states of
`vecenv.worldmodel.network.return_shocks` are fitted to recent years by likelihood, with a coupling of 1 and without
drift. The log-likelihood is concave in them, so expectation maximisation finds its maximum (Laird, "Nonparametric
maximum likelihood estimation of a mixing distribution", 1978), at which about half of the states have none.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vecenv.worldmodel.data.bar_moves import log_return
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_chain import state_densities
from vecenv.worldmodel.network.return_shocks import STATES
from vecenv.worldmodel.sampling.training_market import Advance, TrainingMarket, recent_years
from vecenv.worldmodel.training.coupling import CHOICES, FEWEST, SYMBOLS

ITERATIONS = 1_000
"""Of expectation maximisation."""

LEAST = 1e-4
"""Least probability of a state that is kept."""


def calibrate_shocks(network: MarketNetwork, market: TrainingMarket, advance: Advance = lambda share: None) -> None:
    """Set the common shocks of a market, without effect if there are fewer than `FEWEST` symbols or two years of days.

    Nor of a network that reads no correlations. It keeps the shocks that it began with, by which it was validated.
    """
    years = recent_years(market)
    if network.settings.joint != "correlations" or len(market.often()) < FEWEST or len(years) < 2:
        return
    generator = np.random.default_rng([0, SYMBOLS])
    found = []
    for _ in range(CHOICES):
        subset = market.only(market.some(SYMBOLS, generator))
        for year in years:
            found.append(_state_log_density(network, subset, year))
            advance(1 / (CHOICES * len(years)))
    network.return_shocks_of(market.name).copy_(most_likely(torch.cat(found, dim=-1)))


def most_likely(log_density: Tensor) -> Tensor:
    """Return the probabilities of states under which days are most likely. Shape: (states, days) -> (states,)."""
    log_density = log_density.double()
    probability = torch.full_like(log_density[:, 0], 1.0 / len(log_density))
    for _ in range(ITERATIONS):
        probability = (log_density + probability.log().unsqueeze(-1)).softmax(0).mean(-1)
    kept = probability.where(probability >= LEAST, 0.0)
    return kept / kept.sum()


@torch.no_grad()
def _state_log_density(network: MarketNetwork, market: TrainingMarket, days: range) -> Tensor:
    """Return the joint log-densities of days' returns in each state. Shape: (len(STATES), D)."""
    known = market.known(network, days.start, days.stop, network.settings.trunk.reach)
    returns = log_return(market.observed.scaled[0, days.start : days.stop]).float()
    valid = market.observed.valid[0, days.start : days.stop]
    matrix = market.matrices_before(torch.arange(days.start, days.stop, device=market.device))[:, 0]
    given = (network.returns.known(known), returns, valid, matrix, STATES)
    each = state_densities(network.returns, *given)
    return torch.stack([density.chained.where(valid, 0.0).sum(-1) for density in each])
