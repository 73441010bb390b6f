"""A trunk in bfloat16 reads what the one in float32 reads, to the digits that it has."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network.bfloat16_trunk import Bfloat16Trunk
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.cnn_gru import CnnGru, CnnGruSettings
from vecenv.worldmodel.network.named_weights import JUDGED
from vecenv.worldmodel.network.transformer import Transformer, TransformerSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket

DAYS, FEATURES = 23, 5


@pytest.fixture(scope="module", params=["transformer", "cnn_gru"])
def trunk(request):
    torch.manual_seed(0)
    if request.param == "cnn_gru":
        return CnnGru(FEATURES, CnnGruSettings()).eval().requires_grad_(False)
    settings = TransformerSettings(layers=2, width=32, heads=2, hidden=32, window=8, dropout=0.5)
    return Transformer(FEATURES, settings).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def features():
    return torch.randn(3, DAYS, FEATURES, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("known", [4, DAYS - 2])
def test_it_reads_the_same_at_once_and_day_by_day(trunk, features, known):
    halved, exact = Bfloat16Trunk(trunk), trunk(features)
    whole = halved(features)
    size = float(exact.square().mean().sqrt())
    assert whole.dtype == torch.float32 and not torch.equal(whole, exact)
    assert float((whole - exact).square().mean().sqrt()) < 0.02 * size
    read, cache = halved.prefill(features[:, :known])
    for day in range(known, DAYS):
        assert read.dtype == torch.float32
        assert float((read - exact[:, day - 1]).square().mean().sqrt()) < 0.03 * size
        read, cache = halved.step(features[:, day], cache, halved.day_weights(cache))


def test_weights_and_cache_are_in_bfloat16_and_the_trunk_is_not_changed(trunk, features):
    before = [parameter.clone() for parameter in trunk.parameters()]
    halved = Bfloat16Trunk(trunk)
    assert {parameter.dtype for parameter in halved.parameters()} == {torch.bfloat16}
    _, cache = halved.prefill(features)
    assert {part.dtype for part in cache if isinstance(part, torch.Tensor)} == {torch.bfloat16}
    for parameter, old in zip(trunk.parameters(), before, strict=True):
        assert parameter.dtype == torch.float32 and torch.equal(parameter, old)


@pytest.fixture(scope="module")
def networks():
    network = load_network(JUDGED).network
    return network, network.with_bfloat16_trunk()


def test_densities_of_the_weights_are_the_same_to_a_thousandth(networks):
    bars = synthetic_bars(1, 90, 3, seed=2)
    exact, halved = (NeuralMarket(network, "us").joint_log_density(bars) for network in networks)
    differences = (halved - exact)[60:] / 3
    assert 0 < float(differences.abs().max()) < 0.02
    assert abs(float(differences.mean())) < 1e-3


def test_heads_are_those_of_the_network_which_keeps_its_own_trunk(networks):
    network, halved = networks
    assert halved.bars is network.bars and halved.returns is network.returns
    assert isinstance(network.trunk, Transformer) and isinstance(halved.trunk, Bfloat16Trunk)
    assert not any(name.startswith("trunk.inner") for name, _ in network.named_modules())
    assert isinstance(halved, nn.Module) and not halved.training


def test_a_path_is_the_same_whatever_the_number_of_paths(networks):
    model, bars = NeuralMarket(networks[1], "us"), synthetic_bars(1, 70, 2, seed=2)
    few, many = (model.generate(bars, paths, 3, seed=5) for paths in (2, 5))
    assert torch.equal(few, many[:2])
    exact = NeuralMarket(networks[0], "us").generate(bars, 2, 3, seed=5)
    assert not torch.equal(few, exact) and torch.allclose(few[..., 3], exact[..., 3], rtol=0.005)
