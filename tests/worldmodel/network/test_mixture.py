"""Mixtures: normalised densities, the laws of torch.distributions, and draws that follow them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal, StudentT

from vecenv.worldmodel.network.mixture import GaussianMixture, SignedMixture, Stretched, StudentTMixture

DRAWS = 100_000
KS_LIMIT = 1.95 / math.sqrt(DRAWS)
"""Of the distance between drawn and true distribution; a thousandth of the samples exceed it (Kolmogorov)."""


def raw(size: int, laws: int = 4) -> Tensor:
    return torch.randn(laws, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.fixture(params=[StudentTMixture, GaussianMixture])
def signed(request) -> SignedMixture:
    parameters = raw(request.param.num_parameters(3))
    parameters[..., 9:] -= 4.0
    return request.param(parameters)


def second(law, draws: int = 1):
    """Return the second law of a batch, as often as it is drawn from."""
    return type(law)(law.parameters[1].expand(draws, -1))


def parts(law) -> list[Tensor]:
    """Return the numbers of the components as the laws have them: weights, locations, scales, degrees of freedom."""
    weight, location, log_scale, *rest = law.parameters.unflatten(-1, (-1, 3)).unbind(-2)
    log_scale = log_scale.clamp(-5.0, 4.0)
    return [weight.softmax(-1), location, log_scale.exp(), *(2.1 + torch.log1p((raw + 4.0).exp()) for raw in rest)]


def signed_grid(largest: float = 1e4, nodes: int = 4001) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the trapezoid rule after x = sinh(u), which reaches far into the tails."""
    u = torch.linspace(-math.asinh(largest), math.asinh(largest), nodes, dtype=torch.float64)
    return u.sinh(), u.cosh() * (u[1] - u[0])


def uniforms(*words: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.rand(DRAWS, generator=generator, dtype=torch.float64) for _ in words]


def drawn_from(law: SignedMixture, choice: Tensor, radial: Tensor, angular: Tensor) -> Tensor:
    return law.draw(choice, *law.noise(radial, angular))


def ks_distance(drawn: Tensor, nodes: Tensor, distribution: Tensor) -> float:
    """Distance between the drawn distribution and one known on nodes, at the nodes."""
    share = torch.searchsorted(drawn.sort().values, nodes, right=True) / len(drawn)
    return float((share - distribution).abs().max())


def test_signed_density_is_normalised(signed):
    x, weight = signed_grid()
    total = (signed.log_prob(x[:, None]).exp() * weight[:, None]).sum(0)
    assert torch.allclose(total, torch.ones(4, dtype=torch.float64), atol=1e-6)


def test_signed_density_is_that_of_torch(signed):
    weight, location, scale, *freedom = parts(signed)
    part = StudentT(*freedom, location, scale) if freedom else Normal(location, scale)
    law = MixtureSameFamily(Categorical(weight), part)
    x = signed_grid(50.0, 101)[0][:, None]
    assert torch.allclose(signed.log_prob(x), law.log_prob(x), atol=1e-10)
    assert torch.allclose(signed.mean(), law.mean)


def test_signed_mean_is_the_integral(signed):
    x, weight = signed_grid(1e6)
    integral = (signed.log_prob(x[:, None]).exp() * (weight * x)[:, None]).sum(0)
    assert torch.allclose(signed.mean(), integral, atol=1e-5)
    assert float(signed.mean().abs().min()) > 0.05


def test_signed_draws_follow_the_density(signed):
    x, weight = signed_grid()
    density = second(signed).log_prob(x).exp() * weight
    drawn = drawn_from(second(signed, DRAWS), *uniforms("choice", "radial", "angular"))
    assert ks_distance(drawn, x, density.cumsum(0) - 0.5 * density) < KS_LIMIT


def test_stretched_is_the_law_of_a_linear_function(signed):
    location = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)
    log_scale = torch.tensor([-0.5, 0.4, 0.0, 1.0], dtype=torch.float64)
    moved = Stretched(signed, location, log_scale)
    x = signed_grid(50.0, 101)[0][:, None]
    assert torch.allclose(moved.log_prob(location + log_scale.exp() * x), signed.log_prob(x) - log_scale)
    assert torch.allclose(moved.mean(), location + log_scale.exp() * signed.mean())
    choice, radial, angular = (torch.tensor(number, dtype=torch.float64).expand(4) for number in (0.4, 0.2, 0.7))
    noise = signed.noise(radial, angular)
    assert torch.allclose(moved.draw(choice, *noise), location + log_scale.exp() * signed.draw(choice, *noise))


def test_any_parameters_give_a_law_with_finite_variance():
    """Network outputs of any size: more than two degrees of freedom, scales within bounds, weights that sum to one."""
    for size in (-1e4, -50.0, 0.0, 50.0, 1e4):
        student = StudentTMixture(torch.tensor([[size, 0.0, *[size] * 6]], dtype=torch.float64))
        near, far = (student.log_prob(torch.tensor([x], dtype=torch.float64)) for x in (1e6, 1e7))
        # The density falls with the degrees of freedom and one as its power, far from locations.
        assert size > 50.0 or float(near - far) / math.log(10.0) > 3.0
        gaussian = GaussianMixture(torch.tensor([[size, 0.0, *[size] * 4]]))
        for law in (student, gaussian):
            assert bool(law.log_prob(torch.tensor([0.5])).isfinite().all())


@pytest.mark.parametrize("extreme", [2.0**-33, 1.0])
def test_the_outermost_uniform_numbers_give_finite_draws(signed, extreme):
    """Single precision rounds the largest words to one."""
    law = type(signed)(signed.parameters.float())
    word = torch.full((4,), extreme)
    assert bool(drawn_from(law, word, word, word).isfinite().all())


def test_the_choice_falls_on_components_by_their_weight(signed):
    """Components far apart: the share of the draws near each is its weight."""
    parameters = signed.parameters[1].clone()
    parameters[3:9] = torch.tensor([-1e3, 0.0, 1e3, 0.0, 0.0, 0.0])
    law = type(signed)(parameters.expand(DRAWS, -1))
    drawn = drawn_from(law, *uniforms("choice", "radial", "angular"))
    share = torch.stack([(drawn < -500), (drawn.abs() <= 500), (drawn > 500)]).double().mean(-1)
    assert torch.allclose(share, parameters[:3].softmax(0), atol=0.006)
