"""Target weights and rewards: small examples worked by hand, and the exponential function against the exact one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vecenv.kernels.exponential import single_exp
from vecenv.kernels.money import RATIO_STEPS, Money
from vecenv.kernels.orders import Prices
from vecenv.kernels.rewards import (
    differential_sharpe,
    log_return,
    risk_penalised,
    risk_weighed,
    simple_return,
    updated_moments,
)
from vecenv.kernels.weights import benchmark_units, chosen_weights, orders_to_weights, tilted_weights

EXACT, FRACTIONAL = Money(), Money(whole_shares=False, dtype=torch.float64)


def rate(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


def flat(ticks: list[float]) -> Prices:
    """Prices without costs."""
    fill = torch.tensor(ticks)
    return Prices(fill, fill, fill, rate(0.0))


def test_weights_become_the_orders_that_reach_them():
    """A quarter of 10,000 in each: targets of 25 and 12 shares, from 30 and 0. Negative weights count as zero."""
    prices = flat([100.0, 200.0])
    weights, holdings = chosen_weights(EXACT, torch.tensor([0.25, 0.25])), torch.tensor([30.0, 0.0])
    value = torch.tensor(10_000)
    assert orders_to_weights(EXACT, weights, value, holdings, prices, rate(1.0), None).tolist() == [-5.0, 12.0]
    dropped = orders_to_weights(EXACT, weights, value, holdings, prices, rate(1.0), rate(0.05))
    assert dropped.tolist() == [0.0, 12.0], "an order of 500, 5% of the value, is in the dead zone"
    weights = chosen_weights(EXACT, torch.tensor([1.0, 1.0, -1.0]))
    assert weights.tolist() == [0.5, 0.5, 0.0]
    prices, nothing = flat([100.0] * 3), torch.zeros(3)
    assert orders_to_weights(EXACT, weights, value, nothing, prices, rate(1.0), None).tolist() == [50.0, 50.0, 0.0]
    whole = chosen_weights(EXACT, torch.tensor([1.0, 0.0, 0.0]))
    order = orders_to_weights(EXACT, whole, value, nothing, prices, rate(1.001), None)
    assert order.tolist() == [99.0, 0.0, 0.0], "costs are part of the price of a share: 101 ticks"


@pytest.mark.parametrize("money", [EXACT, FRACTIONAL])
def test_tilts_multiply_weights_by_their_exponential(money):
    """Weights before normalisation: 0.4 e, 0.4 / e, and 0.2 of cash. No tilt is the benchmark."""
    benchmark = benchmark_units(torch.tensor([1.0, 2.0, 0.0, 1.0]))
    weights = tilted_weights(money, torch.zeros(5), benchmark, 0.25, 2.0)
    assert weights.tolist() == [0.1875, 0.375, 0.0, 0.1875]
    nothing = benchmark_units(torch.zeros(3))
    assert tilted_weights(money, torch.ones(4), nothing, 0.1, 1.0).tolist() == [0.0, 0.0, 0.0]
    weights = tilted_weights(money, torch.tensor([0.5, -0.5, 0.0]), benchmark_units(torch.ones(2)), 0.2, 2.0)
    total = 0.4 * math.e + 0.4 / math.e + 0.2
    expected = [0.4 * math.e / total, 0.4 / math.e / total]
    assert weights.tolist() == pytest.approx(expected, abs=2 / RATIO_STEPS if money is EXACT else 1e-12)


def test_whole_weights_never_sum_to_more_than_one():
    rng = np.random.default_rng(0)
    for count in (1, 2, 30, 127, 128, 500):
        action = torch.from_numpy(rng.uniform(-1, 1, (200, count + 1)).astype(np.float32))
        portfolio = torch.from_numpy(rng.uniform(0, 5, (200, count)).astype(np.float32))
        units = benchmark_units(portfolio)
        assert float(units.sum(-1).max()) < 2**23 and float((units % 1).max()) == 0
        weights = tilted_weights(EXACT, action, units, 0.5, 3.0)
        assert float((weights * RATIO_STEPS % 1).max()) == 0
        sums = weights.sum(-1)
        assert float(sums.max()) <= 1.0 and float(weights.min()) >= 0
        smooth = tilted_weights(FRACTIONAL, action, portfolio, 0.5, 3.0)
        assert float((smooth - weights).abs().max()) < 1e-3


@pytest.mark.parametrize("largest", [0.1, 0.5, 2.0, 8.0])
def test_the_single_precision_exponential_is_exact_to_five_millionths(largest):
    exponent = -torch.linspace(0.0, largest, 10_001)
    error = single_exp(exponent, largest).double() / exponent.double().exp() - 1
    assert float(error.abs().max()) < 5e-6
    assert single_exp(torch.zeros(1), largest).item() == 1.0


@pytest.mark.assembly
def test_the_single_precision_exponential_is_the_same_number_compiled():
    exponent = -torch.rand(4_099, generator=torch.Generator().manual_seed(0)) * 6
    compiled = torch.compile(single_exp)(exponent, 6.0)
    assert torch.equal(compiled, single_exp(exponent, 6.0))


def test_fractional_tilts_have_a_gradient():
    action = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    benchmark = torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda tilt: tilted_weights(FRACTIONAL, tilt, benchmark, 0.1, 2.0), action)


real = torch.float64


def test_rewards_of_a_step():
    """A = 1 and B = 3: (B (r - A) - A (r^2 - B) / 2) / (B - A^2)^1.5 for r = 2; nothing without a variance."""
    # Of a value of 10 to one of 8, of nothing to something, and to ruin.
    before, after = torch.tensor([10, 0, 10]), torch.tensor([8, 5, -3])
    assert simple_return(before, after, real).tolist() == [-0.2, 0.0, -1.3]
    assert log_return(before, after, real).tolist() == pytest.approx([math.log(0.8), 0.0, math.log(1e-6)])
    moments, step = torch.tensor([1.0, 3.0], dtype=real), torch.tensor(2.0, dtype=real)
    assert float(differential_sharpe(step, moments)) == pytest.approx((3 * 1 - 0.5 * (4 - 3)) / 2**1.5)
    assert float(differential_sharpe(step, torch.tensor([2.0, 4.0], dtype=real))) == 0.0
    assert updated_moments(step, moments, torch.tensor(0.25)).tolist() == [1.25, 3.25]
    step = torch.tensor([0.5, -0.5], dtype=real)
    assert risk_penalised(step, torch.tensor(0.5)).tolist() == [0.375, -0.625]
    assert risk_weighed(step, torch.tensor([2.0, 2.0], dtype=real)).tolist() == [0.25, -1.0]
