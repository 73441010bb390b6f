"""Correlations from the days before: the estimate itself, its prior, and that every case gives a usable matrix."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vecenv.worldmodel.data.correlation import DECAY, CorrelationState, positive_definite


def normal_returns(days: int, correlation: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(days, len(correlation), generator=generator, dtype=torch.float64)
    return white @ torch.linalg.cholesky(correlation).T


def constant(size: int, level: float) -> Tensor:
    return torch.full((size, size), level, dtype=torch.float64).fill_diagonal_(1.0)


def state_after(returns: Tensor, valid: Tensor | None = None) -> CorrelationState:
    valid = torch.ones_like(returns, dtype=torch.bool) if valid is None else valid
    return CorrelationState.empty(returns.shape[1]).after(returns, valid)


@pytest.mark.parametrize("decay", [DECAY, 0.9, 1.0])
@pytest.mark.parametrize("together", [1, 7, 40])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_sums_are_those_of_a_plain_loop(missing, together, decay):
    """Weighted sums over the days that two symbols share, of returns limited to four; days before decay."""
    returns = 2.0 * normal_returns(40, constant(3, 0.4))
    assert bool((returns.abs() > 4.0).any()) and DECAY == 0.995
    valid = torch.rand(40, 3, generator=torch.Generator().manual_seed(1)) >= missing
    state = CorrelationState.empty(3)
    for days, here in zip(returns.split(together), valid.split(together), strict=True):
        state = state.after(days, here, decay)
    for i in range(3):
        for j in range(3):
            product = first = second = days = 0.0
            for day in range(40):
                if valid[day, i] and valid[day, j]:
                    weight = decay ** (39 - day)
                    x, y = (max(-4.0, min(4.0, float(returns[day, k]))) for k in (i, j))
                    product += weight * x * y
                    first += weight * x * x
                    second += weight * y * y
                    days += weight
            assert math.isclose(float(state.days[i, j]), days)
            assert math.isclose(float(state.raw()[i, j]), product / math.sqrt(first * second))


@pytest.mark.parametrize(
    ("shrinkage", "symbols", "trust"), [(0.3, 25, 0.7), (0.3, 100, 0.4), (0.2, 4, 0.92), (0.6, 81, 0)]
)
def test_shrinkage_of_a_full_history_by_plain_numbers(shrinkage, symbols, trust):
    """Without holes: t e raw + (1 - t e) constant with e = n / (n + 60), t = 1 - s sqrt(K / 25) from 0 on."""
    state = state_after(normal_returns(900, constant(symbols, 0.5), seed=5))
    days = sum(0.995**age for age in range(900))
    raw = state.products / state.products.diagonal().sqrt() / state.products.diagonal().sqrt()[:, None]
    evidence = days / (days + 60)
    off = ~torch.eye(symbols, dtype=torch.bool)
    prior = evidence * float(raw[off].mean()) + (1 - evidence) * 0.3
    expected = torch.where(off, trust * evidence * raw + (1 - trust * evidence) * prior, 1.0)
    assert float(torch.linalg.eigvalsh(expected)[0]) > 0.02, "a bounded eigenvalue would change the matrix"
    assert torch.allclose(state.correlation(shrinkage), expected, rtol=1e-9)


def test_no_data_gives_the_prior():
    assert torch.allclose(CorrelationState.empty(4).correlation(), constant(4, 0.3))
    never = state_after(torch.zeros(30, 4, dtype=torch.float64), torch.zeros(30, 4, dtype=torch.bool))
    assert torch.allclose(never.correlation(), constant(4, 0.3))


def test_every_case_gives_a_positive_definite_matrix():
    """Any sizes, ragged days, symbols that are equal and opposite, and sums that contradict one another."""
    states = [
        state_after(normal_returns(days, constant(symbols, 0.5))) for days in (1, 2, 30, 400) for symbols in (1, 2, 40)
    ]
    returns = normal_returns(600, constant(20, 0.9), seed=3)
    valid = torch.rand(600, 20, generator=torch.Generator().manual_seed(4)) > 0.4
    for symbol in range(20):
        valid[: 25 * symbol, symbol] = False
    # Two symbols never share a day, and one never has a return.
    valid[300:, 0] = valid[:300, 1] = valid[:, 2] = False
    states.append(state_after(returns * valid, valid))
    opposite = normal_returns(2000, constant(1, 0.0)).expand(-1, 8) * torch.tensor([1.0, -1.0] * 4)
    states.append(state_after(opposite))
    signs = torch.tensor([[1.0, 1.0, -1.0], [1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]], dtype=torch.float64)
    days = torch.full((3, 3), 200.0, dtype=torch.float64)
    states.append(CorrelationState(200.0 * signs, days, days))
    for state in states:
        matrix = state.correlation()
        assert bool(matrix.isfinite().all()) and torch.allclose(matrix, matrix.T, atol=1e-14)
        assert torch.allclose(matrix.diagonal(), torch.ones(len(matrix), dtype=torch.float64))
        assert float(torch.linalg.eigvalsh(matrix)[0]) > 0.005
        torch.linalg.cholesky(matrix.float())


def test_only_eigenvalues_below_the_bound_are_changed():
    """A matrix just above the bound stays as it is, bit for bit; one just below is raised to it."""
    above, below = (constant(5, 1.0 - lowest) for lowest in (0.0201, 0.0199))
    assert positive_definite(above, 0.02) is above
    raised = positive_definite(below, 0.02)
    assert torch.linalg.eigvalsh(raised)[0].item() == pytest.approx(0.02, rel=1e-3)
    assert raised.diagonal().tolist() == pytest.approx([1.0] * 5, rel=1e-15)
