"""Trunks: causal, and the same whether they read days at once or one by one, in either precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.cnn_gru import CnnGru, CnnGruSettings
from vecenv.worldmodel.network.named_weights import JUDGED
from vecenv.worldmodel.network.transformer import Transformer, TransformerSettings
from vecenv.worldmodel.network.trunk import Bfloat16Trunk, Trunk
from vecenv.worldmodel.sampling.neural import NeuralMarket

FEATURES, WINDOW, DAYS = 5, 8, 43
REACH = 2 * (WINDOW - 1)
"""Days before the present one that reach the transformer's output."""


def transformer(dropout: float = 0.0) -> Transformer:
    """Of random weights, large enough that attention is far from even."""
    torch.manual_seed(0)
    trunk = Transformer(FEATURES, TransformerSettings(2, 16, 2, 32, WINDOW, dropout)).eval()
    for layer in trunk.layers:
        layer.project.weight.data.mul_(3.0)
    return trunk.requires_grad_(False)


def cnn_gru(layers: int = 2, kernel: int = 3, dropout: float = 0.0) -> CnnGru:
    """Random weights, large enough that the unit's gates move."""
    torch.manual_seed(0)
    settings = CnnGruSettings(layers, channels=8, kernel=kernel, width=16, dropout=dropout)
    trunk = CnnGru(FEATURES, settings).eval().requires_grad_(False)
    for parameter in trunk.parameters():
        parameter.mul_(1.5)
    return trunk


@pytest.fixture(params=[transformer, cnn_gru])
def trunk(request) -> Trunk:
    return request.param()


@pytest.fixture(scope="module")
def features() -> Tensor:
    return torch.randn(3, DAYS, FEATURES, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("day", [0, 9, DAYS - 1])
def test_a_day_reaches_itself_and_the_days_after_it(trunk, features, day):
    """Within the transformer's window; sequences of a batch do not see each other."""
    other = features.clone()
    other[:2, day] += 1.0
    distance = (trunk(other) - trunk(features)).abs().amax((0, 2))
    assert torch.equal(trunk(other)[2], trunk(features)[2])
    assert torch.equal(distance[:day], torch.zeros(day)) and float(distance[day]) > 1e-3
    if isinstance(trunk, Transformer):
        assert (distance > 1e-6).nonzero().flatten().tolist() == list(range(day, min(day + REACH + 1, DAYS)))


@pytest.mark.parametrize("known", [1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 5])
@pytest.mark.parametrize("make", [transformer, cnn_gru, lambda: cnn_gru(kernel=1), lambda: cnn_gru(1, 4)])
def test_prefill_and_steps_equal_the_whole_sequence(make, features, known):
    """Also when the history is shorter than what a layer sees, and on days beyond several windows."""
    trunk = make()
    expected = trunk(features)
    hidden, cache = trunk.prefill(features[:, :known])
    assert torch.allclose(hidden, expected[:, known - 1], atol=1e-5)
    shape = trunk.prefill(features)[1][0].shape
    for day in range(known, DAYS):
        assert cache[0].shape == shape and getattr(cache, "length", day) == day
        hidden, cache = trunk.step(features[:, day], cache)
        assert torch.allclose(hidden, expected[:, day], atol=1e-5)


def test_caches_of_chosen_and_joined_sequences_go_on_as_they_do(trunk, features):
    """And leave the one that they were made from alone."""
    _, whole = trunk.prefill(features[:, :-1])
    before, rows, last = whole[0].clone(), torch.tensor([2, 0, 2, 1]), features[:, -1]
    hidden, _ = trunk.step(last[rows], whole.chosen(rows))
    assert torch.allclose(hidden, trunk(features)[rows, -1], atol=1e-5) and torch.equal(whole[0], before)
    joined = whole.joined([trunk.prefill(part)[1] for part in features[:, :-1].split(2)])
    assert torch.allclose(trunk.step(last, joined)[0], trunk(features)[:, -1], atol=1e-5)


def test_every_parameter_takes_part_and_dropout_takes_the_same_numbers_on_all_days(trunk, features):
    trunk.requires_grad_(True)(torch.randn(2, 20, FEATURES)).square().mul(torch.randn(16)).sum().backward()
    for name, parameter in trunk.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0.0, name
    dropping = cnn_gru(dropout=0.1).train()
    kept = dropping(features) / dropping.eval()(features)
    assert torch.allclose(kept, kept[:, :1].expand_as(kept), atol=1e-4)
    assert {round(number, 3) for number in kept.flatten().tolist()} == {0.0, round(1 / 0.9, 3)}
    assert not torch.equal(transformer(0.5).train()(features), transformer(0.5)(features))
    for name, value in (("layers", 0), ("kernel", 0), ("reach", 0), ("dropout", 1.0)):
        with pytest.raises(ValueError, match=f"{name} must be"):
            CnnGruSettings(**{name: value})
    assert (TransformerSettings(3, window=7).reach, CnnGruSettings().reach) == (21, 240)


def test_a_trunk_in_bfloat16_reads_the_same_to_the_digits_that_it_has(trunk, features):
    before, halved, exact = [each.clone() for each in trunk.parameters()], Bfloat16Trunk(trunk), trunk(features)
    size = float(exact.square().mean().sqrt())
    whole, (read, cache) = halved(features), halved.prefill(features[:, :20])
    assert whole.dtype == torch.float32 and 0 < float((whole - exact).square().mean().sqrt()) < 0.03 * size
    assert {part.dtype for part in (*halved.parameters(), *cache) if isinstance(part, Tensor)} == {torch.bfloat16}
    for day in range(20, DAYS):
        assert read.dtype == torch.float32
        assert float((read - exact[:, day - 1]).square().mean().sqrt()) < 0.05 * size
        read, cache = halved.step(features[:, day], cache, halved.day_weights(cache))
    assert all(torch.equal(new, old) for new, old in zip(trunk.parameters(), before, strict=True))


def test_a_network_in_bfloat16_shares_its_heads_and_draws_nearly_the_same():
    """Joint densities of the judged weights are the same to a thousandth; a path does not depend on their number."""
    network, bars = load_network(JUDGED).network, synthetic_bars(1, 90, 3, seed=2)
    halved = network.with_bfloat16_trunk()
    assert halved.bars is network.bars and halved.returns is network.returns and not halved.training
    assert isinstance(network.trunk, Transformer) and isinstance(halved.trunk, Bfloat16Trunk)
    exact, rough = NeuralMarket(network, "us"), NeuralMarket(halved, "us")
    differences = (rough.joint_log_density(bars) - exact.joint_log_density(bars))[60:] / 3
    assert 0 < float(differences.abs().max()) < 0.02 and abs(float(differences.mean())) < 1e-3
    few, many, whole = rough.generate(bars, 2, 2), rough.generate(bars, 5, 2), exact.generate(bars, 2, 2)
    assert torch.equal(few, many[:2]) and not torch.equal(few, whole)
    assert torch.allclose(few[..., 3], whole[..., 3], rtol=0.005)
