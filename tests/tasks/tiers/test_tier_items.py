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
from vecenv.tasks.tiers.config import TEN, THREE, TIERS, TWENTY_FIVE, TierConfig
from vecenv.tasks.tiers.curriculum_config import CurriculumConfig
from vecenv.tasks.tiers.items import OWN_FEATURES, SHARED_FEATURES
from vecenv.tasks.tiers.limit_weights import LEAST_CASH
from vecenv.tasks.tiers.tasks import CURRICULUM, SINGLE_STOCK

NUM_ENVS = 4
BREADTH = [SHARED_FEATURES.index(name) for name in ("share_down", "mean_change")]


@cache
def bars() -> Bars:
    return replace(synthetic_bars(num_paths=2, num_days=330, symbols=10, seed=5), symbols=TEN)


def tier_env(tape: MarketTape, config: TierConfig) -> VecEnv:
    return VecEnv(SINGLE_STOCK.build(tape, replace(config, action="limit_weights", max_orders=2)), NUM_ENVS, 3, "cpu")


def tape_of(data: Bars, tick_size: float = 0.01, context: tuple[str, ...] = ()) -> MarketTape:
    return MarketTape.from_bars(data, TIER_FEATURES, context, tick_size)


def after_days(env: VecEnv, days: int = 3) -> Items:
    """Play tilts that differ by symbol, and return the items."""
    action = torch.linspace(-1.0, 1.0, env.action_spec.shape[-1]).expand(NUM_ENVS, -1).contiguous()
    for _ in range(days):
        env.advance(action, eager=True)
    return env.scenario.items(env.observations())


def column(items: Items, env: VecEnv, name: str) -> torch.Tensor:
    return items.features[..., env.scenario.item_features.index(name)]


def test_symbols_show_their_position_and_the_account_its_room():
    rules = replace(TIERS["multi_stock_3"], symbols=TEN[:4])
    series = torch.linspace(10.0, 30.0, bars().ohlcv.shape[1], dtype=torch.float64)
    told = replace(bars(), context={"vix": series.expand(2, -1)})
    env = tier_env(tape_of(told, context=("vix",)), replace(rules, context=("vix",)))
    items = after_days(env)
    state, info = env.state, env.info()
    torch.testing.assert_close(items.shared[:, -1], series[state.day].float())
    assert items.shared.shape == (NUM_ENVS, len(SHARED_FEATURES) + 1)
    tape = env.scenario.tape
    price = tape.ohlcv[state.path, state.day][..., 3].double()
    share = state.holdings * price / info["portfolio_value"].unsqueeze(-1)
    # Within 60% of the account, four symbols aim at 15% each, less what stays in cash.
    expected = {
        "weight": share / ((1.0 - LEAST_CASH) * 0.6 / 4),
        "of_limit": share / 0.5,
        "profit": torch.where(state.holdings > 0, price / (state.average_price * tape.tick_size) - 1.0, 0.0),
        "held": state.days_held / 25,
        "tradable": torch.ones_like(share),
    }
    assert env.scenario.item_features == (*TIER_FEATURES, *OWN_FEATURES) and set(expected) == set(OWN_FEATURES)
    for name, values in expected.items():
        torch.testing.assert_close(column(items, env, name), values.float(), rtol=1e-4, atol=1e-5)
    assert float(share.max() / share.min()) > 2 and float(column(items, env, "profit").abs().max()) > 0
    told = dict(zip(SHARED_FEATURES, items.shared[:, :-1].double().unbind(-1), strict=True))
    torch.testing.assert_close(told["room"], 1 - share.sum(-1).double() / 0.6, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(told["elapsed"], torch.full((NUM_ENVS,), 3 / 25, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(told["cash"] + share.sum(-1), torch.ones_like(told["cash"]), rtol=1e-4, atol=0)


def test_items_know_neither_the_unit_of_prices_nor_the_size_of_the_account():
    dearer = replace(bars(), ohlcv=bars().ohlcv * torch.tensor([8.0, 8.0, 8.0, 8.0, 1.0], dtype=torch.float64))
    rules = replace(TIERS["portfolio"], symbols=TEN)
    plain = after_days(tier_env(tape_of(bars()), rules))
    scaled = after_days(tier_env(tape_of(dearer, 0.08), replace(rules, initial_cash=8 * rules.initial_cash)))
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


def test_a_tier_in_a_mixed_batch_shows_the_symbols_that_it_shows_alone():
    """The others show the mean, so that the mean over all symbols is the tier's own; the breadth is the market's."""
    wide = replace(synthetic_bars(num_paths=2, num_days=330, symbols=25, seed=5), symbols=TWENTY_FIVE)
    tape = tape_of(wide)
    alone = tier_env(tape, TIERS["multi_stock_3"])
    config = CurriculumConfig(action="limit_weights", max_orders=2)
    mixed = VecEnv(CURRICULUM.build(tape, config), NUM_ENVS, 3, "cpu", False)
    mixed.scenario.params["rule"].fill_(config.tiers.index("multi_stock_3"))
    mixed.reset()
    action = torch.tensor([[0.7, -0.4, 0.1, *[0.9] * 22, -0.3]] * NUM_ENVS)
    for _ in range(3):
        alone.advance(action[:, [0, 1, 2, 25]].contiguous(), eager=True)
        mixed.advance(action, eager=True)
    assert torch.equal(alone.state.day, mixed.state.day) and len(THREE) == 3
    own, padded = (env.scenario.items(env.observations()) for env in (alone, mixed))
    torch.testing.assert_close(padded.features[:, :3], own.features)
    mean = own.features.mean(1, keepdim=True)
    torch.testing.assert_close(padded.features[:, 3:], mean.expand(-1, 22, -1))
    torch.testing.assert_close(padded.features.mean(1), mean.squeeze(1), rtol=1e-5, atol=1e-5)
    others = [index for index in range(len(SHARED_FEATURES)) if index not in BREADTH]
    torch.testing.assert_close(padded.shared[:, others], own.shared[:, others])
