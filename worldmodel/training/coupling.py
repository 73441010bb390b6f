"""Calibration of a market's coupling: a factor on each symbol's implied mean that matches the market's volatility.

Likelihood is sensitive to a symbol's distribution and insensitive to that of the market's mean: if the market moves a
tenth too little, a stock-day of 25 symbols loses less than a thousandth of a nat. But every symbol is conditioned on
the previous ones, so shortfalls accumulate along the chain. So the market's moves are matched after training: returns
of every training day are drawn at two couplings, and the coupling is chosen at which, log-linearly interpolated, the
equal-weight mean of the scaled returns is as large as on the training days.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vecenv.worldmodel.data.bar_moves import log_return
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_chain import masked_factor
from vecenv.worldmodel.sampling.neural import CORRELATION_STRIDE
from vecenv.worldmodel.sampling.training_market import TrainingMarket

SYMBOLS, CHOICES, PATHS = 25, 4, 16
"""Symbols drawn together, number of subsets, and draws per day."""

FEWEST = 5
"""Minimum number of symbols for the calibration."""

FIRST_DAY = 60
"""First day with enough context of the trunk and a correlation that is not mostly its prior."""

TRIAL = 1.05
"""Second coupling of the draws."""

LIMITS = (1.0, 1.2)
"""Bounds of the coupling: at least 1, since chains only lose co-movement."""

DAYS_AT_ONCE = 128
"""Days per batch of draws."""


def calibrate_coupling(
    network: MarketNetwork,
    market: TrainingMarket,
    seed: int = 0,
    advance: Callable[[float], object] = lambda share: None,
) -> None:
    """Set the coupling of a market, 1 if training has fewer than `FEWEST` symbols or no complete day.

    Args:
        network: trained, in evaluation mode; changed in place.
        market: training data.
        seed: of symbols and draws.
        advance: told the share of the work done since the last call.
    """
    coupling = network.coupling_of(market.name)
    coupling.fill_(1.0)
    if network.settings.joint == "none" or len(market.often()) < FEWEST:
        return
    generator = np.random.default_rng([seed, SYMBOLS])
    chosen = [market.only(market.some(SYMBOLS, generator)) for _ in range(CHOICES)]
    parts = [part for part in chosen if len(_whole_days(part, FIRST_DAY, part.split.train))]
    if not parts:
        return
    target = float(torch.cat([_real_moves(part) for part in parts]).abs().mean())

    def gap(at: float) -> float:
        coupling.fill_(at)
        sizes = []
        for number, part in enumerate(parts):
            sizes.append(_drawn_moves(network, part, seed + number))
            advance(1 / (2 * len(parts)))
        return math.log(target / float(torch.cat(sizes).abs().mean()))

    still, moved = gap(1.0), gap(TRIAL)
    coupling.fill_(1.0 + (TRIAL - 1.0) * still / (still - moved)).clamp_(*LIMITS)


def _whole_days(market: TrainingMarket, first: int, stop: int) -> Tensor:
    """Return the days from ``first`` to ``stop`` (exclusive) on which all symbols have a move. Shape: (D,)."""
    return first + market.observed.valid[0, first:stop].all(-1).nonzero().squeeze(-1)


def _real_moves(market: TrainingMarket) -> Tensor:
    """Return the mean of the symbols' scaled returns on complete training days. Shape: (D,)."""
    days = _whole_days(market, FIRST_DAY, market.split.train)
    return log_return(market.observed.scaled[0, days]).mean(-1).float()


@torch.no_grad()
def _drawn_moves(network: MarketNetwork, market: TrainingMarket, seed: int) -> Tensor:
    """Draw these means, without the drift, from the trunk's outputs of the previous day. Shape: (D, PATHS)."""
    symbols, device = market.observed.valid.shape[2], market.observed.valid.device
    everyone = torch.ones(symbols, dtype=torch.bool, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    drift, reach = network.drift_of(market.name, symbols), network.settings.trunk.reach
    moves = []
    for first in range(FIRST_DAY, market.split.train, DAYS_AT_ONCE):
        stop = min(first + DAYS_AT_ONCE, market.split.train)
        days = _whole_days(market, first, stop)
        if not len(days):
            continue
        known = market.known(network, first, stop, reach)[days - first].repeat_interleave(PATHS, 0)
        factor = masked_factor(market.matrices[days // CORRELATION_STRIDE], everyone).repeat_interleave(PATHS, 0)
        noise = torch.rand(3, *known.shape[:2], generator=generator, device=device)
        noise = noise.clamp(min=torch.finfo(noise.dtype).tiny)
        drawn = network.draws(factor, market.name).draw(known, noise, 1.0) - drift
        moves.append(drawn.mean(-1).unflatten(0, (-1, PATHS)))
    return torch.cat(moves)
