"""Calibration of a market's coupling: a factor on each symbol's implied mean that matches how symbols move together.

Likelihood is sensitive to a symbol's distribution and insensitive to that of the market's mean: if the market moves a
tenth too little, a stock-day of 25 symbols loses less than a thousandth of a nat. But every symbol is conditioned on
the previous ones, so shortfalls accumulate along the chain. So co-movement is matched after training: the size of the
symbols' mean scaled return over that of their own, so that an error of volatility is not made up by correlation.
Returns of the days of recent years are drawn at two couplings, and for each year the coupling is found at which,
log-linearly interpolated, they move together as the symbols did. Years differ by more than a coupling can repair, so
the mean of their couplings is drawn toward 1 by its error (`shrunk_mean`).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from vecenv.learn.intervals import student_quantile
from vecenv.worldmodel.data.bar_moves import log_return
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_chain import masked_factor
from vecenv.worldmodel.sampling.training_market import Advance, TrainingMarket, recent_years

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


def calibrate_coupling(
    network: MarketNetwork, market: TrainingMarket, seed: int = 0, advance: Advance = lambda share: None
) -> None:
    """Set the coupling of a market, 1 if there are fewer than `FEWEST` symbols or two years of complete days."""
    coupling = network.coupling_of(market.name)
    coupling.fill_(1.0)
    if network.settings.joint == "none" or len(market.often()) < FEWEST:
        return
    generator = np.random.default_rng([seed, SYMBOLS])
    parts = [market.only(market.some(SYMBOLS, generator)) for _ in range(CHOICES)]
    years = [year for year in recent_years(market) if any(len(_whole_days(part, year)) for part in parts)]
    if len(years) < 2:
        return
    real = [_together([_real_moves(part, year) for part in parts]) for year in years]

    def gaps(at: float) -> np.ndarray:
        coupling.fill_(at)
        drawn = []
        for year in years:
            moves = [_drawn_moves(network, part, year, seed + number) for number, part in enumerate(parts)]
            drawn.append(_together(moves))
            advance(1 / (2 * len(years)))
        return np.log(np.array(real) / np.array(drawn))

    still, moved = gaps(1.0), gaps(TRIAL)
    wanted = (TRIAL - 1.0) * still / (still - moved)
    coupling.fill_(1.0 + shrunk_mean(wanted)).clamp_(*LIMITS)


def shrunk_mean(values: np.ndarray) -> float:
    """Return the mean of several values, drawn toward 0 by its error: 0 if its 95% interval contains 0.

    (1 - e² / m²)⁺ m with mean m and the interval's half width e, Student's quantile times the standard error. With the
    standard error alone for e this is the form of W. James and C. Stein, "Estimation with quadratic loss", 1961, which
    takes the variance as known; that of a few years is not. Shape: (n,), with n of at least 2.
    """
    mean = float(values.mean())
    error = student_quantile(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return 0.0 if abs(mean) <= error else mean * (1.0 - (error / mean) ** 2)


def _whole_days(market: TrainingMarket, days: range) -> Tensor:
    """Return those of the days on which all symbols have a move. Shape: (D,)."""
    return days.start + market.observed.valid[0, days.start : days.stop].all(-1).nonzero().squeeze(-1)


def _together(moves: list[Tensor]) -> float:
    """Return the mean absolute mean move over the mean absolute move of several choices. Shapes: (..., K)."""
    means = torch.cat([part.mean(-1).flatten() for part in moves])
    return float(means.abs().mean() / torch.cat([part.flatten() for part in moves]).abs().mean())


def _real_moves(market: TrainingMarket, days: range) -> Tensor:
    """Return the symbols' scaled returns on the complete ones of some days. Shape: (D, K)."""
    return log_return(market.observed.scaled[0, _whole_days(market, days)]).float()


@torch.no_grad()
def _drawn_moves(network: MarketNetwork, market: TrainingMarket, days: range, seed: int) -> Tensor:
    """Draw these, without the drift, from the trunk's outputs of the previous day. Shape: (D * PATHS, K)."""
    symbols, device = market.observed.valid.shape[2], market.observed.valid.device
    everyone = torch.ones(symbols, dtype=torch.bool, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    reach = network.settings.trunk.reach
    moves = [torch.zeros(0, symbols, device=device)]
    for first in range(days.start, days.stop, DAYS_AT_ONCE):
        stop = min(first + DAYS_AT_ONCE, days.stop)
        whole = _whole_days(market, range(first, stop))
        if not len(whole):
            continue
        known = market.known(network, first, stop, reach)[whole - first].repeat_interleave(PATHS, 0)
        factor = masked_factor(market.matrices_before(whole)[:, 0], everyone).repeat_interleave(PATHS, 0)
        noise = torch.rand(4, *known.shape[:2], generator=generator, device=device)
        noise = noise.clamp(min=torch.finfo(noise.dtype).tiny)
        moves.append(network.draws(factor, market.name).draw(known, noise, 1.0))
    return torch.cat(moves)
