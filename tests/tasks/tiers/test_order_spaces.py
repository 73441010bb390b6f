"""Choices and weights as lists of orders: by examples, against the scalar oracle, and by what they reach."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.tasks.tiers.oracle import Market, Rules, TierAccount, discrete_mask, discrete_to_orders, weights_to_orders
from vecenv.tasks.tiers import order_spaces
from vecenv.tasks.tiers.order_list import Kind
from vecenv.tasks.tiers.order_spaces import FRACTION_BINS, choice_mask, choices_to_orders

NUM_SYMBOLS = 6


def account(rng: np.random.Generator, commission: float = 0.0, slippage: float = 0.0) -> TierAccount:
    """An account of the scalar oracle that holds some of six symbols, beside cash."""
    prices = rng.integers(50, 5_000, NUM_SYMBOLS).tolist()
    tradable = (rng.random(NUM_SYMBOLS) > 0.2).tolist()
    numbers = [[0.0] * NUM_SYMBOLS] * 2
    features = [[[0.0] * 12] * NUM_SYMBOLS] * 2
    market = Market([prices, prices], [tradable, tradable], numbers, 0.01, features)
    owned = (True,) * NUM_SYMBOLS
    rules = Rules(9, int(rng.choice([40, 3_000, 10_000_000])), owned, commission, slippage, 9, 1.0, 1.0, False, {})
    held = TierAccount(rules, market, 0)
    held.held = (rng.integers(0, 500, NUM_SYMBOLS) * (rng.random(NUM_SYMBOLS) < 0.6)).tolist()
    held.average_price = [float(price) if count else 0.0 for price, count in zip(prices, held.held, strict=True)]
    held.value = held.cash + sum(count * price for count, price in zip(held.held, prices, strict=True))
    held.peak_value = held.value
    return held


def shares_of(held: TierAccount) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the share of the portfolio value in each symbol and in cash, float32."""
    prices = torch.tensor(held.market.close[0], dtype=torch.float64)
    worth = torch.tensor(held.held, dtype=torch.float64) * prices
    return (worth / held.value).float(), torch.tensor(held.cash / held.value)


def test_choices_name_hold_then_purchases_then_sales():
    action = torch.tensor([[0, 9], [1, 0], [3, 9], [4, 4], [6, 1]])
    orders = [[0, 0, 1.0], [1, 0, 0.1], [1, 2, 1.0], [2, 0, 0.5], [2, 2, 0.2]]
    assert torch.equal(choices_to_orders(action, 3), torch.tensor(orders))


def test_every_choice_is_the_oracles():
    choices = [(choice, tenth) for choice in range(1 + 2 * NUM_SYMBOLS) for tenth in range(FRACTION_BINS)]
    ours = choices_to_orders(torch.tensor(choices), NUM_SYMBOLS)
    expected = torch.tensor(discrete_to_orders(choices, NUM_SYMBOLS))
    trades = expected[:, 0] != Kind.HOLD
    assert torch.equal(ours[:, 0], expected[:, 0]) and torch.equal(ours[trades], expected[trades])


def test_the_mask_leaves_what_can_be_done():
    """Symbol 0 is too dear, 1 is not tradable, 2 is held and can be paid for; every fraction is allowed."""
    mask = choice_mask(
        tradable=torch.tensor([[1.0, 0.0, 1.0]]),
        price=torch.tensor([[100.0, 5.0, 99.0]]),
        weight=torch.tensor([[0.0, 0.5, 0.2]]),
        cash=torch.tensor([[99.5]]),
        unit_cost=torch.tensor([[1.004]]),
        max_orders=2,
    )
    one = [True, False, False, True, False, False, True] + [True] * FRACTION_BINS
    assert mask.tolist() == [one + one]


def test_the_mask_is_the_oracles():
    rng, seen = np.random.default_rng(0), set()
    for _ in range(300):
        held = account(rng, commission=0.001, slippage=0.002)
        price = torch.tensor(held.market.close[0]).float()
        cash = torch.tensor([held.cash]).float()
        tradable = torch.tensor(held.market.tradable[0]).float()
        mask = choice_mask(tradable, price, shares_of(held)[0], cash, torch.tensor([1.003]), 3)
        close = (price - held.cash).abs() < 0.01 * price
        expected = torch.tensor(discrete_mask(held))
        one = 1 + 2 * NUM_SYMBOLS
        # Costs are rounded up to ticks in the account; where one share takes nearly all cash the mask may differ.
        decided = ~torch.cat([torch.tensor([False]), close, torch.zeros_like(close)])
        assert torch.equal(mask[:one][decided], expected[decided])
        assert torch.equal(mask[one + FRACTION_BINS :][:one], mask[:one])
        seen |= {tuple(expected[1 : 1 + NUM_SYMBOLS].tolist())}
    assert len(seen) > 30


def targets(rng: np.random.Generator) -> np.ndarray:
    weights = rng.dirichlet(np.ones(NUM_SYMBOLS)) * rng.choice([0.3, 0.9, 1.0, 2.5])
    return (weights * (rng.random(NUM_SYMBOLS) < 0.7)).astype(np.float32)


@pytest.mark.parametrize("max_orders", [1, 3, 8])
def test_weights_become_the_oracles_orders(max_orders):
    """Kinds and symbols exactly, fractions to the precision of float32 shares."""
    rng, kinds = np.random.default_rng(max_orders), []
    for _ in range(300):
        held, target = account(rng), targets(rng)
        ours = order_spaces.weights_to_orders(torch.from_numpy(target), *shares_of(held), max_orders)
        expected = torch.tensor(weights_to_orders(held, target.tolist(), max_orders))
        assert torch.equal(ours[:, :2], expected[:, :2]), (held.held, target)
        torch.testing.assert_close(ours[:, 2], expected[:, 2], rtol=1e-4, atol=2e-5)
        kinds += ours[:, 0].tolist()
    assert all(kinds.count(float(kind)) > 50 for kind in (Kind.BUY, Kind.SELL))


def test_a_target_portfolio_is_reached():
    """Without costs and limits: every share of the value within a share's price and a hundredth of a percent."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        held, target = account(rng), targets(rng)
        held.market.tradable[0] = [True] * NUM_SYMBOLS
        orders = order_spaces.weights_to_orders(torch.from_numpy(target), *shares_of(held), 8)
        start, value, prices = held.held.copy(), held.value, held.market.close[0]
        before = np.array(start) * prices / value
        held.step(orders.tolist())
        reached = np.array(held.held) * prices / value
        wanted = target.clip(max=1.0) / max(1.0, float(target.clip(max=1.0).sum()))
        wanted = np.where(np.abs(wanted - before) < 0.005, before, wanted)
        # Sales and purchases before one of these leave their own rounding in the cash.
        slack = (np.max(prices) * NUM_SYMBOLS / value) + 0.001
        assert np.all(np.abs(reached - wanted) <= slack), (reached, wanted)


def test_the_largest_differences_come_first_and_small_ones_are_left_alone():
    weight = torch.tensor([0.0, 0.3, 0.0, 0.2, 0.1, 0.0])
    target = torch.tensor([0.004, 0.0, 0.1, 0.1, 0.1, 0.25])
    orders = order_spaces.weights_to_orders(target, weight, torch.tensor(0.4), 3)
    expected = [[Kind.SELL, 1, 1.0], [Kind.BUY, 2, 0.1 / 0.7], [Kind.BUY, 5, 0.25 / 0.6]]
    torch.testing.assert_close(orders, torch.tensor(expected))
    every = order_spaces.weights_to_orders(target, weight, torch.tensor(0.4), 8)
    assert every[:, 0].tolist() == [2, 2, 1, 1, 0, 0, 0, 0] and every[:4, 1].tolist() == [1, 3, 2, 5]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_invalid(broken):
    target = torch.tensor([0.1, broken, 0.2])
    orders = order_spaces.weights_to_orders(target, torch.zeros(3), torch.tensor(1.0), 4)
    assert (orders[:, 0] == Kind.INVALID).all() and bool(orders.isfinite().all())
