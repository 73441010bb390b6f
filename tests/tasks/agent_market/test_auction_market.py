"""A market whose orders an auction clears: random markets beside lists written from the rules, accounts, and tasks."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch

import vecenv
from tests.tasks.agent_market.auction_market_oracle import AuctionMarketOracle
from tests.tasks.agent_market.market_comparison import play
from tests.tasks.agent_market.random_markets_of_agents import markets_of, random_config
from vecenv.registry import task_named
from vecenv.tasks.agent_market.auction_tick import auctioned
from vecenv.tasks.agent_market.background import BackgroundConfig
from vecenv.tasks.agent_market.market import Layout
from vecenv.tasks.agent_market.orders import Order
from vecenv.testing import check_task

LAYOUTS = {
    # Seats, makers, value, momentum and noise traders, slots, levels, room, prices of an auction.
    "all classes": Layout(2, 2, 5, 3, 9, 0, 0, 1, 64),
    "few prices": Layout(1, 1, 3, 2, 4, 0, 0, 1, 7),
    "one price": Layout(2, 1, 2, 1, 3, 0, 0, 1, 1),
    "noise traders alone": Layout(1, 0, 0, 0, 12, 0, 0, 1, 32),
    "more than a stream holds": Layout(1, 0, 0, 0, 600, 0, 0, 1, 64),
}


HAPPENS = {"traded", "rejected", "meets its own", "a maker turns", "no rest on a side", "momentum buys"}
HAPPENS |= {"momentum sells", "shares are left over by rounding down", "volatility moved"}


@pytest.mark.parametrize(
    ("name", "count", "ticks"),
    [
        ("all classes", 30, 8),
        pytest.param("all classes", 120, 16, marks=pytest.mark.assembly),
        *((name, 3 if "stream" in name else 16, 5) for name in LAYOUTS if name != "all classes"),
    ],
)
def test_random_auctions_do_what_the_lists_do(name, count, ticks):
    random, layout = Random(1), LAYOUTS[name]
    configs = [random_config(random, layout) for _ in range(count)]
    markets = markets_of(configs, layout.seats, seed=2**33, oracle=AuctionMarketOracle)
    seen = +play([auctioned], markets, ticks, messages=4, seed=1)
    assert seen["traded"] and (name != "all classes" or seen.keys() >= HAPPENS)
    assert count < 120 or seen.keys() >= {"shock", "nothing is traded"}


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "seats"), [("agent_market", 2), ("execution", 1), ("market_making", 1)])
def test_tasks_on_auctions_conform(name, seats):
    check(name, compiled=False, ticks_per_step=6, seats=seats)


@pytest.mark.nightly
def test_a_compiled_auction_is_the_eager_one():
    check("agent_market", compiled=True)


def check(name: str, compiled: bool, **config) -> None:
    task = task_named(name)
    small = {"clearing": "auction", "max_ticks": 60, "num_noise": 40} | config
    check_task(replace(task, config=lambda: task.config(**small)), steps=4, compiled=compiled)


def test_a_market_order_is_filled_at_the_price_of_all():
    env = vecenv.make("agent_market", 2, seed=5, clearing="auction", max_ticks=60, warm_up_ticks=0, compile=False)
    before = env.state.cash.clone()
    none = [0, 1, 0]
    env.advance(torch.tensor([[[Order.BUY, 1, 90], none, none, none], [[Order.SELL, 1, 70], none, none, none]]))
    assert env.state.shares.tolist() == [90, -70]
    assert (before - env.state.cash).mul(2).tolist() == (env.state.shares * env.state.doubled_mid).tolist()
    assert env.state.market.key.shape == (2, 2, 1), "a market without a book has room for one"
    # All 1,116 agents of the background, and the seat, at each of 66 ticks but for the seat's of the warm-up.
    assert env.state.counts[:, 0].tolist() == [66 * 1_116 + 1] * 2 and (env.state.last_volume > 1_000).all()


def test_settings_of_the_other_way_of_clearing_are_without_effect():
    assert BackgroundConfig().inapplicable() == dict.fromkeys(("auction_levels", "auction_spread"), "clearing auction")
    names = BackgroundConfig(clearing="auction").inapplicable()
    assert {"room", "slots", "value_seconds"} <= names.keys() and set(names.values()) == {"clearing book"}
    with pytest.raises(ValueError, match="auction_levels must be at most 65,536, got 65,537"):
        BackgroundConfig(clearing="auction", auction_levels=2**16 + 1)
