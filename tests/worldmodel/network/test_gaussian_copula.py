"""The Gaussian copula and its common shocks: densities by definition, absent symbols, and draws that follow them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from vecenv.worldmodel.network.gaussian_copula import (
    NUM_SHOCKS,
    CommonShocks,
    ShockSizes,
    copula_log_density,
    mixed_correlation,
)
from vecenv.worldmodel.network.return_chain import masked_factor

C = torch.tensor([[1.0, 0.6, 0.2], [0.6, 1.0, -0.3], [0.2, -0.3, 1.0]], dtype=torch.float64)
RAW = torch.tensor([[2.5, -1.0, 0.3], [3.0, 0.4, -0.5]], dtype=torch.float64)
EVERYONE = torch.ones(3, dtype=torch.bool)


def parts(shocks):
    """Weight, mean and variance of each component as numbers."""
    return list(zip(shocks.log_weight.exp().tolist(), shocks.mean.tolist(), shocks.variance.tolist(), strict=True))


def mixture_log_density(matrix, numbers, shocks):
    """The mixture's normal distributions, written out, over independent standard ones."""
    density = 0.0
    for weight, mean, variance in parts(shocks) if shocks else [(1.0, 0.0, 0.0)]:
        law = MultivariateNormal(torch.full((len(matrix),), mean).double(), matrix + variance)
        density = density + weight * law.log_prob(numbers).exp()
    return density.log() - Normal(0.0, 1.0).log_prob(numbers).sum(-1)


@pytest.mark.parametrize("shocks", [None, CommonShocks.of_raw(RAW)])
@pytest.mark.parametrize("here", [[0, 1, 2], [0, 2]])
def test_the_density_is_that_of_the_mixture(shocks, here):
    """Absent symbols are integrated out."""
    present = torch.zeros(3, dtype=torch.bool)
    present[here] = True
    numbers = 2.0 * torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    factor = masked_factor(C, present).expand(50, -1, -1)
    found = copula_log_density(factor, numbers, present.expand(50, -1), shocks)
    assert torch.allclose(found, mixture_log_density(C[here][:, here], numbers[:, here], shocks))


@pytest.mark.parametrize("weights", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.5, 0.3, 0.2), (0.1, 0.0, 0.9)])
def test_matrices_are_mixed_and_stay_positive_definite(weights):
    own, estimated, common = weights
    mixed = mixed_correlation(C, torch.tensor(weights, dtype=torch.float64))
    assert torch.allclose(mixed, own * torch.eye(3, dtype=C.dtype) + estimated * C + common)
    assert mixed.diagonal().tolist() == [1.0] * 3 and float(torch.linalg.eigvalsh(mixed).min()) > 0


def test_weights_means_and_sizes_of_raw_numbers():
    """On 2% of days each before training, of means -1 and 1."""
    (none, *weights), means, variances = zip(*parts(CommonShocks.of_raw(RAW)), strict=True)
    total = 1.0 + math.exp(2.5 - 4.0) + math.exp(3.0 - 4.0)
    assert none == pytest.approx(1.0 / total) and weights == pytest.approx(
        [math.exp(-1.5) / total, math.exp(-1) / total]
    )
    assert means == pytest.approx([0.0, -2.0, 1.4])
    assert variances == pytest.approx([0.0, math.exp(0.6), math.exp(-1.0)])


def test_shifts_are_drawn_with_their_weights_means_and_sizes():
    """Each share of the uniform numbers is a shock's; the last one takes what rounding leaves."""
    shocks = CommonShocks.of_raw(RAW)
    edges = torch.cumsum(shocks.log_weight.exp(), 0).tolist()
    for place, (low, high) in enumerate(zip([0.0, *edges[:-1]], edges, strict=True)):
        _, mean, variance = parts(shocks)[place]
        for uniform in (low + 1e-9, high - 1e-9):
            shift = shocks.drawn(torch.tensor(uniform, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64))
            assert float(shift) == pytest.approx((mean + 0.7 * math.sqrt(variance)) * (place > 0))
    for logit in torch.linspace(-3.0, 3.0, 200):
        last = CommonShocks.of_raw(torch.tensor([[0.0, 0.0, 0.0], [float(logit), 0.0, -20.0]]))
        assert float(last.drawn(torch.tensor([1.0 - 2.0**-24]), torch.zeros(1))) == pytest.approx(1.0)


def test_each_market_and_quantity_has_its_own_or_none():
    """Without shocks the density is the copula's alone, with finite gradients."""
    sizes = ShockSizes(2, (True, False, True))
    assert sizes.raw.shape == (2, 3, NUM_SHOCKS, 3)
    with torch.no_grad():
        sizes.raw[1, 2, 0, 1] = 5.0
    assert sizes(1).mean[2].tolist() == [0.0, 4.0, 1.0]
    assert sizes(0).mean[2].tolist() == sizes(1).mean[0].tolist() == [0.0, -1.0, 1.0]
    assert sizes(1).log_weight.exp()[1].tolist() == [1.0, 0.0, 0.0]
    assert sizes(1).drawn(torch.tensor([0.999] * 3), torch.ones(3)).tolist() == [2.0, 0.0, 2.0]
    none, numbers = ShockSizes(1, (False,)), torch.tensor([[0.3, -1.2, 2.0]])
    factor = masked_factor(C.float(), EVERYONE)[None]
    found = copula_log_density(factor, numbers, EVERYONE[None], none(0))
    assert torch.allclose(found, copula_log_density(factor, numbers, EVERYONE[None]))
    found.sum().backward()
    assert none.raw.grad is not None and not bool(none.raw.grad.any())
