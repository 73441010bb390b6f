"""What follows the training of markets: estimates of correlations, couplings, drifts, and starts without a history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stationary import StationaryStart
from vecenv.worldmodel.sampling.training_market import TrainingMarket
from vecenv.worldmodel.training.correlations import calibrate_correlations
from vecenv.worldmodel.training.coupling import calibrate_coupling
from vecenv.worldmodel.training.drift import calibrate_drift

Advance = Callable[[float], object]
"""Told the share of a part's work done since the last call."""


def calibration_parts(market: str) -> tuple[str, str, str, str]:
    """Return the names of the parts of a market's calibration, in their order."""
    return f"{market}: correlations", f"{market}: coupling", f"{market}: drift", f"{market}: starts"


def calibrate(
    network: MarketNetwork,
    markets: Sequence[TrainingMarket],
    symbols: Mapping[str, Sequence[str]],
    part: Callable[[str], AbstractContextManager[Advance]],
) -> tuple[dict[str, tuple[str, ...]], dict[str, Tensor]]:
    """Calibrate each market's estimate of correlations, coupling and drift, and compute its stationary start.

    Return the symbols with a start of each market that has one, and the tensors of the starts.
    """
    network.eval()
    starts: dict[str, tuple[str, ...]] = {}
    tensors: dict[str, Tensor] = {}
    for trained in markets:
        correlations, coupling, drift, stationary = calibration_parts(trained.name)
        with part(correlations) as advance:
            calibrate_correlations(network, trained, advance=advance)
        market = trained.estimated_by(network)
        with part(coupling) as advance:
            calibrate_coupling(network, market, advance=advance)
        with part(drift) as advance:
            calibrate_drift(network, market, advance=advance)
        with part(stationary):
            known, start = StationaryStart.learn(market, symbols[market.name])
            if known:
                starts[market.name] = known
                tensors |= start.with_warm_up(NeuralMarket(network, market.name)).tensors(market.name)
    return starts, tensors
