"""The sinh-arcsinh distribution: normalised, drawn as it is dense, inverted, and the normal distribution in between."""

from __future__ import annotations

import math

import pytest
import torch

from vecenv.worldmodel.network.sinh_arcsinh import SinhArcsinh

RAW = torch.tensor(
    [[0.0, 0.0, 0.0, 0.0], [0.3, 0.5, 0.8, -1.5], [-1.0, -1.0, -3.0, 2.0], [2.0, 1.0, 9.0, -9.0]], dtype=torch.float64
)
U = torch.linspace(-25.0, 25.0, 50001, dtype=torch.float64)


def laws() -> SinhArcsinh:
    """One distribution per row, to be met with values of a further last axis."""
    return SinhArcsinh(*(part.unsqueeze(-1) for part in SinhArcsinh.of_raw(RAW)))


def test_densities_are_normalised_and_integrate_to_the_distribution_function():
    law = laws()
    mass = (law.log_prob(U.sinh()).exp() * U.cosh()) * (U[1] - U[0])
    assert mass.sum(-1).tolist() == pytest.approx([1.0] * len(RAW), abs=1e-4)
    below = torch.special.ndtr(law.normal(U.sinh()))
    assert torch.allclose(mass.cumsum(-1) - 0.5 * mass, below, atol=2e-3)


def test_a_value_and_its_normal_number_are_inverse_to_each_other():
    normal = torch.linspace(-5.0, 5.0, 101, dtype=torch.float64)
    assert torch.allclose(laws().normal(laws().drawn(normal)), normal.expand(len(RAW), -1), atol=1e-9)


def test_without_skew_and_at_a_tail_of_one_it_is_the_normal_distribution():
    law = SinhArcsinh(*torch.tensor([0.4, 2.0, 0.0, 1.0], dtype=torch.float64))
    assert torch.allclose(law.log_prob(U), torch.distributions.Normal(0.4, 2.0).log_prob(U))
    assert float(law.drawn(torch.tensor(1.0, dtype=torch.float64))) == pytest.approx(2.4)


def test_a_formula_by_hand():
    """X = 1 + 2 sinh((asinh(0.5) + 0.3) / 0.8)."""
    law = SinhArcsinh(*torch.tensor([1.0, 2.0, 0.3, 0.8], dtype=torch.float64))
    assert float(law.drawn(torch.tensor(0.5, dtype=torch.float64))) == pytest.approx(
        1 + 2 * math.sinh((math.asinh(0.5) + 0.3) / 0.8)
    )


def test_parameters_stay_within_their_bounds_and_gradients_finite():
    raw = torch.full((2, 4), 1e4)
    raw[1] = -1e4
    law = SinhArcsinh.of_raw(raw.requires_grad_())
    assert law.tail.tolist() == pytest.approx([2.0, 0.35]) and law.skew.tolist() == pytest.approx([2.0, -2.0])
    law.log_prob(torch.tensor([1e6, -1e6])).sum().backward()
    assert raw.grad is not None and bool(raw.grad.isfinite().all())
