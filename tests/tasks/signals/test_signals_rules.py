"""Rules of trading on scores by hand, and beside the scalar oracle over random episodes of random settings."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import vecenv
from tests.tasks.signals.oracle import SignalAccount, SignalRules
from tests.tasks.stock_trading.oracle import Account
from tests.tasks.stock_trading.test_stock_trading_oracle import Case, check_exact
from tests.tasks.tiers.random_markets import oracle_market
from vecenv.core.engine import BoundEngine
from vecenv.core.rows import Rows
from vecenv.learn.cppo import check_risk_levels
from vecenv.market.panels import Panels
from vecenv.market.tape import MarketTape
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.signals.scenario import SignalTrading, risk_level, risk_worth
from vecenv.testing import check_task


def tape_with(scores, known=None, closes=None) -> MarketTape:
    """One path of three symbols at a price of 10 unless told, with the given scores of each day."""
    scores = torch.as_tensor(scores, dtype=torch.float32)[None]
    days, symbols = scores.shape[1:3]
    close = torch.full((1, days, symbols), 10.0) if closes is None else torch.as_tensor(closes)[None]
    ohlcv = torch.stack([*[close] * 4, torch.ones_like(close)], -1)
    known = torch.ones(scores.shape, dtype=torch.bool) if known is None else torch.as_tensor(known)[None]
    return MarketTape(
        symbols=tuple("ABC"[:symbols]), dates=np.datetime64("2024-01-01") + np.arange(days), ohlcv=ohlcv,
        tradable=torch.ones(1, days, symbols, dtype=torch.bool), features=torch.zeros(1, days, symbols, 0),
        feature_names=(), context=torch.zeros(1, days, 0), context_names=(), first_day=0, tick_size=0.0001,
        panels=Panels(scores, known),
    )  # fmt: skip


def env_on(tape, **config):
    defaults = {"features": (), "random_start": False, "commission": 0.0, "episode_length": tape.num_days - 1}
    return vecenv.make("signals", 1, market=tape, compile=False, **(defaults | config))


def test_orders_by_the_day_s_sentiment():
    """Hmax 100 at strength 0.1: 50 shares become 60 with the best news, 40 with the worst, 100 become 120."""
    env = env_on(tape_with([[(5, 3), (1, 3), (5, 3)]] * 3), sentiment_strength=0.1)
    env.advance(torch.tensor([[0.5, 0.5, 1.0]]))
    assert env.state.holdings.tolist() == [[60.0, 40.0, 120.0]]
    # The bounds of orders and positions, up to which sums are exact, allow for good news.
    env = env_on(tape_with([[(5, 3)]] * 3), sentiment_strength=0.4, hmax=1000.0)
    env.advance(torch.ones(1, 1))
    assert env.state.holdings.tolist() == [[1800.0]]
    assert 1800 <= env.scenario._max_order <= 1801 and 3600 <= env.scenario.max_holdings <= 3601


def test_a_loss_of_a_risky_portfolio_is_punished_more_and_as_published_less():
    """Two symbols fall by a tenth; the first is risky: M = 1 + 0.1 * 2 = 1.2."""
    closes = [[10.0, 10.0, 10.0], [9.0, 9.0, 10.0], [9.9, 9.9, 10.0]]
    tape = tape_with([[(3, 5), (3, 1), (3, 3)]] * 3, closes=closes)
    forms = {"reward": (-120.0, 75.0), "published": (-100 / 1.2, 75.0), "trajectory": (-100.0, 90.0)}
    for form, expected in forms.items():
        env = env_on(tape, risk_strength=0.1, risk_form=form, reward_scale=1.0)
        rewards = [env.advance(torch.tensor([[held, 0.0, 0.0]])) for held in (1.0, 0.0)]
        torch.testing.assert_close(torch.cat(rewards), torch.tensor(expected), msg=form)
    env = env_on(tape, risk_strength=0.0, reward_scale=1.0, params={"risk_strength": torch.tensor([0.1])})
    assert float(env.advance(torch.tensor([[1.0, 0.0, 0.0]]))) == pytest.approx(-120.0)


def test_the_risk_level_is_weighted_by_the_value_of_positions_short_ones_too():
    holdings, close = torch.tensor([100.0, -300.0, 0.0]), torch.tensor([10.0, 10.0, 50.0])
    worths = risk_worth(close, torch.tensor([5.0, 1.0, 5.0]))
    # A quarter at 1.2, three quarters at 0.8.
    for held, level in ((holdings, 0.9), (torch.zeros(3), 1.0)):
        told = risk_level(held, (held.abs() * close).sum(), worths, torch.tensor(0.1))
        assert float(told) == pytest.approx(level)
    # It does not depend on the order of the symbols, at a strength at which no bit of the sum is lost beside the 1.
    generator = torch.Generator().manual_seed(0)
    held = torch.randint(-1000, 1000, (500,), generator=generator).float()
    worths = risk_worth(held.abs() * 7 + 100, 1 + 4 * torch.rand(500, generator=generator))
    orders = torch.arange(500), torch.randperm(500, generator=generator)
    levels = [risk_level(held[order], torch.tensor(3e9), worths[order], torch.tensor(1e3)) for order in orders]
    assert torch.equal(*levels)


def test_scores_shown_are_those_of_the_day_of_the_decision():
    tape = tape_with([[(1, 2)], [(4, 5)], [(2.5, 3)]], known=[[[True, True]], [[True, False]], [[True, True]]])
    env = env_on(tape, observed=("risk", "sentiment"), feature_scale=1.0)
    assert env.observations()[0, -4:].tolist() == [2.0, 1.0, 1.0, 1.0]
    env.advance(torch.zeros(1, 1))
    assert env.observations()[0, -4:].tolist() == [5.0, 0.0, 4.0, 1.0]
    assert env.scenario.item_features == ("risk", "risk_known", "sentiment", "sentiment_known", "weight")
    assert env.scenario.items(env.observations()).features[0, 0].tolist() == [5.0, 0.0, 4.0, 1.0, 0.0]
    # They are scaled, and hidden before a symbol can first trade: B on the second day; later gaps hide nothing.
    tape = tape_with([[(2, 5), (4, 1)]] * 4)
    tradable = tape.tradable.clone()
    tradable[0, 0, 1] = tradable[0, 2, 1] = False
    env = env_on(replace(tape, tradable=tradable), observed=("sentiment", "risk"), feature_scale=0.5)
    for shown in ([0.0] * 4, [2.0, 0.5, 0.5, 0.5], [2.0, 0.5, 0.5, 0.5]):
        assert env.observations()[0, -8:].tolist() == [1.0, 0.5, 2.5, 0.5, *shown]
        env.advance(torch.zeros(1, 2))


def test_settings_out_of_range_and_markets_without_scores_are_refused():
    tape = tape_with([[(3, 4), (3, 2)]] * 4)
    for name, value in product(("sentiment_strength", "risk_strength"), (0.5, -0.1, float("nan"))):
        with pytest.raises(ValueError, match=f"{name} must be in "):
            SignalsConfig(**{name: value})
        with pytest.raises(ValueError, match=f"{name}'? must be (in|numbers)"):
            env_on(tape, params={name: torch.tensor([value])})
    with pytest.raises(ValueError, match="observed must be different"):
        SignalsConfig(observed=("risk", "risk"))
    with pytest.raises(ValueError, match="no scores"):
        vecenv.make("signals", 1, market="synthetic", market_options={"num_paths": 1, "num_days": 300})
    assert SignalsConfig().inapplicable()["risk_form"] == "a risk_strength above 0"
    assert "risk_form" not in SignalsConfig(risk_strength=0.1).inapplicable()
    # Trajectories are not weighed by a risk that is in the rewards.
    assert not SignalsConfig(risk_strength=0.0, risk_form="trajectory").weighs_trajectories
    for form, strength, free in (("reward", 0.0, 1), ("reward", 0.1, 0), ("published", 0.1, 0), ("trajectory", 0.1, 1)):
        env = env_on(tape, risk_form=form, risk_strength=strength)
        assert env.scenario.has_risk_level == bool(free)
        assert env.scenario.config.weighs_trajectories == (form == "trajectory")
        if free:
            check_risk_levels(env)
            continue
        with pytest.raises(ValueError, match="does not have, or has in its rewards already"):
            check_risk_levels(env)


@pytest.mark.parametrize(
    ("action", "compiled"), [("weights", False), pytest.param("tilt", True, marks=pytest.mark.nightly)]
)
def test_the_task_conforms(action, compiled):
    form = "trajectory" if action == "weights" else "reward"
    rules = {"sentiment_strength": 0.1, "risk_strength": 0.05, "risk_form": form, "observed": ("sentiment", "risk")}
    market = {"market": "news", "market_options": {"num_paths": 2, "num_days": 40, "symbols": 3}}
    options = {"features": ("daily_change",), "episode_length": 8, "action": action}
    check_task("signals", steps=4, compiled=compiled, **market, **options, **rules)


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
        rules = SignalRules(gate=self.gate, **spelled)
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
