"""Shorting, margin calls and borrow fees, by examples worked out by hand."""

from __future__ import annotations

import pytest

from tests.tasks.stock_trading.example_account import TEN, open_account


class TestShorting:
    """Shorts of a share at 10.0000 with an initial margin of 0.5 and a maintenance margin of 0.25."""

    def test_an_opening_adds_its_proceeds_to_cash(self):
        account = open_account([[TEN], [90_000]], shorting=True, initial_cash=1000)
        account.step([-1.0])
        assert (account.holdings, account.cash) == ([-100], 10_000_000 + 10_000_000 - 10_000)
        assert account.value == 10_000_000 + 1_000_000 - 10_000
        assert account.average_price == [0]

    def test_openings_are_limited_by_the_initial_margin(self):
        # 1,000,000 ÷ 0.501 = 1,996,007 of 10,000,000: 19.96 shares.
        account = open_account([[TEN]] * 2, shorting=True, initial_cash=100)
        account.step([-1.0])
        assert (account.holdings, account.cash) == ([-19], 1_000_000 + 1_900_000 - 1_900)

    def test_openings_beside_shorts_use_what_the_shorts_leave_free(self):
        # Shorts of 10 bind 1,500,000 of 2,000,000; 500,000 ÷ 0.5 = 1,000,000 is half of what is wanted.
        rules = {"shorting": True, "initial_cash": 200, "initial_holdings": -10, "commission": 0.0}
        account = open_account([[TEN]] * 2, **rules)
        account.step([-0.2])
        assert account.holdings == [-20]

    def test_the_borrow_fee_is_a_cost_of_every_day(self):
        # 10 × 100,001 × 0.0252 ÷ 252 = 100.001, rounded up.
        account = open_account([[TEN], [100_001]], shorting=True, borrow_rate=0.0252, initial_holdings=-10)
        account.step([0.0])
        assert (account.cash, account.costs) == (10_000_000_000 - 101, 101)

    @pytest.mark.parametrize(("price", "held"), [(TEN, -9), (100_001, 0)])
    def test_a_margin_call_replaces_the_orders(self, price, held):
        # Cash of 1,250,000 is just 1.25 × 10 × 100,000; a tick more and all shorts are closed.
        account = open_account([[price]] * 2, shorting=True, initial_cash=125, initial_holdings=-10)
        account.step([0.01])
        assert account.holdings == [held]

    def test_a_margin_call_sells_longs_first_and_covers_what_cash_allows(self):
        # 2 longs bring 2.0000 − 0.0020; cash 161.9980 of a need of 320.3200: 10.1 of 20 shares.
        account = open_account([[160_000, 10_000]] * 2, shorting=True, initial_cash=160, initial_holdings=[-20, 2])
        account.step([0.0, 1.0])
        assert account.holdings == [-10, 0]
        assert account.cash == 1_619_980 - 1_600_000 - 1_600

    def test_orders_across_zero_are_split(self):
        account = open_account([[TEN, TEN]] * 2, shorting=True, initial_holdings=[10, -20], commission=0.0)
        account.step([-0.3, 0.5])
        assert account.holdings == [-20, 30]
        assert account.average_price == [0, 100_000]
        assert account.cash == 10_000_000_000 + 30 * TEN - 50 * TEN

    def test_each_part_pays_its_own_commission(self):
        # 0.1% of 11 × 9 ticks and of 7 × 9 ticks are rounded up to a tick each; that of 18 × 9 to one.
        account = open_account([[9]] * 2, shorting=True, initial_holdings=[11])
        account.step([-0.18])
        assert account.costs == 2

    def test_long_buys_leave_the_margin_of_the_shorts(self):
        # Cash 2,000,000 less 1.5 × 1,000,000: 500,000 is half of what is wanted.
        rules = {"shorting": True, "initial_cash": 200, "initial_holdings": [-10, 0], "commission": 0.0}
        account = open_account([[TEN, TEN]] * 2, **rules)
        account.step([0.0, 0.1])
        assert account.holdings == [-10, 5]

    def test_covers_may_use_the_margin(self):
        account = open_account(
            [[TEN, TEN]] * 2, shorting=True, initial_cash=250, initial_holdings=[-10, -10], commission=0.0
        )
        account.step([0.1, 0.1])
        assert (account.holdings, account.cash) == ([0, 0], 500_000)

    def test_the_gate_covers_shorts(self):
        account = open_account(
            [[TEN]] * 2, shorting=True, initial_holdings=-10, gate_series=[5.0, 0.0], gate_threshold=5.0
        )
        account.step([-1.0])
        assert account.holdings == [0]

    def test_a_borrow_fee_beyond_cash_leaves_a_debt(self):
        # 1 × 10,000 × 2.52 ÷ 252 = 100 a day of 50 in cash; nothing is tradable, so nothing else moves.
        account = open_account(
            [[10_000, TEN]] * 3,
            tradable=[[False, False]] * 3,
            shorting=True,
            borrow_rate=2.52,
            initial_cash=0.0050,
            initial_holdings=[-1, 1],
        )
        account.step([1.0, 1.0])
        assert (account.cash, account.terminated) == (-50, False)
        account.step([1.0, 1.0])
        assert account.cash == -150

    def test_a_worthless_account_ends(self):
        account = open_account([[TEN], [210_000], [TEN]], shorting=True, initial_cash=20, initial_holdings=-1)
        account.step([0.0])
        assert (account.value, account.terminated, account.truncated) == (-10_000, True, False)
