"""Calibration of what days of the calendar mean for the volumes of a market.

Training reads no dates. Afterwards, with the network as it is, the common moves of volume on the kinds of days of
`vecenv.worldmodel.data.calendar` are fitted to all days up to the end of validation by likelihood, of which a day gives
two numbers: 1ᵀR⁻¹1 and 1ᵀR⁻¹n of the symbols' normal numbers n of volume with correlations R. Each kind's move is drawn
toward 0 by its error, so that days that mean nothing to a market keep none.

The shocks stay those of training, though the calendar explains most of them on the Dow. Likelihood hardly tells their
rate, and volumes of drawn days, which follow ranges that co-move too little, move together more nearly as real ones do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.worldmodel.data.calendar import CALENDAR
from vecenv.worldmodel.network.bar_heads import MATRICES
from vecenv.worldmodel.network.gaussian_copula import CommonShocks, CopulaSums
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.sampling.training_market import FIRST_DAY, YEAR, Advance, TrainingMarket

SYMBOLS, CHOICES = 25, 4
"""Symbols of a choice, and number of choices."""

FEWEST = 5
"""Minimum number of symbols for the calibration."""

DAYS_AT_ONCE = 256
"""Days per batch of the trunk."""

ITERATIONS = 200
"""Maximum number of steps of the fit."""

NORMAL_QUANTILE = 1.96
"""Of a two-sided 95% interval."""

VOLUME = len(MATRICES) - 1
"""Position of volume among the quantities with shocks."""


class CommonDays(NamedTuple):
    """What likelihood reads of days: sums of choices of symbols, (CHOICES, D), kinds, (D, len(CALENDAR)), shocks."""

    sums: CopulaSums
    calendar: Tensor
    shocks: CommonShocks

    @classmethod
    @torch.no_grad()
    def read(
        cls, network: MarketNetwork, market: TrainingMarket, days: range, advance: Advance = lambda share: None
    ) -> CommonDays:
        generator = np.random.default_rng([0, SYMBOLS])
        choices = []
        for _ in range(CHOICES):
            choices.append(_sums(network, market.only(market.some(SYMBOLS, generator)), days))
            advance(1 / CHOICES)
        sums = CopulaSums(*(torch.stack(parts).double().cpu() for parts in zip(*choices, strict=True)))
        raw = network.bars.shocks.raw[network.settings.markets.index(market.name), VOLUME]
        calendar = market.calendar[days.start : days.stop].double().cpu()
        return cls(sums, calendar, CommonShocks.of_raw(raw.double().cpu()))

    def log_density(self, moves: Tensor) -> Tensor:
        """Return the log-density of the days, the mean of the choices, by the moves of kinds, (len(CALENDAR),)."""
        return self.sums.log_density(self.shocks, self.calendar @ moves).mean(0).sum()


def calibrate_calendar(network: MarketNetwork, market: TrainingMarket, advance: Advance = lambda share: None) -> None:
    """Set the calendar of a market, without effect if there are fewer than `FEWEST` symbols or a year of days."""
    calendar = network.bars.calendar[network.settings.markets.index(market.name)]
    calendar.zero_()
    days = range(FIRST_DAY, market.split.stop)
    if network.settings.joint == "none" or len(market.often()) < FEWEST or len(days) < YEAR:
        return
    calendar.copy_(fitted(CommonDays.read(network, market, days, advance)))


def fitted(days: CommonDays) -> Tensor:
    """Return the most likely moves of kinds of days, shrunk. Shape: (len(CALENDAR),).

    Of a move m with half-width e of its 95% interval, from the curvature at the maximum, (1 - e² / m²)⁺ m is kept, as
    by `vecenv.worldmodel.training.coupling.shrunk_mean`.
    """
    moves = torch.zeros(len(CALENDAR), dtype=torch.float64, requires_grad=True)
    fit = torch.optim.LBFGS([moves], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        fit.zero_grad()
        # A kind that no day is of keeps 0.
        value = -days.log_density(moves)
        value.backward()
        return value

    with torch.enable_grad():
        fit.step(loss)
        found = moves.detach()
        curvature = torch.autograd.functional.hessian(lambda each: -days.log_density(each), found)
    seen = days.calendar.any(0)
    errors = torch.full_like(found, torch.inf)
    # In a short history kinds may coincide.
    variance = torch.linalg.pinv(curvature[seen][:, seen], hermitian=True).diagonal()
    errors[seen] = NORMAL_QUANTILE * variance.sqrt().nan_to_num(nan=torch.inf)
    return found * (1.0 - (errors / found).square()).clamp(min=0.0)


def _sums(network: MarketNetwork, market: TrainingMarket, days: range) -> CopulaSums:
    """Return the sums of volume of a market's days."""
    observed, reach = market.observed, network.settings.trunk.reach
    index = network.settings.markets.index(market.name)
    parts = []
    for first in range(days.start, days.stop, DAYS_AT_ONCE):
        here = slice(first, min(first + DAYS_AT_ONCE, days.stop))
        known = market.known(network, here.start, here.stop, reach)
        scaled, scales = observed.scaled[0, here].float(), observed.scales[0, here]
        scored = network.bars.scored(known, scaled, observed.valid[0, here], scales)
        matrices = market.matrices_before(torch.arange(here.start, here.stop, device=market.device))
        factors = network.bars.factors(matrices[:, 1:], scored.present, index)
        parts.append(CopulaSums.of(*(part[:, VOLUME] for part in (factors, scored.normal, scored.present))))
    return CopulaSums(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))
