"""The rules on scores against the scalar oracle, step by step over random episodes of random size and settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.tasks.signals.oracle import SignalAccount, SignalRules
from tests.tasks.stock_trading.oracle import Account
from tests.tasks.stock_trading.test_stock_trading_oracle import SCALES, Case, check_exact
from tests.tasks.tiers.random_markets import oracle_market
from vecenv.core.engine import BoundEngine
from vecenv.core.rows import Rows
from vecenv.market.panels import Panels
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.signals.scenario import SignalTrading

# Far below what the weakest strength does to a reward; float32 cancels in a cash penalty, and a reward is divided by a
# level that is rounded to single precision.
TOLERANCE = {"float32": 1e-4, "float64": 2e-7}


class ScoredCase(Case):
    """A case with scores of all sizes, whole and broken, and missing ones, of which the neutral value alone counts."""

    scenario, settings = SignalTrading, SignalsConfig

    def drawn_rules(self, seed: int, symbols: int, whole_shares: bool, shorting: bool) -> dict[str, Any]:
        return super().drawn_rules(seed, symbols, whole_shares, shorting) | {
            "sentiment_strength": float(self.rng.choice([0.0, 0.001, 0.01, 0.05, 0.1, 0.45])) if seed % 5 else 0.45,
            "risk_strength": (0.1, 0.001, 0.45, 0.0)[seed % 4],
            "risk_form": ("reward", "published", "trajectory")[seed % 3],
        }

    def drawn_actions(self, symbols: int) -> np.ndarray:
        shape = (1, self.tape.num_days, symbols, 2)
        scores = np.where(self.rng.random(shape) < 0.5, self.rng.integers(1, 6, shape), self.rng.uniform(1, 5, shape))
        known = self.rng.random(shape) < 0.7
        panels = Panels(torch.from_numpy(np.where(known, scores, 3.0)).float(), torch.from_numpy(known))
        self.tape = replace(self.tape, panels=panels)
        return super().drawn_actions(symbols)

    def account(self, spelled: dict[str, Any], start: int, length: int) -> Account:
        sentiment, risk = (one.tolist() for one in self.tape.panels.scores[0].unbind(-1))
        rules = SignalRules(gate=self.gate, **spelled, **SCALES)
        return SignalAccount(rules, oracle_market(self.tape), start, length, sentiment, risk)

    def check_level(self, bound: BoundEngine, before: Rows, after: Rows, accounts: dict[int, Account]) -> None:
        levels = bound.risk_level(before, after)[list(accounts)]
        np.testing.assert_allclose(levels, [account.level for account in accounts.values()], rtol=2e-7)


@pytest.mark.parametrize("seed", range(12))
def test_whole_shares_equal_the_oracle(seed):
    assert check_exact(ScoredCase(seed, 30), {"float32": TOLERANCE["float32"]}) > 60


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20, 70))
def test_ten_thousand_episodes_equal_the_oracle(seed):
    check_exact(ScoredCase(seed, 200), TOLERANCE)
