"""Target portfolio weights: from actions to weights, and from weights to orders.

With whole shares weights are multiples of 2^-16 and equal in eager and compiled code, on any device and in any order
of a sum: every operation is rounded once, and sums are over integers below 2^24.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.kernels.exponential import single_exp
from vecenv.kernels.money import RATIO_STEPS, Money
from vecenv.kernels.orders import Prices


def chosen_weights(money: Money, action: Tensor) -> Tensor:
    """Return the weights that an action names, in multiples of 2^-16 with whole shares. Shapes: (K,) -> (K,).

    Negative ones count as 0, and a sum above 1 is scaled down to 1. float64 with whole shares, else ``money.dtype``.
    """
    weights = action.clamp(min=0.0)
    if not money.whole_shares:
        weights = weights.to(money.dtype)
        return weights / weights.sum(-1).clamp(min=1.0)
    # Integers in float32 sum exactly in any order.
    steps = torch.floor(weights.to(torch.float32) * RATIO_STEPS)
    total = steps.sum(-1)
    shared = torch.floor(steps.double() * RATIO_STEPS / total.double())
    return torch.where(total > RATIO_STEPS, shared, steps.double()) / RATIO_STEPS


def tilted_weights(money: Money, action: Tensor, benchmark: Tensor, cash_weight: float, gain: float) -> Tensor:
    """Return the weights of a benchmark portfolio and cash, tilted: w_k is proportional to b_k exp(gain action_k).

    Args:
        money: arithmetic.
        action: tilt of each symbol and, last, of cash, in [-1, 1]. Shape: (K + 1,).
        benchmark: without cash, not negative, in any unit; from `benchmark_units` with whole shares. Shape: (K,).
        cash_weight: weight of cash in the benchmark, at most 1/2.
        gain: tilt of the logarithm of a weight per unit of action.

    Returns:
        Weights of the symbols; cash has the rest. 0 if the benchmark holds nothing. Shape: (K,), as `chosen_weights`.
    """
    cash_part = cash_weight / (1.0 - cash_weight)
    if not money.whole_shares:
        action, benchmark = action.to(money.dtype), benchmark.to(money.dtype)
        total = benchmark.sum(-1, keepdim=True)
        parts = torch.cat([benchmark, total * cash_part], dim=-1)
        parts = parts * torch.exp(gain * (action - action.amax(-1, keepdim=True)))
        whole = parts.sum(-1, keepdim=True)
        return torch.where(whole > 0, parts / torch.where(whole > 0, whole, 1.0), 0.0)[..., :-1]
    action = action.to(torch.float32)
    cash = torch.floor(benchmark.sum(-1, keepdim=True).double() * cash_part).to(torch.float32)
    units = torch.cat([benchmark, cash], dim=-1)
    factor = single_exp((action - action.amax(-1, keepdim=True)) * gain, 2.0 * gain)
    units = torch.floor(units * factor)
    total = units.sum(-1, keepdim=True).double()
    steps = torch.floor(units.double() * RATIO_STEPS / total.clamp(min=1.0))
    return steps[..., :-1] / RATIO_STEPS


def benchmark_units(portfolio: Tensor) -> Tensor:
    """Return a portfolio in whole units, the largest position in 2^16 of them, fewer with more than 127 symbols.

    Their sum is below 2^23. Shapes: (K,) -> (K,), float32.
    """
    scale = 2.0 ** min(16, 23 - portfolio.shape[-1].bit_length())
    largest = portfolio.amax(-1, keepdim=True)
    return torch.floor(portfolio / torch.where(largest > 0, largest, 1.0) * scale)


def reserved_price(money: Money, fill: Tensor, surcharge: Tensor) -> Tensor:
    """Return what a target weight counts on to pay for a share; float64 with whole shares. Shape: (K,)."""
    precision = torch.float64 if money.whole_shares else money.dtype
    return money.rounded_up(fill.to(precision) * surcharge.to(precision))


def orders_to_weights(
    money: Money,
    weights: Tensor,
    value: Tensor,
    holdings: Tensor,
    prices: Prices,
    surcharge: Tensor,
    dead_zone: Tensor | None,
) -> Tensor:
    """Return the signed share orders that lead to target weights.

    Args:
        money: arithmetic.
        weights: as `chosen_weights` returns them. Shape: (K,).
        value: portfolio value in ticks. Shape: ().
        holdings: Shape: (K,).
        prices: of the day.
        surcharge: 1 + commission + slippage, float64. Shape: () or (K,).
        dead_zone: orders worth at most this share of the value are dropped; None for none. Shape: ().
    """
    price = reserved_price(money, prices.fill, surcharge)
    precision = price.dtype
    budget = weights.to(precision) * value.to(precision)
    budget = torch.floor(budget) if money.whole_shares else budget
    target = torch.where(price > 0, budget / torch.where(price > 0, price, 1.0), 0.0)
    order = (torch.floor(target) if money.whole_shares else target).to(money.dtype) - holdings
    if dead_zone is None:
        return order
    worth = order.abs().to(precision) * prices.fill.to(precision)
    return torch.where(worth <= dead_zone.to(precision) * value.to(precision), 0.0, order)
