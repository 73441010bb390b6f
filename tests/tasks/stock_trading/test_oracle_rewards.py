"""Rewards, ends of episodes and observations, by examples worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.tasks.stock_trading.example_account import TEN, open_account

CLOSE = [[TEN], [110_000], [104_500], [104_500]]


class TestRewards:
    """Values 1000 → 1100 → 1045 in currency: returns of 10% and −5%, without costs."""

    def rewards(self, **rules):
        account = open_account(CLOSE, initial_cash=0, initial_holdings=100, reward_scale=2.0, **rules)
        return [account.step([0.0]) for _ in range(2)]

    def test_delta_value(self):
        assert self.rewards() == pytest.approx([200, -110])

    def test_log_return(self):
        assert self.rewards(reward="log_return") == pytest.approx([2 * math.log(1.1), 2 * math.log(0.95)])

    def test_differential_sharpe(self):
        # After the first step A = 0.1 × 0.1 = 0.01 and B = 0.1 × 0.01 = 0.001.
        delta_a, delta_b, variance = -0.06, 0.0025 - 0.001, 0.001 - 0.0001
        second = 2 * (0.001 * delta_a - 0.5 * 0.01 * delta_b) / variance**1.5
        assert self.rewards(reward="differential_sharpe", sharpe_decay=0.1) == pytest.approx([0, second])

    def test_risk_penalised(self):
        rewards = self.rewards(reward="risk_penalised", risk_aversion=3.0)
        assert rewards == pytest.approx([2 * (0.1 - 3 * 0.01), 2 * (-0.05 - 3 * 0.0025)])

    def test_cash_penalty(self):
        # No cash at all: 10% of 1100 and of 1045 are missing, at half a point each.
        rewards = self.rewards(min_cash_fraction=0.1, cash_penalty_weight=0.5)
        assert rewards == pytest.approx([2 * (100 - 55), 2 * (-55 - 52.25)])

    def test_terminal_bonus_comes_on_the_last_step_alone_and_is_not_scaled(self):
        account = open_account(CLOSE, initial_cash=0, initial_holdings=100, length=2, terminal_bonus=7.0)
        rewards = [account.step([0.0]) for _ in range(2)]
        assert rewards == pytest.approx([100e-4, -55e-4 + 7 * 0.045])


class TestEpisodes:
    def test_truncated_at_the_length_and_at_the_end_of_the_data(self):
        for length, steps in ((2, 2), (250, 4)):
            account = open_account([[TEN]] * 5, length=length)
            flags = []
            for _ in range(steps):
                account.step([0.0])
                flags.append(account.truncated)
            assert flags == [False] * (steps - 1) + [True]
            assert not account.terminated
            with pytest.raises(ValueError, match="over"):
                account.step([0.0])

    @pytest.mark.parametrize(("price", "terminated"), [(50_001, False), (50_000, True)])
    def test_ruin_is_a_fraction_of_the_start_value(self, price, terminated):
        account = open_account([[TEN], [price], [TEN]], initial_cash=0, initial_holdings=1, ruin_fraction=0.5)
        account.step([0.0])
        assert account.terminated is terminated

    def test_observation_is_cash_prices_holdings_features(self):
        scales = {"cash_scale": 0.5, "price_scale": 0.1, "holdings_scale": 2.0, "feature_scale": 3.0}
        account = open_account([[TEN, 0], [TEN, 2 * TEN]], initial_holdings=[3, 0], **scales)
        assert account.observation() == pytest.approx([5e5, 1.0, 0, 6, 0, 0, -3, 3, -3])
        account.step([0.0, 0.0])
        assert account.observation() == pytest.approx([5e5, 1.0, 2.0, 6, 0, 30, -3, 33, -3])
