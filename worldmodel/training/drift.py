"""Calibration of a market's drift: a constant added to daily log-returns so that rollouts have the market's mean one.

Likelihood is insensitive to the mean of a day's return: a hundredth of a volatility costs 5e-5 nats, but makes 5% a
year. So the mean is matched by moments after training: days are rolled out from days of recent years at two drifts, and
the drift is chosen at which, linearly interpolated, their mean log-return is that of all days up to the end of
validation. All, because a mean return has a large error, on NSE 2.8 basis points a day for eight years and 4.5 for
four: of independent days, recent and earlier means weighted by their inverse variances are the mean of all.

The drift is the same for calm and lively symbols, in log-return and not in volatilities: the mean returns of real ones
do not grow with their volatility.

Each path is drawn with its antithetic one, of reflected noise and about opposite common moves: the standard deviation
of their mean is about a third of a path's, so that a fifth of the paths will do.

The error depends on the number of symbols drawn together, because each is conditioned on the previous ones. So there is
a drift for several numbers of symbols. It is added to all returns of a day after they are drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, Bars
from vecenv.market.synthetic import business_days
from vecenv.worldmodel.data.bar_moves import MoveState, daily_returns, decode_bars
from vecenv.worldmodel.network.market_network import DRIFT_SIZES, MarketNetwork
from vecenv.worldmodel.sampling.block_paths import Starts
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stationary import WARM_UP
from vecenv.worldmodel.sampling.training_market import YEAR, YEARS, Advance, TrainingMarket


class Effort(NamedTuple):
    """Size of rollouts for a number of symbols: days with a random choice of these, and antithetic pairs of paths."""

    starts: int
    pairs: int


EFFORTS = dict(zip(DRIFT_SIZES, (Effort(1024, 1280), Effort(512, 512), Effort(64, 256), Effort(32, 128)), strict=True))
"""By number of symbols; the standard errors of the mean are 0.3, 0.3, 0.4 and 0.8 basis points a day on NSE."""

DAYS = 40
"""Days of a path."""

TRIAL = 2e-4
"""Second drift of the rollouts, in log-return a day."""

TRIAL_SHARE = 4
"""Reduction factor of the pairs for the slope, which uses common random numbers at both drifts."""

LIMIT = 0.002
"""Largest drift, in log-return a day."""


def calibrate_drift(network: MarketNetwork, market: TrainingMarket, advance: Advance = lambda share: None) -> None:
    """Set the drifts of a market.

    If there are too few symbols with bars on `WARM_UP` days, the drift is that of the next smaller number, or 0.
    Independent symbols have one drift.
    """
    drifts = network.drifts_of(market.name)
    drifts.zero_()
    model = NeuralMarket(network, market.name)
    returns, valid = (part[: market.split.stop] for part in daily_returns(market.encoded))
    target = float(returns[valid].mean())
    sizes = [size for size in EFFORTS if size <= max(len(market.often()), 1)]
    sizes = sizes[:1] if network.settings.joint == "none" else sizes
    stock_pairs = sum(size * EFFORTS[size].pairs for size in sizes) * (1 + 1 / TRIAL_SHARE)
    for place, (symbols, effort) in enumerate(EFFORTS.items()):
        if place and network.settings.joint == "none":
            return
        past = _recent_stretches(market, symbols, effort.starts, np.random.default_rng([0, symbols]))
        if past is None:
            return
        starts = model.starts(past)
        few = -(-effort.pairs // TRIAL_SHARE)
        drifts[place:] = 0.0
        still = _mean_returns(model, starts, effort.pairs, 0)
        advance(symbols * effort.pairs / stock_pairs)
        drifts[place:] = TRIAL
        slope = float((_mean_returns(model, starts, few, 0) - still[:few]).mean()) / TRIAL
        advance(symbols * few / stock_pairs)
        drifts[place:] = min(max((target - float(still.mean())) / slope, -LIMIT), LIMIT)


def _mean_returns(model: NeuralMarket, starts: Starts, pairs: int, seed: int) -> Tensor:
    """Return the mean log-return of the days of each antithetic pair of paths. Shape: (pairs,)."""
    drawn = [model.draw_after(starts, pairs, DAYS, seed, antithetic)[..., CLOSE].log() for antithetic in (False, True)]
    closes = torch.stack(drawn)
    return (closes[:, :, -1] - closes[:, :, 0]).mean((0, -1)) / (DAYS - 1)


def _recent_stretches(market: TrainingMarket, symbols: int, count: int, generator: np.random.Generator) -> Bars | None:
    """Return stretches of `WARM_UP` days of some symbols that end in recent years, a path each; None if there are none.

    Each stretch has different symbols, with numbers for names.
    """
    begin = max(0, market.split.stop - YEARS * YEAR - WARM_UP)
    valid = market.encoded.valid[0, begin : market.split.stop]
    if len(market.often()) < symbols:
        return None
    columns, rows = [], []
    for _ in range(count):
        columns.append(market.some(symbols, generator))
        whole = begin + valid[:, columns[-1]].all(-1).nonzero().squeeze(-1)
        if len(whole) < WARM_UP:
            return None
        first = int(generator.integers(len(whole) - WARM_UP + 1))
        rows.append(whole[first : first + WARM_UP])
    day, column = torch.stack(rows).unsqueeze(-1), torch.stack(columns).unsqueeze(1)
    before = MoveState(*(part[0][day[:, 0], column[:, 0]] for part in market.encoded.before))
    ohlcv = decode_bars(before, market.encoded.moves[0][day, column])
    return Bars(tuple(map(str, range(symbols))), business_days(WARM_UP), ohlcv, source=market.name)
