"""A network on a single market, made of one of the markets that another network knows."""

from __future__ import annotations

from dataclasses import replace

import torch

from vecenv.worldmodel.data.features import FEATURES
from vecenv.worldmodel.network.market_network import MarketNetwork

EMBEDDING = "trunk.embed.weight"
"""Weights of the trunk's inputs: the features, then a column for the flag of each market."""


def one_market_network(network: MarketNetwork, market: str, name: str) -> MarketNetwork:
    """Return a network whose only market continues one of another network's, with the same densities.

    All weights are copied, of those of each market (flag, drift, coupling) the chosen one's.

    Args:
        network: the other; not changed.
        market: one of its markets.
        name: of the market of the new network.

    Raises:
        ValueError: the network does not know the market.
    """
    network.drifts_of(market)
    index = network.settings.markets.index(market)
    device = network.flags.device
    made = MarketNetwork(replace(network.settings, markets=(name,))).to(device)
    weights = dict(network.state_dict())
    columns = torch.tensor([*range(len(FEATURES)), len(FEATURES) + index], device=device)
    weights[EMBEDDING] = weights[EMBEDDING][:, columns]
    for key, own in made.state_dict().items():
        # What is kept by market has a row each.
        if weights[key].shape != own.shape:
            weights[key] = weights[key][index : index + 1]
    made.load_state_dict(weights)
    return made.eval()
