"""Common shocks: the mixture's joint density by definition, its marginals, and draws that follow it."""

from __future__ import annotations

import pytest
import torch

from vecenv.worldmodel.network.common_shocks import NUM_SHOCKS, CommonShocks, ShockSizes
from vecenv.worldmodel.network.gaussian_copula import copula_log_density
from vecenv.worldmodel.network.return_chain import masked_factor

C = torch.tensor([[1.0, 0.6, 0.2], [0.6, 1.0, -0.3], [0.2, -0.3, 1.0]], dtype=torch.float64)
RAW = torch.tensor([[2.5, -1.0, 0.3], [3.0, 0.4, -0.5]], dtype=torch.float64)
EVERYONE = torch.ones(3, dtype=torch.bool)


def parts(shocks):
    """Weight, mean and variance of each component as numbers."""
    return list(zip(shocks.log_weight.exp().tolist(), shocks.mean.tolist(), shocks.variance.tolist(), strict=True))


def mixture(matrix, shocks):
    """The mixture's normal distributions, written out."""
    size = len(matrix)
    for weight, mean, variance in parts(shocks):
        covariance = matrix + variance * torch.ones_like(matrix)
        yield weight, torch.distributions.MultivariateNormal(torch.full((size,), mean).double(), covariance)


def independent(numbers):
    return torch.distributions.Normal(0.0, 1.0).log_prob(numbers).sum(-1)


def test_weights_means_and_sizes_of_raw_numbers():
    (none, *weights), means, variances = zip(*parts(CommonShocks.of_raw(RAW)), strict=True)
    total = 1.0 + torch.tensor([2.5 - 4.0, 3.0 - 4.0], dtype=torch.float64).exp().sum()
    assert none == pytest.approx(1.0 / float(total))
    assert weights == pytest.approx((torch.tensor([-1.5, -1.0]).exp() / total).tolist())
    assert means == pytest.approx([0.0, -2.0, 1.4])
    assert variances == pytest.approx([0.0, float(torch.tensor(0.6).exp()), float(torch.tensor(-1.0).exp())])


def test_the_density_is_that_of_the_mixture():
    shocks = CommonShocks.of_raw(RAW)
    numbers = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2.0
    present = EVERYONE.expand(50, -1)
    found = copula_log_density(masked_factor(C, EVERYONE).expand(50, -1, -1), numbers, present, shocks)
    expected = sum(weight * law.log_prob(numbers).exp() for weight, law in mixture(C, shocks)).log()
    assert torch.allclose(found, expected - independent(numbers))


def test_absent_symbols_are_integrated_out():
    shocks = CommonShocks.of_raw(RAW)
    numbers, present = torch.tensor([[0.3, 99.0, 2.0]], dtype=torch.float64), torch.tensor([[True, False, True]])
    found = copula_log_density(masked_factor(C, present), numbers, present, shocks)
    pair, there = C[[0, 2]][:, [0, 2]], numbers[:, [0, 2]]
    expected = sum(weight * law.log_prob(there).exp() for weight, law in mixture(pair, shocks)).log()
    assert torch.allclose(found, expected - independent(there))


def test_shifts_are_drawn_with_their_weights_means_and_sizes():
    shocks, count = CommonShocks.of_raw(RAW), 400_000
    generator = torch.Generator().manual_seed(1)
    uniform = torch.rand(count, dtype=torch.float64, generator=generator)
    normal = torch.randn(count, dtype=torch.float64, generator=generator)
    shift = shocks.drawn(uniform, normal)
    edge = 0.0
    for place, (weight, mean, variance) in enumerate(parts(shocks)):
        here = (uniform >= edge) & (uniform < edge + weight)
        edge += weight
        if place == 0:
            assert not bool(shift[here].any())
            continue
        assert float(shift[here].mean()) == pytest.approx(mean, abs=0.02)
        assert float(shift[here].var()) == pytest.approx(variance, rel=0.03)


def test_the_last_shock_takes_what_rounding_leaves():
    almost_one = torch.tensor([1.0 - 2.0**-24])
    for logit in torch.linspace(-3.0, 3.0, 200):
        shocks = CommonShocks.of_raw(torch.tensor([[0.0, 0.0, 0.0], [float(logit), 0.0, -20.0]]))
        assert float(shocks.drawn(almost_one, torch.zeros(1))) == pytest.approx(1.0)


def test_each_market_and_quantity_has_its_own_or_none():
    sizes = ShockSizes(2, (True, False, True))
    assert sizes.raw.shape == (2, 3, NUM_SHOCKS, 3)
    with torch.no_grad():
        sizes.raw[1, 2, 0, 1] = 5.0
    assert sizes(1).mean[2].tolist() == [0.0, 4.0, 1.0]
    assert sizes(0).mean[2].tolist() == sizes(1).mean[0].tolist() == [0.0, -1.0, 1.0]
    assert sizes(1).log_weight.exp()[1].tolist() == [1.0, 0.0, 0.0]
    shift = sizes(1).drawn(torch.tensor([0.999, 0.999, 0.999]), torch.ones(3))
    assert shift.tolist() == [2.0, 0.0, 2.0]


def test_a_quantity_without_shocks_has_the_density_of_the_copula_alone_and_finite_gradients():
    sizes, numbers = ShockSizes(1, (False,)), torch.tensor([[0.3, -1.2, 2.0]])
    factor = masked_factor(C.float(), EVERYONE)[None]
    found = copula_log_density(factor, numbers, EVERYONE[None], sizes(0))
    assert torch.allclose(found, copula_log_density(factor, numbers, EVERYONE[None]))
    found.sum().backward()
    assert sizes.raw.grad is not None and not bool(sizes.raw.grad.any())
