"""Distributions of the heads: those of torch or by hand, normalised, drawn as they are dense, and tied by a copula."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal, Normal, StudentT

from vecenv.worldmodel.network.gaussian_copula import (
    NUM_SHOCKS,
    CommonShocks,
    ShockSizes,
    copula_log_density,
    mixed_correlation,
)
from vecenv.worldmodel.network.mixture import GaussianMixture, SignedMixture, Stretched, StudentTMixture, taken
from vecenv.worldmodel.network.return_chain import masked_factor
from vecenv.worldmodel.network.sinh_arcsinh import SMALLEST_WICK, ZERO_LOGIT, Scored, SinhArcsinh, ZeroInflated


@pytest.fixture(params=[StudentTMixture, GaussianMixture])
def signed(request) -> SignedMixture:
    size = request.param.num_parameters(3)
    parameters = torch.randn(4, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    parameters[..., 9:] -= 4.0
    return request.param(parameters)


def law_of(signed: SignedMixture) -> MixtureSameFamily:
    weight, location, log_scale, *rest = signed.parameters.unflatten(-1, (-1, 3)).unbind(-2)
    freedom, scale = [2.1 + torch.log1p((raw + 4.0).exp()) for raw in rest], log_scale.clamp(-5.0, 4.0).exp()
    part = StudentT(*freedom, location, scale) if freedom else Normal(location, scale)
    return MixtureSameFamily(Categorical(weight.softmax(-1)), part)


def test_densities_and_means_are_those_of_torch(signed):
    """Also those of a linear function of the number."""
    x = torch.linspace(-4.6, 4.6, 101, dtype=torch.float64).sinh()[:, None]
    assert torch.allclose(signed.log_prob(x), law_of(signed).log_prob(x), atol=1e-10)
    assert torch.allclose(signed.mean(), law_of(signed).mean)
    location = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)
    log_scale = torch.tensor([-0.5, 0.4, 0.0, 1.0], dtype=torch.float64)
    moved = Stretched(signed, location, log_scale)
    assert torch.allclose(moved.log_prob(location + log_scale.exp() * x), signed.log_prob(x) - log_scale)
    assert torch.allclose(moved.mean(), location + log_scale.exp() * signed.mean())
    choice, radial, angular = (torch.tensor(number, dtype=torch.float64).expand(4) for number in (0.4, 0.2, 0.7))
    noise = signed.noise(radial, angular)
    assert torch.allclose(moved.draw(choice, *noise), location + log_scale.exp() * signed.draw(choice, *noise))


def test_draws_follow_the_density(signed):
    """Of the second law: the distance from the distribution is below one that a thousandth of samples exceed."""
    draws, generator = 50_000, torch.Generator().manual_seed(4)
    law = type(signed)(signed.parameters[1].expand(draws, -1))
    choice, radial, angular = (torch.rand(draws, generator=generator, dtype=torch.float64) for _ in range(3))
    drawn = law.draw(choice, *law.noise(radial, angular)).sort().values
    u = torch.linspace(-10.0, 10.0, 4001, dtype=torch.float64)
    mass = type(signed)(signed.parameters[1]).log_prob(u.sinh()).exp() * u.cosh() * (u[1] - u[0])
    share = torch.searchsorted(drawn, u.sinh(), right=True) / draws
    assert float((share - (mass.cumsum(0) - 0.5 * mass)).abs().max()) < 1.95 / math.sqrt(draws)


def test_any_parameters_give_a_law_with_finite_variance_and_finite_draws(signed):
    """More than two degrees of freedom, and scales within bounds; single precision rounds the largest words to one."""
    for size in (-1e4, -50.0, 0.0, 50.0, 1e4):
        law = StudentTMixture(torch.tensor([[size, 0.0, *[size] * 6]], dtype=torch.float64))
        near, far = (law.log_prob(torch.tensor([x], dtype=torch.float64)) for x in (1e6, 1e7))
        # The density falls with the degrees of freedom and one as its power, far from locations.
        assert size > 50.0 or float(near - far) / math.log(10.0) > 3.0
        for each in (law, GaussianMixture(torch.tensor([[size, 0.0, *[size] * 4]]))):
            assert bool(each.log_prob(torch.tensor([0.5])).isfinite().all())
    law = type(signed)(signed.parameters.float())
    for extreme in (2.0**-33, 1.0):
        word = torch.full((4,), extreme)
        assert bool(law.draw(word, *law.noise(word, word)).isfinite().all())


@pytest.mark.parametrize("kind", [torch.as_tensor, lambda tensor: tensor.numpy()])
def test_the_choice_falls_on_components_by_their_weight(kind):
    """Of weights a half, a third and a sixth."""
    laws = torch.tensor([[3.0, 2.0, 1.0], [10.0, 20.0, 30.0]], dtype=torch.float64)[..., None].expand(-1, -1, 6).clone()
    laws[0] = laws[0].log() + 5.0
    choice = torch.tensor([1e-9, 0.4999, 0.5001, 0.8332, 0.8334, 1.0 - 1e-9], dtype=torch.float64)
    assert taken(kind(laws), kind(choice))[0].tolist() == [10.0, 10.0, 20.0, 20.0, 30.0, 30.0]


RAW_SINH = torch.tensor(
    [[0.0, 0.0, 0.0, 0.0], [0.3, 0.5, 0.8, -1.5], [-1.0, -1.0, -3.0, 2.0], [2.0, 1.0, 9.0, -9.0]], dtype=torch.float64
)


def test_the_sinh_arcsinh_law():
    """X = 1 + 2 sinh((asinh(0.5) + 0.3) / 0.8); without skew and at a tail of one the law is normal."""
    u = torch.linspace(-25.0, 25.0, 50001, dtype=torch.float64)
    law = SinhArcsinh(*(part.unsqueeze(-1) for part in SinhArcsinh.of_raw(RAW_SINH)))
    mass = (law.log_prob(u.sinh()).exp() * u.cosh()) * (u[1] - u[0])
    assert mass.sum(-1).tolist() == pytest.approx([1.0] * len(RAW_SINH), abs=1e-4)
    assert torch.allclose(mass.cumsum(-1) - 0.5 * mass, torch.special.ndtr(law.normal(u.sinh())), atol=2e-3)
    normal = torch.linspace(-5.0, 5.0, 101, dtype=torch.float64)
    assert torch.allclose(law.normal(law.drawn(normal)), normal.expand(len(RAW_SINH), -1), atol=1e-9)
    half, normal = torch.tensor(0.5, dtype=torch.float64), torch.tensor([0.4, 2.0, 0.0, 1.0], dtype=torch.float64)
    law = SinhArcsinh(*torch.tensor([1.0, 2.0, 0.3, 0.8], dtype=torch.float64))
    assert float(law.drawn(half)) == pytest.approx(1 + 2 * math.sinh((math.asinh(0.5) + 0.3) / 0.8))
    assert torch.allclose(SinhArcsinh(*normal).log_prob(u), Normal(0.4, 2.0).log_prob(u))
    raw = (0.5, math.exp(0.25), 0.0, 0.35 + 1.65 / (1 + math.exp(0.4)))
    assert SinhArcsinh.of_raw(RAW_SINH[0], 0.5, 0.25) == pytest.approx(raw)
    extreme = torch.tensor([[1e4] * 4, [-1e4] * 4]).requires_grad_()
    law = SinhArcsinh.of_raw(extreme)
    assert law.tail.tolist() == pytest.approx([2.0, 0.35]) and law.skew.tolist() == pytest.approx([2.0, -2.0])
    assert law.scale.log().tolist() == pytest.approx([3.0, -5.0])
    law.log_prob(torch.tensor([1e6, -1e6])).sum().backward()
    assert extreme.grad is not None and bool(extreme.grad.isfinite().all())


RAW_ZERO = torch.tensor([1.5, 0.3, -0.2, 0.4, 0.1], dtype=torch.float64)
"""Logit of zero, and the raw numbers of a skewed distribution."""


ZERO = 1.0 / (1.0 + math.exp(-(1.5 + ZERO_LOGIT)))


def inflated(location: float = 0.2) -> ZeroInflated:
    return ZeroInflated.of_raw(RAW_ZERO, torch.tensor(location, dtype=torch.float64))


def mass(score, edges: torch.Tensor) -> float:
    """The density over a range, by the trapezoid rule."""
    return float(torch.trapezoid(score(edges).density.exp(), edges))


def test_zero_and_the_other_numbers_have_probability_one():
    law, value = inflated(), torch.tensor([0.0, 0.7], dtype=torch.float64)
    assert ZERO_LOGIT == -3.0 and float(law.scored(value).density[0].exp()) == pytest.approx(ZERO)
    others = mass(law.scored, torch.linspace(-60.0, 60.0, 200_000, dtype=torch.float64))
    assert others == pytest.approx(1 - ZERO, abs=1e-4)
    # Numbers without a zero are all present.
    scored = Scored.of(law.other, value)
    assert torch.equal(scored.density, law.other.log_prob(value))
    assert torch.equal(scored.normal, law.other.normal(value))
    assert scored.present.tolist() == [True, True] and law.scored(value).present.tolist() == [False, True]


@pytest.mark.parametrize("location", [-1.0, math.log(SMALLEST_WICK)])
def test_short_wicks_count_as_zero_and_the_others_have_the_rest(location):
    """A location at the shortest wick puts half of the distribution below it."""
    law = inflated(location)
    scored = law.scored_wick(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64) * SMALLEST_WICK)
    below = float(law.other.normal(torch.tensor(math.log(SMALLEST_WICK), dtype=torch.float64)))
    expected = ZERO + (1.0 - ZERO) * 0.5 * math.erfc(-below / math.sqrt(2.0))
    assert scored.density[:2].exp().tolist() == pytest.approx([expected, expected])
    assert scored.present.tolist() == [False, False, True] and SMALLEST_WICK == 1e-4
    edges = torch.logspace(-4.0, 12.0, 400_000, dtype=torch.float64)
    assert mass(law.scored_wick, edges) == pytest.approx(1.0 - expected, abs=1e-4)
    normal = torch.linspace(-3.0, 3.0, 9, dtype=torch.float64)
    drawn = inflated(-1.0).wick(normal, torch.full_like(normal, ZERO + 1e-9))
    assert torch.allclose(inflated(-1.0).scored_wick(drawn).normal, normal)
    assert not bool(law.wick(normal, torch.full_like(normal, ZERO - 1e-9)).any())
    assert float(law.wick(torch.tensor(1e6), torch.tensor(0.999))) == pytest.approx(50.0)


C = torch.tensor([[1.0, 0.6, 0.2], [0.6, 1.0, -0.3], [0.2, -0.3, 1.0]], dtype=torch.float64)


RAW = torch.tensor([[2.5, -1.0, 0.3], [3.0, 0.4, -0.5]], dtype=torch.float64)


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


def test_matrices_are_mixed_and_stay_positive_definite():
    for own, estimated, common in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.5, 0.3, 0.2), (0.1, 0.0, 0.9)):
        mixed = mixed_correlation(C, torch.tensor([own, estimated, common], dtype=torch.float64))
        assert torch.allclose(mixed, own * torch.eye(3, dtype=C.dtype) + estimated * C + common)
        assert mixed.diagonal().tolist() == [1.0] * 3 and float(torch.linalg.eigvalsh(mixed).min()) > 0


def test_shocks_of_raw_numbers_are_drawn_with_their_weights_means_and_sizes():
    """On 2% of days each before training, of means -1 and 1; the last one takes what rounding leaves."""
    shocks = CommonShocks.of_raw(RAW)
    weights, means, variances = zip(*parts(shocks), strict=True)
    odds = [1.0, math.exp(2.5 - 4.0), math.exp(3.0 - 4.0)]
    assert weights == pytest.approx([each / sum(odds) for each in odds]) and means == pytest.approx([0.0, -2.0, 1.4])
    assert variances == pytest.approx([0.0, math.exp(0.6), math.exp(-1.0)])
    edges = torch.cumsum(shocks.log_weight.exp(), 0).tolist()
    for place, (low, high) in enumerate(zip([0.0, *edges[:-1]], edges, strict=True)):
        for uniform in (low + 1e-9, high - 1e-9):
            shift = shocks.drawn(torch.tensor(uniform, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64))
            assert float(shift) == pytest.approx((means[place] + 0.7 * math.sqrt(variances[place])) * (place > 0))
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
    everyone = torch.ones(1, 3, dtype=torch.bool)
    factor = masked_factor(C.float()[None], everyone)
    found = copula_log_density(factor, numbers, everyone, none(0))
    assert torch.allclose(found, copula_log_density(factor, numbers, everyone))
    found.sum().backward()
    assert none.raw.grad is not None and not bool(none.raw.grad.any())
