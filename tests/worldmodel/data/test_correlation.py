"""Correlations from the days before: the estimate itself, its prior, and that every case gives a usable matrix."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vecenv.worldmodel.data.correlation import DECAY, PRIOR_CORRELATION, CorrelationState, positive_definite


def normal_returns(days: int, correlation: Tensor, seed: int = 0) -> Tensor:
    factor = torch.linalg.cholesky(correlation)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(days, len(correlation), generator=generator, dtype=torch.float64) @ factor.T


def constant(size: int, level: float) -> Tensor:
    return torch.full((size, size), level, dtype=torch.float64).fill_diagonal_(1.0)


def state_after(
    returns: Tensor, valid: Tensor | None = None, together: int | None = None, decay: float = DECAY
) -> CorrelationState:
    """By default of all days at once."""
    valid = torch.ones_like(returns, dtype=torch.bool) if valid is None else valid
    state = CorrelationState.empty(returns.shape[1])
    for days, here in zip(*(part.split(together or len(returns)) for part in (returns, valid)), strict=True):
        state = state.after(days, here, decay)
    return state


def assert_usable(matrix: Tensor, lowest: float = 0.005) -> None:
    assert bool(matrix.isfinite().all()) and torch.allclose(matrix, matrix.T, atol=1e-14)
    assert torch.allclose(matrix.diagonal(), torch.ones(len(matrix), dtype=torch.float64))
    assert float(torch.linalg.eigvalsh(matrix)[0]) > lowest
    torch.linalg.cholesky(matrix.float())


@pytest.mark.parametrize("decay", [0.995, 0.9, 1.0])
@pytest.mark.parametrize("together", [1, 7, 40])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_sums_are_those_of_a_plain_loop(missing, together, decay):
    """Weighted sums over the days that two symbols share, of returns limited to four; days before decay."""
    returns = 2.0 * normal_returns(40, constant(3, 0.4))
    assert bool((returns.abs() > 4.0).any())
    valid = torch.rand(40, 3, generator=torch.Generator().manual_seed(1)) >= missing
    state = state_after(returns, valid, together, decay)
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
            expected = product / math.sqrt(first * second)
            assert math.isclose(float(state.raw()[i, j]), expected)


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
    matrix = state.correlation(shrinkage)
    assert torch.allclose(matrix, expected, rtol=1e-9)
    assert_usable(matrix)


def test_a_planted_correlation_is_found_within_shrinkage():
    """Two sectors: the order of the correlations is kept, and the mean is not shrunk."""
    planted = constant(6, 0.2)
    planted[:3, :3] = planted[3:, 3:] = constant(3, 0.6)
    matrix = state_after(normal_returns(1500, planted, seed=2)).correlation()
    off = ~torch.eye(6, dtype=torch.bool)
    inside, across = matrix[(planted == 0.6) & off], matrix[planted == 0.2]
    assert float(inside.min()) > float(across.max()) + 0.1
    assert abs(float(matrix[off].mean() - planted[off].mean())) < 0.06
    assert float((matrix - planted).abs().max()) < 0.22
    assert_usable(matrix)


def test_no_data_gives_the_prior():
    assert torch.allclose(CorrelationState.empty(4).correlation(), constant(4, PRIOR_CORRELATION))
    never = state_after(torch.zeros(30, 4, dtype=torch.float64), torch.zeros(30, 4, dtype=torch.bool))
    assert torch.allclose(never.correlation(), constant(4, PRIOR_CORRELATION))


@pytest.mark.parametrize("symbols", [1, 2, 40])
@pytest.mark.parametrize("days", [1, 2, 30, 400])
def test_any_number_of_days_and_symbols_gives_a_positive_definite_matrix(symbols, days):
    assert_usable(state_after(normal_returns(days, constant(symbols, 0.5))).correlation())


def test_ragged_days_give_a_positive_definite_matrix():
    """Symbols listed at other times, with holes; two of them never share a day, and one never has a return."""
    returns = normal_returns(600, constant(20, 0.9), seed=3)
    valid = torch.rand(600, 20, generator=torch.Generator().manual_seed(4)) > 0.4
    for symbol in range(20):
        valid[: 25 * symbol, symbol] = False
    valid[300:, 0] = valid[:300, 1] = valid[:, 2] = False
    assert_usable(state_after(returns * valid, valid).correlation())


def test_sums_that_contradict_one_another_give_a_positive_definite_matrix():
    """Symbols 0 and 2 move with symbol 1 and against each other: no symbols with all their days can."""
    signs = torch.tensor([[1.0, 1.0, -1.0], [1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]], dtype=torch.float64)
    days = torch.full((3, 3), 200.0, dtype=torch.float64)
    assert_usable(CorrelationState(200.0 * signs, days, days).correlation())


def test_equal_and_opposite_symbols_give_a_positive_definite_matrix():
    returns = normal_returns(2000, constant(1, 0.0)).expand(-1, 8).clone()
    returns[:, 4:] *= -1.0
    assert_usable(state_after(returns).correlation())


def test_a_wild_day_moves_a_matrix_little():
    """A crash of fifty volatilities counts as one of four."""
    returns = normal_returns(250, constant(5, 0.0))
    wild = returns.clone()
    wild[200] = -50.0
    limited = returns.clone()
    limited[200] = -4.0
    calm, crash = state_after(returns).correlation(), state_after(wild).correlation()
    assert torch.equal(crash, state_after(limited).correlation())
    off = ~torch.eye(5, dtype=torch.bool)
    assert 0.0 < float((crash - calm)[off].mean()) < 0.1


def test_the_latest_days_weigh_most():
    days = torch.cat([normal_returns(600, constant(3, 0.0)), normal_returns(600, constant(3, 0.8))])
    later, earlier = state_after(days).correlation(), state_after(days.flip(0)).correlation()
    assert float(later[0, 1]) > 0.6 and float(earlier[0, 1]) < 0.25


def test_only_eigenvalues_below_the_bound_are_changed():
    """A matrix just above the bound stays as it is, bit for bit; one just below is raised to it."""
    above, below = (constant(5, 1.0 - lowest) for lowest in (0.0201, 0.0199))
    assert positive_definite(above, 0.02) is above
    raised = positive_definite(below, 0.02)
    assert torch.linalg.eigvalsh(raised)[0].item() == pytest.approx(0.02, rel=1e-3)
    assert raised.diagonal().tolist() == pytest.approx([1.0] * 5, rel=1e-15)
