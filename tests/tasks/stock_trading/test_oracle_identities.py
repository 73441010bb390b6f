"""What must hold for any account: random markets, settings and actions."""

from __future__ import annotations

import math
import random

import pytest

from tests.tasks.stock_trading.example_account import open_account

NAN = math.nan


def random_account(rng, **rules):
    """Open an account of random size, market, and settings; ``rules`` override them."""
    num_days, num_symbols = rng.randint(3, 12), rng.randint(1, 6)

    def prices():
        return [[rng.randint(1, 10 ** rng.randint(2, 6)) for _ in range(num_symbols)] for _ in range(num_days)]

    def rates(high):
        return rng.choice([0.0, rng.random() * high, [rng.random() * high for _ in range(num_symbols)]])

    settings = {
        "action": rng.choice(["shares", "weights"]),
        "fill": rng.choice(["close", "next_open"]),
        "rationing": rng.choice(["pro_rata", "by_size"]),
        "hmax": rng.choice([1, 10, 100]),
        "dead_zone": rng.choice([0.0, 0.1]),
        "commission": rates(0.02),
        "slippage": rates(0.02),
        "stop_loss": rng.choice([0.0, 0.2]),
        "gate_threshold": rng.choice([0.8, 2.0]),
        "initial_cash": rng.random() * 10 ** rng.randint(0, 5),
        "initial_holdings": [rng.randint(0, 50) for _ in range(num_symbols)],
        "borrow_rate": rng.choice([0.0, 0.5]),
    }
    return open_account(
        prices(),
        open=prices(),
        tradable=[[rng.random() < 0.8 for _ in range(num_symbols)] for _ in range(num_days)],
        gate_series=[rng.random() for _ in range(num_days)],
        **{**settings, **rules},
    )


def random_action(rng, account):
    return [rng.choice([rng.uniform(-1.2, 1.2), 1.0, -1.0, NAN]) for _ in account.symbols]


def run_steps(rng, account):
    """Yield the account's cash, holdings, and value before each step, after the step was made."""
    while not (account.terminated or account.truncated):
        before = (account.cash, list(account.holdings), account.value)
        account.step(random_action(rng, account))
        yield before


@pytest.mark.parametrize("seed", range(200))
def test_whole_share_accounts_are_exact_and_never_negative(seed):
    rng = random.Random(seed)
    account = random_account(rng)
    for _ in run_steps(rng, account):
        assert all(type(number) is int for number in [account.cash, account.value, account.costs, *account.holdings])
        assert account.cash >= 0
        assert min(account.holdings) >= 0


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("shorting", [False, True])
def test_the_value_changes_by_the_market_move_less_costs(seed, shorting):
    rng = random.Random(seed)
    account = random_account(rng, shorting=shorting)
    close, open_ = account.market.close, account.market.open
    for _, held, value in run_steps(rng, account):
        today, tomorrow = close[account.day - 1], close[account.day]
        fill = today if account.rules.fill == "close" else open_[account.day]
        before_fill = sum(held[k] * (fill[k] - today[k]) for k in account.symbols)
        after_fill = sum(account.holdings[k] * (tomorrow[k] - fill[k]) for k in account.symbols)
        assert account.value - value == before_fill + after_fill - account.costs


@pytest.mark.parametrize("seed", range(100))
def test_cash_falls_below_zero_only_by_the_borrow_fee(seed):
    rng = random.Random(seed)
    account = random_account(rng, shorting=True, borrow_rate=0.0)
    for _ in run_steps(rng, account):
        assert account.cash >= 0


@pytest.mark.parametrize("seed", range(100))
def test_openings_meet_the_initial_margin(seed):
    rng = random.Random(seed)
    account = random_account(rng, shorting=True, fill="close", slippage=0.0, borrow_rate=0.0, commission=0.01)
    for _, held, _ in run_steps(rng, account):
        if any(new < min(old, 0) for new, old in zip(account.holdings, held, strict=True)):
            shorts = account._shorts(account.market.close[account.day - 1])
            # The commission is rounded up to a tick after the limit is drawn.
            assert account.cash + 1 >= 1.5 * shorts


@pytest.mark.parametrize("seed", range(100))
def test_fractional_accounts_keep_the_identity_and_their_cash(seed):
    rng = random.Random(seed)
    account = random_account(rng, whole_shares=False, fill="close")
    for _, _, value in run_steps(rng, account):
        today, tomorrow = account.market.close[account.day - 1], account.market.close[account.day]
        move = sum(account.holdings[k] * (tomorrow[k] - today[k]) for k in account.symbols)
        assert account.value - value == pytest.approx(move - account.costs, abs=1e-9 * max(abs(value), 1e6))
        assert account.cash >= 0
        assert min(account.holdings) >= 0
