"""Calibration of a market's coupling: a factor on each symbol's implied mean that matches the market's volatility.

Likelihood is sensitive to a symbol's distribution and insensitive to that of the market's mean: if the market moves a
tenth too little, a stock-day of 25 symbols loses less than a thousandth of a nat. But every symbol is conditioned on
the previous ones, so shortfalls accumulate along the chain. So the market's moves are matched after training: returns
of the days of recent years are drawn at two couplings. For each year the coupling is found at which, log-linearly
interpolated, the equal-weight mean of the scaled returns is as large as it was. Years differ by more than a coupling
can repair, so the mean of their couplings is drawn toward 1 by its standard error (`shrunk_mean`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vecenv.worldmodel.data.bar_moves import log_return
from vecenv.worldmodel.data.quantity_correlations import CORRELATION_STRIDE
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_chain import masked_factor
from vecenv.worldmodel.sampling.training_market import TrainingMarket
from vecenv.worldmodel.training.recent import recent_years

SYMBOLS, CHOICES, PATHS = 25, 4, 16
"""Symbols drawn together, number of subsets, and draws per day."""

FEWEST = 5
"""Minimum number of symbols for the calibration."""

TRIAL = 1.05
"""Second coupling of the draws."""

LIMITS = (0.8, 1.25)
"""Bounds of the coupling."""

DAYS_AT_ONCE = 128
"""Days per batch of draws."""


def calibrate_coupling(network: MarketNetwork, market: TrainingMarket, seed: int = 0) -> None:
    """Set the coupling of a market, 1 if there are fewer than `FEWEST` symbols or two years of complete days.

    Args:
        network: trained, in evaluation mode; changed in place.
        market: training data, with matrices by the market's calibrated estimate.
        seed: of symbols and draws.
    """
    coupling = network.coupling_of(market.name)
    coupling.fill_(1.0)
    if network.settings.joint == "none" or len(market.often()) < FEWEST:
        return
    generator = np.random.default_rng([seed, SYMBOLS])
    parts = [market.only(market.some(SYMBOLS, generator)) for _ in range(CHOICES)]
    years = [year for year in recent_years(market) if any(len(_whole_days(part, year)) for part in parts)]
    if len(years) < 2:
        return
    real = [_size([_real_moves(part, year) for part in parts]) for year in years]

    def gaps(at: float) -> np.ndarray:
        coupling.fill_(at)
        drawn = [
            _size([_drawn_moves(network, part, year, seed + number) for number, part in enumerate(parts)])
            for year in years
        ]
        return np.log(np.array(real) / np.array(drawn))

    still, moved = gaps(1.0), gaps(TRIAL)
    wanted = (TRIAL - 1.0) * still / (still - moved)
    coupling.fill_(1.0 + shrunk_mean(wanted)).clamp_(*LIMITS)


def shrunk_mean(values: np.ndarray) -> float:
    """Return the mean of several values, drawn toward 0 by its standard error: 0 if it is less than that.

    (1 - s² / m²)⁺ m with mean m and squared standard error s², the form of W. James and C. Stein, "Estimation with
    quadratic loss", 1961, for a single mean. Shape: (n,), with n of at least 2.
    """
    mean, error = float(values.mean()), float(values.var(ddof=1)) / len(values)
    return 0.0 if mean**2 <= error else mean * (1.0 - error / mean**2)


def _whole_days(market: TrainingMarket, days: range) -> Tensor:
    """Return those of the days on which all symbols have a move. Shape: (D,)."""
    return days.start + market.observed.valid[0, days.start : days.stop].all(-1).nonzero().squeeze(-1)


def _size(moves: list[Tensor]) -> float:
    """Return the mean absolute move of several choices of symbols. Shapes: (D, ...)."""
    return float(torch.cat([part.flatten() for part in moves]).abs().mean())


def _real_moves(market: TrainingMarket, days: range) -> Tensor:
    """Return the mean of the symbols' scaled returns on the complete ones of some days. Shape: (D,)."""
    return log_return(market.observed.scaled[0, _whole_days(market, days)]).mean(-1).float()


@torch.no_grad()
def _drawn_moves(network: MarketNetwork, market: TrainingMarket, days: range, seed: int) -> Tensor:
    """Draw these means, without the drift, from the trunk's outputs of the previous day. Shape: (D, PATHS)."""
    symbols, device = market.observed.valid.shape[2], market.observed.valid.device
    everyone = torch.ones(symbols, dtype=torch.bool, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    reach = network.settings.trunk.reach
    moves = [torch.zeros(0, PATHS, device=device)]
    for first in range(days.start, days.stop, DAYS_AT_ONCE):
        stop = min(first + DAYS_AT_ONCE, days.stop)
        whole = _whole_days(market, range(first, stop))
        if not len(whole):
            continue
        known = market.known(network, first, stop, reach)[whole - first].repeat_interleave(PATHS, 0)
        factor = masked_factor(market.matrices[whole // CORRELATION_STRIDE, 0], everyone).repeat_interleave(PATHS, 0)
        noise = torch.rand(3, *known.shape[:2], generator=generator, device=device)
        noise = noise.clamp(min=torch.finfo(noise.dtype).tiny)
        drawn = network.draws(factor, market.name).draw(known, noise, 1.0)
        moves.append(drawn.mean(-1).unflatten(0, (-1, PATHS)))
    return torch.cat(moves)
