"""The account without shorting, by examples worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.tasks.stock_trading.example_account import TEN, open_account

NAN = math.nan


class TestWholeShares:
    def test_buying_pays_price_and_commission_and_earns_the_move(self):
        account = open_account([[TEN], [105_000]])
        reward = account.step([1.0])
        assert account.holdings == [100]
        assert account.cash == 10_000_000_000 - 10_000_000 - 10_000
        assert (account.traded, account.costs) == (10_000_000, 10_000)
        assert account.value == 10_000_000_000 + 500_000 - 10_000
        assert reward == pytest.approx(49.0 * 1e-4)

    def test_selling_is_limited_to_the_holding_and_pays_commission(self):
        account = open_account([[TEN], [TEN]], initial_cash=0, initial_holdings=[30])
        account.step([-1.0])
        assert (account.holdings, account.cash) == ([0], 3_000_000 - 3_000)
        assert (account.traded, account.costs) == (3_000_000, 3_000)

    def test_orders_are_truncated_toward_zero(self):
        account = open_account([[TEN, TEN]] * 2, initial_holdings=100)
        account.step([0.999, -0.999])
        assert account.holdings == [199, 1]

    def test_orders_are_multiplied_in_single_precision(self):
        # 0.29 × 100 is 28.999999999999996 in double precision and 29 in single precision.
        account = open_account([[TEN]] * 2)
        account.step([0.29])
        assert account.holdings == [29]

    def test_commission_is_rounded_up_to_a_tick(self):
        account = open_account([[100_001]] * 2, hmax=1)
        account.step([1.0])
        assert account.costs == 101

    def test_commission_on_a_sale_never_exceeds_the_proceeds(self):
        account = open_account([[1]] * 2, hmax=1, commission=1.5, initial_holdings=1)
        account.step([-1.0])
        assert account.cash == 10_000_000_000

    def test_initial_cash_is_rounded_down_to_a_tick(self):
        assert open_account([[TEN]] * 2, initial_cash=1.23456).cash == 12_345

    def test_actions_are_clamped(self):
        account = open_account([[TEN]] * 2)
        account.step([7.0])
        assert account.holdings == [100]

    def test_dead_zone_includes_its_edge(self):
        account = open_account([[TEN, TEN]] * 2, dead_zone=0.1)
        account.step([0.1, 0.11])
        assert account.holdings == [0, 11]

    def test_invalid_entries_are_no_trades_and_are_counted(self):
        account = open_account([[TEN] * 4] * 3, initial_holdings=5)
        account.step([NAN, math.inf, -math.inf, 0.1])
        account.step([0.0, 0.0, NAN, 0.0])
        assert account.holdings == [5, 5, 5, 15]
        assert account.invalid_actions == 4

    def test_untradable_symbols_have_no_order(self):
        account = open_account([[TEN, TEN]] * 2, tradable=[[False, True], [True, True]])
        account.step([1.0, 1.0])
        assert account.holdings == [0, 100]


class TestRationing:
    def test_pro_rata(self):
        # need 20,020,000 of 15,000,000: the ratio is 49,103 / 65,536 rounded down: 74.92 and 37.46 shares.
        account = open_account([[TEN, 2 * TEN]] * 2, initial_cash=1500)
        account.step([1.0, 0.5])
        assert account.holdings == [74, 37]
        assert account.cash == 15_000_000 - 14_800_000 - 14_800

    def test_pro_rata_ratio_is_a_multiple_of_two_to_the_minus_16(self):
        # 8,749,999 of 10,000,000 is 57,343.99 steps: 69,998.8 shares instead of 69,999.99.
        account = open_account([[125]] * 2, initial_cash=874.9999, hmax=80_000, commission=0.0)
        account.step([1.0])
        assert account.holdings == [69_998]

    def test_exactly_affordable_orders_are_not_rationed(self):
        account = open_account([[TEN]] * 2, initial_cash=1001)
        account.step([1.0])
        assert (account.holdings, account.cash) == ([100], 0)

    def test_sells_finance_buys(self):
        account = open_account([[TEN, TEN]] * 2, initial_cash=0, initial_holdings=[0, 100])
        account.step([1.0, -1.0])
        # 999.0000 of proceeds against a need of 1001.0000: 99.8 shares.
        assert (account.holdings, account.cash) == ([99, 0], 9_990_000 - 9_900_000 - 9_900)
        assert (account.traded, account.costs) == (10_000_000 + 9_900_000, 10_000 + 9_900)

    def test_by_size_serves_the_largest_first_and_ties_by_position(self):
        # Budget 14,985,014: its commission of 14,986 makes exactly 15,000,000.
        # 74 × 200,000 leaves 185,014; then 1 × 100,000 leaves 85,014; then 1 × 50,000.
        account = open_account([[TEN, 2 * TEN, TEN // 2]] * 2, initial_cash=1500, rationing="by_size")
        account.step([0.5, 0.8, 0.5])
        assert account.holdings == [1, 74, 1]
        assert account.cash == 15_000_000 - 14_950_000 - 14_950

    @pytest.mark.parametrize(
        ("cash", "commission", "shares"),
        [(15_000_000, 0.001, 14_985_014), (14_999_999, 0.001, 14_985_013), (110_000, 0.1, 100_000)],
    )
    def test_by_size_budget_is_the_largest_that_pays_its_commission(self, cash, commission, shares):
        rules = {"hmax": 2**24, "rationing": "by_size", "commission": commission}
        account = open_account([[1]] * 2, initial_cash=(cash + 0.5) / 10_000, **rules)
        account.step([1.0])
        assert (account.holdings, account.cash) == ([shares], 0)


class TestPrices:
    def test_slippage_moves_both_prices_against_the_trader(self):
        # 100,001 × 0.0005 = 50.0005, rounded up: 51 ticks.
        account = open_account([[100_001, 100_001]] * 2, slippage=0.0005, commission=0.0, initial_holdings=[0, 10])
        account.step([0.1, -0.1])
        assert account.cash == 10_000_000_000 - 10 * 100_052 + 10 * 99_950
        assert account.costs == 20 * 51

    def test_slippage_per_symbol(self):
        account = open_account([[TEN, TEN]] * 2, slippage=[0.0, 0.01], commission=0.0)
        account.step([0.1, 0.1])
        assert account.cash == 10_000_000_000 - 10 * TEN - 10 * 101_000

    def test_the_sell_price_is_never_negative(self):
        rules = {"slippage": 1.5, "commission": 0.0, "initial_holdings": 1, "initial_cash": 0}
        account = open_account([[TEN]] * 2, **rules)
        account.step([-1.0])
        assert (account.cash, account.costs, account.traded) == (0, TEN, 0)

    def test_commission_per_symbol_is_folded_into_the_prices(self):
        # 0.1% of 100,001 ticks is 100.001, so 101 each for slippage and commission; of 100,000 it is 100 and 0.2% are
        # 200: rates are rounded down to float32, so that a round price does not cost a tick too much.
        account = open_account(
            [[100_001, TEN]] * 2, commission=[0.001, 0.002], slippage=0.001, initial_holdings=[0, 10]
        )
        account.step([0.1, -0.1])
        assert account.cash == 10_000_000_000 - 10 * (100_001 + 101 + 101) + 10 * (100_000 - 100 - 200)
        assert account.costs == 10 * 202 + 10 * 300
        assert account.average_price == [100_203, 0]

    def test_next_open_pays_the_open_and_values_the_close(self):
        account = open_account([[TEN], [120_000]], open=[[1], [110_000]], fill="next_open")
        account.step([1.0])
        assert account.cash == 10_000_000_000 - 11_000_000 - 11_000
        assert (account.costs, account.value) == (11_000, 10_000_000_000 + 1_000_000 - 11_000)

    def test_next_open_trades_if_the_next_day_is_tradable(self):
        account = open_account([[TEN, TEN]] * 2, tradable=[[True, False], [False, True]], fill="next_open")
        account.step([1.0, 1.0])
        assert account.holdings == [0, 100]


class TestWeights:
    def test_weights_above_one_are_divided_by_their_sum(self):
        # 1/3 → 21,845 / 65,536 of 1e9 = 333,328,247 ÷ 100,100 = 3,329.95,
        # 2/3 → 43,690 / 65,536 of 1e9 = 666,656,494 ÷ 200,200 = 3,329.95.
        account = open_account([[TEN, 2 * TEN]] * 2, action="weights", initial_cash=100_000)
        account.step([0.5, 1.0])
        assert account.holdings == [3_329, 3_329]
        assert account.cash == 1_000_000_000 - 998_700_000 - 998_700

    def test_division_by_the_sum_sells_what_is_too_much(self):
        rules = {"action": "weights", "initial_holdings": [100, 0], "initial_cash": 0, "commission": 0.0}
        account = open_account([[TEN, TEN]] * 2, **rules)
        account.step([1.0, 1.0])
        assert account.holdings == [50, 50]

    def test_negative_weights_count_as_zero_and_nan_keeps_the_position(self):
        rules = {"action": "weights", "initial_holdings": [10, 10, 0], "initial_cash": 980, "shorting": True}
        account = open_account([[TEN] * 3] * 2, **rules)
        account.step([-1.0, NAN, 0.5])
        # Value 1180.0000: half of it is 5,900,000 ÷ 100,100 = 58.9.
        assert account.holdings == [0, 10, 58]

    def test_targets_are_rounded_down_to_two_to_the_minus_16(self):
        # 0.1 → 6,553 / 65,536 of 1e9 = 99,990,844 ÷ 10; unrounded it would buy 10,000,000.
        account = open_account([[10]] * 2, action="weights", initial_cash=100_000, commission=0.0)
        account.step([0.1])
        assert account.holdings == [9_999_084]

    def test_targets_count_commission_and_slippage(self):
        # Half of 2000.0000 ÷ 10.5000.
        rules = {"action": "weights", "commission": 0.01, "slippage": 0.04}
        account = open_account([[TEN]] * 2, initial_cash=2000, **rules)
        account.step([0.5])
        assert account.holdings == [95]

    @pytest.mark.parametrize(("dead_zone", "held"), [(0.25, 50), (0.24, 75)])
    def test_dead_zone_is_a_share_of_the_value(self, dead_zone, held):
        rules = {"action": "weights", "commission": 0.0, "dead_zone": dead_zone}
        account = open_account([[TEN]] * 2, initial_cash=500, initial_holdings=50, **rules)
        account.step([0.75])
        assert account.holdings == [held]

    def test_a_target_below_the_holding_sells(self):
        account = open_account([[TEN]] * 2, action="weights", initial_cash=0, initial_holdings=100, commission=0.0)
        account.step([0.5])
        assert account.holdings == [50]


class TestProtection:
    def test_the_gate_sells_everything_tradable_and_refuses_buys(self):
        account = open_account(
            [[TEN] * 3] * 3,
            tradable=[[True] * 3, [True, True, False], [True] * 3],
            gate_series=[99.0, 100.0, 0.0],
            gate_threshold=100.0,
            initial_holdings=300,
        )
        account.step([0.1, 0.0, 0.0])
        assert account.holdings == [310, 300, 300]
        account.step([1.0, 1.0, -1.0])
        assert account.holdings == [0, 0, 300]

    def test_the_stop_loss_sells_at_its_threshold_whatever_was_ordered(self):
        account = open_account([[TEN, TEN], [90_000, 90_001], [90_000] * 2], stop_loss=0.1)
        account.step([1.0, 1.0])
        account.step([1.0, 0.0])
        assert account.holdings == [0, 100]

    def test_initial_holdings_were_bought_at_the_close_of_the_start_day(self):
        account = open_account([[1], [TEN], [90_000], [90_000]], start_day=1, stop_loss=0.1, initial_holdings=7)
        assert account.start_value == 10_000_000_000 + 700_000
        account.step([0.0])
        account.step([0.0])
        assert account.holdings == [0]

    def test_the_average_price_follows_buys_alone(self):
        account = open_account([[TEN], [130_000], [50_000], [130_000], [TEN], [TEN]])
        averages = []
        for action in (1.0, 0.5, -1.0, -1.0, 0.1):
            account.step([action])
            averages.append(account.average_price[0])
        assert averages == [100_000, 110_000, 110_000, 0, 100_000]

    def test_the_average_price_is_in_single_precision(self):
        # (100,000 + 2 × 100,001) ÷ 3 = 100,000.667; the nearest multiple of 2⁻⁷ is 85 / 128.
        account = open_account([[TEN], [100_001], [TEN]], hmax=2)
        account.step([0.5])
        account.step([1.0])
        assert account.average_price == [100_000 + 85 / 128]


class TestFractionalShares:
    def test_nothing_is_rounded(self):
        account = open_account([[100_001]] * 2, whole_shares=False, hmax=1, slippage=0.001)
        account.step([0.3])
        assert account.holdings == [0.3]
        spent = 0.3 * 100_001 * 1.001
        assert account.cash == pytest.approx(10_000_000_000 - spent * 1.001, abs=1e-5)
        assert account.average_price[0] == pytest.approx(100_001 * 1.001)

    @pytest.mark.parametrize("rationing", ["pro_rata", "by_size"])
    def test_rationing_spends_all_cash(self, rationing):
        account = open_account([[TEN, TEN]] * 2, whole_shares=False, initial_cash=1001, rationing=rationing)
        account.step([1.0, 0.5])
        expected = [200 / 3, 100 / 3] if rationing == "pro_rata" else [100, 0]
        assert account.holdings == pytest.approx(expected)
        assert account.cash == pytest.approx(0, abs=1e-6)

    def test_weights_reach_their_target(self):
        account = open_account([[TEN, 3 * TEN]] * 2, whole_shares=False, action="weights", commission=0.01)
        account.step([0.1, 0.3])
        assert account.holdings == pytest.approx([1e9 / 101_000, 3e9 / 303_000])
