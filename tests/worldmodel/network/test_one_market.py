"""A network on one market of another: the same densities and draws, and independent weights."""

from __future__ import annotations

import pytest
import torch

from tests.worldmodel.neural_market import history_of, small_network
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.named_weights import weights_named
from vecenv.worldmodel.network.one_market import one_market_network
from vecenv.worldmodel.sampling.neural import NeuralMarket

ROUNDING = 1e-4
"""Relative to densities and prices; another market's differ by more."""


def assert_same(network: MarketNetwork, market: str, tolerance: float = 0.0) -> None:
    """Both give the same densities, of each symbol and jointly, and the same paths.

    The product with fewer flags may sum in another order, which leaves a tolerance for rounding.
    """
    bars = history_of(3)
    one, other = NeuralMarket(network, market), NeuralMarket(one_market_network(network, market, "mine"), "mine")
    assert other.network.settings.markets == ("mine",)
    for first, second in (
        (one.log_density(bars)[1:], other.log_density(bars)[1:]),
        (one.joint_log_density(bars)[1:], other.joint_log_density(bars)[1:]),
        (one.generate(bars, 2, 3, seed=5), other.generate(bars, 2, 3, seed=5)),
    ):
        assert bool(((first - second).abs() <= tolerance * second.abs().clamp(min=1.0)).all())


@pytest.mark.parametrize("market", ["india", "us"])
def test_a_network_of_one_market_continues_it(market):
    assert_same(small_network(), market, ROUNDING)


@pytest.mark.parametrize("market", ["india", "us"])
def test_of_the_shipped_weights_bit_for_bit(market):
    assert_same(load_network(weights_named("shipped")).network, market)


def test_so_does_a_network_without_a_joint_part():
    torch.manual_seed(0)
    trunk = CnnGruSettings(channels=8, width=12, reach=8)
    assert_same(MarketNetwork(NetworkSettings(trunk, 8, ("a", "b", "c"), "none", "gaussian")), "b", ROUNDING)


def test_a_network_of_a_single_market_is_only_renamed():
    torch.manual_seed(0)
    trunk = CnnGruSettings(channels=8, width=12, reach=8)
    assert_same(MarketNetwork(NetworkSettings(trunk, 8, ("a",))), "a")


def test_markets_differ_and_the_other_network_stays_as_it_is():
    network, bars = small_network(), history_of(3)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    made = {market: one_market_network(network, market, "mine") for market in ("india", "us")}
    first, second = (NeuralMarket(each, "mine").log_density(bars)[1:] for each in made.values())
    assert float((first - second).abs().min()) > 0.0 and float((first - second).abs().max()) > 100 * ROUNDING
    for tensor in made["us"].state_dict().values():
        tensor.add_(1.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    with pytest.raises(ValueError, match="unknown market 'mars'; the network knows india, us"):
        one_market_network(network, "mars", "mine")
