"""The drift of a market: what is added to each return so that rolled-out days rise as fast as those of training.

Likelihood hardly sees the mean of a day's return: a hundredth of a volatility costs 5e-5 nats, but makes 13% a year,
because each symbol also follows the ones before it. So the mean is matched by moments after training: days are rolled
out from training days at two drifts, and the drift is taken at which, on the line through both, their mean log-return
is that of the training days.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, Bars
from vecenv.market.synthetic import business_days
from worldmodel.bar_moves import MoveState, daily_returns, decode_bars
from worldmodel.network import MarketNetwork
from worldmodel.neural import NeuralMarket
from worldmodel.stationary import WARM_UP
from worldmodel.training_market import TrainingMarket

SYMBOLS, STARTS, PATHS, DAYS = 20, 64, 768, 40
"""What is rolled out; the mean is then known to 0.8 basis points a day."""

TRIAL = 0.01
"""The other drift that is rolled out, in volatilities a day."""

LIMIT = 0.05
"""Largest drift."""


def calibrate_drift(network: MarketNetwork, market: TrainingMarket, seed: int = 0) -> None:
    """Set the drift of a market; it is 0 where training has no `WARM_UP` days on which symbols have whole bars.

    Args:
        network: trained, in evaluation mode; changed in place.
        market: as training saw it.
        seed: of days, symbols and draws.
    """
    drift = network.drift_of(market.name)
    drift.zero_()
    past = _training_stretches(market, np.random.default_rng([seed, STARTS]))
    if past is None:
        return
    model = NeuralMarket(network, market.name)
    starts = model.starts(past)

    def mean_return(at: float) -> float:
        drift.fill_(at)
        closes = model.go_on(starts, PATHS, DAYS, seed)[..., CLOSE].log()
        return float((closes[:, -1] - closes[:, 0]).mean()) / (DAYS - 1)

    returns, valid = daily_returns(market.encoded)
    train = market.split.train
    target = float(returns[:train][valid[:train]].mean())
    still, moved = mean_return(0.0), mean_return(TRIAL)
    drift.fill_(TRIAL * (target - still) / (moved - still)).clamp_(-LIMIT, LIMIT)


def _training_stretches(market: TrainingMarket, generator: np.random.Generator) -> Bars | None:
    """Return some symbols' bars on `WARM_UP` training days each, a path per stretch; None where there is none."""
    valid = market.encoded.valid[0, : market.split.train]
    share = valid.double().mean(0)
    often = (share >= 0.95 * share.max()).nonzero().squeeze(-1)
    symbols = often[torch.from_numpy(generator.permutation(len(often))[:SYMBOLS])]
    whole = valid[:, symbols].all(-1).nonzero().squeeze(-1)
    if len(whole) < WARM_UP:
        return None
    first = torch.from_numpy(generator.integers(len(whole) - WARM_UP + 1, size=STARTS))
    rows = whole[first[:, None] + torch.arange(WARM_UP)]
    before = MoveState(*(_chosen(part[0], rows[:, :1], symbols)[:, 0] for part in market.encoded.before))
    ohlcv = decode_bars(before, _chosen(market.encoded.moves[0], rows, symbols))
    return Bars(tuple(map(str, symbols.tolist())), business_days(WARM_UP), ohlcv, source=market.name)


def _chosen(values: Tensor, rows: Tensor, symbols: Tensor) -> Tensor:
    """Shapes: (T, K, ...), (S, D), (k,) -> (S, D, k, ...)."""
    return values[rows.unsqueeze(-1), symbols]
