"""The Gaussian copula: densities against SciPy-free formulas, absent symbols, and the mix of matrices."""

from __future__ import annotations

import pytest
import torch

from vecenv.worldmodel.network.gaussian_copula import copula_log_density, mixed_correlation
from vecenv.worldmodel.network.return_chain import masked_factor

C = torch.tensor([[1.0, 0.6, 0.2], [0.6, 1.0, -0.3], [0.2, -0.3, 1.0]], dtype=torch.float64)


def normal_log_density(matrix, numbers):
    return torch.distributions.MultivariateNormal(torch.zeros(len(matrix), dtype=matrix.dtype), matrix).log_prob(
        numbers
    )


def test_it_is_the_joint_density_over_the_product_of_the_single_ones():
    numbers = torch.tensor([[0.3, -1.2, 2.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    everyone = torch.ones(2, 3, dtype=torch.bool)
    found = copula_log_density(masked_factor(C, everyone), numbers, everyone)
    expected = normal_log_density(C, numbers) - normal_log_density(torch.eye(3, dtype=C.dtype), numbers)
    assert torch.allclose(found, expected)


def test_absent_symbols_are_integrated_out():
    numbers, present = torch.tensor([[0.3, 99.0, 2.0]], dtype=torch.float64), torch.tensor([[True, False, True]])
    found = copula_log_density(masked_factor(C, present), numbers, present)
    pair = C[[0, 2]][:, [0, 2]]
    expected = normal_log_density(pair, numbers[0, [0, 2]]) - normal_log_density(
        torch.eye(2).double(), numbers[0, [0, 2]]
    )
    assert float(found) == pytest.approx(float(expected))


@pytest.mark.parametrize("weights", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.5, 0.3, 0.2), (0.1, 0.0, 0.9)])
def test_matrices_are_mixed_and_stay_positive_definite(weights):
    own, estimated, common = weights
    mixed = mixed_correlation(C, torch.tensor(weights, dtype=torch.float64))
    expected = own * torch.eye(3, dtype=C.dtype) + estimated * C + common
    assert torch.allclose(mixed, expected)
    assert mixed.diagonal().tolist() == [1.0] * 3
    assert float(torch.linalg.eigvalsh(mixed).min()) > 0
