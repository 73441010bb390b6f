"""Observations of the tiers split into symbols: what they hold, what they do not know, and policies on them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Items
from vecenv.market.bars import Bars
from vecenv.market.state_indicators import TIER_FEATURES
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import TEN, TIERS, TWENTY_FIVE, TierConfig
from vecenv.tasks.tiers.curriculum_config import CurriculumConfig
from vecenv.tasks.tiers.items import OWN_FEATURES, SHARED_FEATURES
from vecenv.tasks.tiers.tasks import CURRICULUM, SINGLE_STOCK

NUM_ENVS = 4


@cache
def bars(symbols: tuple[str, ...] = TEN) -> Bars:
    return replace(synthetic_bars(num_paths=2, num_days=330, symbols=len(symbols), seed=5), symbols=symbols)


def tier_env(data: Bars, config: TierConfig, tick_size: float = 0.01) -> VecEnv:
    tape = MarketTape.from_bars(data, TIER_FEATURES, config.context, tick_size)
    return VecEnv(SINGLE_STOCK.build(tape, replace(config, action="limit_weights", max_orders=2)), NUM_ENVS, 3, "cpu")


def after_days(env: VecEnv, action: torch.Tensor | None = None) -> Items:
    """Play three days, by default tilts that differ by symbol, and return the items."""
    tilts = torch.linspace(-1.0, 1.0, env.action_spec.shape[-1]) if action is None else action
    for _ in range(3):
        env.advance(tilts.expand(NUM_ENVS, -1).contiguous(), eager=True)
    return env.scenario.items(env.observations())


def test_symbols_show_their_position_and_the_account_its_room():
    series = torch.linspace(10.0, 30.0, bars().ohlcv.shape[1], dtype=torch.float64)
    rules = replace(TIERS["multi_stock_3"], symbols=TEN[:4], context=("vix",))
    env = tier_env(replace(bars(), context={"vix": series.expand(2, -1)}), rules)
    items = after_days(env)
    state, tape = env.state, env.scenario.tape
    price = tape.ohlcv[state.path, state.day][..., 3].double()
    share = state.holdings * price / env.info()["portfolio_value"].unsqueeze(-1)
    # Within 60% of the account, four symbols aim at 15% each, less the 2% that stays in cash.
    expected = {
        "tradable": torch.ones_like(share),
        "weight": share / (0.98 * 0.6 / 4),
        "of_limit": share / 0.5,
        "profit": torch.where(state.holdings > 0, price / (state.average_price * tape.tick_size) - 1.0, 0.0),
        "held": state.days_held / 25,
    }
    assert env.scenario.item_features == (*TIER_FEATURES, *expected) and tuple(expected) == OWN_FEATURES
    own = torch.stack([values.float() for values in expected.values()], -1)
    torch.testing.assert_close(items.features[..., len(TIER_FEATURES) :], own, rtol=1e-4, atol=1e-5)
    assert float(share.max() / share.min()) > 2 and float(expected["profit"].abs().max()) > 0
    told = dict(zip((*SHARED_FEATURES, "vix"), items.shared.double().unbind(-1), strict=True))
    for name, values in {
        "vix": series[state.day],
        "room": 1 - share.sum(-1) / 0.6,
        "elapsed": torch.full((NUM_ENVS,), 3 / 25),
        "cash": 1 - share.sum(-1),
    }.items():
        torch.testing.assert_close(told[name], values.double(), rtol=1e-4, atol=1e-5)


def test_items_know_neither_the_unit_of_prices_nor_the_size_of_the_account():
    dearer = replace(bars(), ohlcv=bars().ohlcv * torch.tensor([8.0, 8.0, 8.0, 8.0, 1.0], dtype=torch.float64))
    rules = replace(TIERS["portfolio"], symbols=TEN)
    plain = after_days(tier_env(bars(), rules))
    scaled = after_days(tier_env(dearer, replace(rules, initial_cash=8 * rules.initial_cash), 0.08))
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


def test_a_tier_in_a_mixed_batch_shows_the_symbols_that_it_shows_alone():
    """The others show the mean, so that the mean over all symbols is the tier's own; the breadth is the market's."""
    alone = tier_env(bars(TWENTY_FIVE), TIERS["multi_stock_3"])
    config = CurriculumConfig(action="limit_weights", max_orders=2)
    tape = MarketTape.from_bars(bars(TWENTY_FIVE), TIER_FEATURES, tick_size=0.01)
    mixed = VecEnv(CURRICULUM.build(tape, config), NUM_ENVS, 3, "cpu", False)
    mixed.scenario.params["rule"].fill_(config.tiers.index("multi_stock_3"))
    mixed.reset()
    own = after_days(alone, torch.tensor([0.7, -0.4, 0.1, -0.3]))
    padded = after_days(mixed, torch.tensor([0.7, -0.4, 0.1, *[0.9] * 22, -0.3]))
    assert torch.equal(alone.state.day, mixed.state.day)
    torch.testing.assert_close(padded.features[:, :3], own.features)
    mean = own.features.mean(1, keepdim=True)
    torch.testing.assert_close(padded.features[:, 3:], mean.expand(-1, 22, -1))
    others = [place for place, name in enumerate(SHARED_FEATURES) if name not in ("share_down", "mean_change")]
    torch.testing.assert_close(padded.shared[:, others], own.shared[:, others])
