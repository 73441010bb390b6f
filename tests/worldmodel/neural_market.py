"""A small neural market with random weights, and histories for it."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.market.bars import Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import encode_bars
from vecenv.worldmodel.data.features import observe_history
from vecenv.worldmodel.data.quantity_correlations import matrices_after
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket

DAYS = 40
"""Of the histories: a multiple of the days after which the correlation is computed again."""


def small_network() -> MarketNetwork:
    """Random weights, those of the heads larger, so that laws are skewed and differ.

    The gap's stay small: a gap beyond the bounds of moves would bend the law of the return.
    """
    torch.manual_seed(0)
    trunk = TransformerSettings(layers=2, width=16, heads=2, hidden=32, window=8, dropout=0.0)
    network = MarketNetwork(NetworkSettings(trunk=trunk, head=16)).requires_grad_(False)
    for part in (network.returns, network.bars.upper, network.bars.lower, network.bars.volume):
        for parameter in part.parameters():
            parameter.mul_(2.0)
    network.drifts.copy_(torch.tensor([[6e-3, 2e-3, 2e-3, 2e-3], [-4e-3, -2e-3, -2e-3, -2e-3]]))
    network.couplings.copy_(torch.tensor([1.15, 0.9]))
    network.decays.copy_(torch.tensor([0.98, 0.99]))
    network.shrinkages.copy_(torch.tensor([0.2, 0.0]))
    return network


def history_of(symbols: int, days: int = DAYS) -> Bars:
    return synthetic_bars(1, days, symbols, seed=7)


def matrices_of(market: NeuralMarket, history: Bars) -> Tensor:
    """Correlations of all quantities after a history of one path. Shape: (4, K, K), float32."""
    observed = observe_history(encode_bars(history.ohlcv))
    return matrices_after(observed, *market.network.estimator_of(market.market))[0].float()
