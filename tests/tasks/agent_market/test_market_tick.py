"""Ticks of markets with books and auctions beside lists written from the rules, and the numbers of the rules."""

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from scipy.stats import poisson

import vecenv
from tests.tasks.agent_market.auction_market_oracle import AuctionMarketOracle
from tests.tasks.agent_market.market_comparison import FORMS, batched, markets_of, message_of, play, random_config, same
from vecenv.kernels.order_book.messages import Status
from vecenv.registry import task_named
from vecenv.tasks.agent_market.config import CLASSES, MAX_LATENCY, BackgroundConfig
from vecenv.tasks.agent_market.law import ticked
from vecenv.tasks.agent_market.market import Layout, layout_of
from vecenv.tasks.agent_market.orders import Order
from vecenv.tasks.agent_market.rules import (
    ARRIVALS,
    arrival_thresholds,
    background_parameters,
    growth_table,
    least_entries,
    normal_table,
    size_table,
)
from vecenv.testing import check_task

OF_ALL = {"requotes", "value mispriced", "value inside", "value aggressive", "noise does nothing", "good news"}
OF_ALL |= {"momentum buys", "momentum sells", "momentum does nothing", "bad news"}
# Seats, makers, value, momentum and noise traders, slots, levels, room; and what happens among other things.
LAYOUTS = {
    "all classes": (Layout(2, 2, 9, 4, 40, 5, 3, 8), OF_ALL | {"unplaced", "makers wait", "backlog carried"}),
    "a wide book": (Layout(2, 2, 30, 6, 200, 8, 10, 64), OF_ALL),
    "a ladder longer than a side": (Layout(1, 2, 5, 2, 10, 2, 12, 8), {"evicted by a requote", "unplaced"}),
    "one of each": (Layout(1, 1, 1, 1, 1, 1, 1, 4), {"makers wait", "backlog carried"}),
    "no makers": (Layout(1, 0, 6, 3, 30, 3, 1, 4), {"value messages", "momentum messages", "noise messages"}),
    "no noise traders": (Layout(2, 1, 7, 2, 0, 4, 2, 6), {"value messages", "momentum messages"}),
    "makers alone": (Layout(1, 3, 0, 0, 0, 2, 4, 16), {"requotes", "unplaced", "makers wait"}),
    "noise traders alone": (Layout(2, 0, 0, 0, 50, 3, 1, 5), {"noise messages", "noise does nothing"}),
}
SOME = ("all classes", "a ladder longer than a side", "one of each", "makers alone", "no noise traders")
OF_SEATS = {f"seat {status.name}" for status in Status} | {"prevented of a seat", "empty side", "evicted by a message"}
"""What happens in every layout with a small book."""
SELDOM = {"fundamental at its end", "shock", "evicted by a requote", "spread too wide"}
SELDOM |= {f"{name} latency {ticks}" for name in CLASSES for ticks in range(MAX_LATENCY + 1)}


def play_random(name: str, count: int, ticks: int, seed: int, native_alone: bool = False) -> set[str]:
    """Hold random markets of a layout to the lists; return what has happened in them."""
    random, (layout, expected) = Random(seed), LAYOUTS[name]
    configs = [random_config(random, layout) for _ in range(count)]
    forms = FORMS[1:] if native_alone else FORMS
    seen = play(forms, markets_of(configs, layout.seats, seed=2**40 + seed), ticks, messages=3, seed=seed)
    assert expected - (+seen).keys() == set()
    return set((+seen).keys())


@pytest.mark.parametrize("name", SOME)
def test_some_random_markets_do_what_the_lists_do(name):
    whole = name == "all classes"
    play_random(name, count=40 if whole else 24, ticks=20 if whole else 8, seed=4)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.assembly
def test_random_markets_do_what_the_lists_do(name):
    if name == "all classes":
        assert play_random(name, count=160, ticks=24, seed=1) >= OF_SEATS | SELDOM
    else:
        seen = play_random(name, count=40, ticks=16, seed=2)
        assert name in ("a wide book", "makers alone") or seen >= OF_SEATS


@pytest.mark.nightly
@pytest.mark.parametrize("name", LAYOUTS)
def test_long_random_markets_do_what_the_lists_do(name):
    # In C++ alone: minutes less, and the other tests hold it to PyTorch.
    seen = play_random(name, count=48, ticks=128, seed=3, native_alone=True)
    assert name != "all classes" or seen >= OF_SEATS


def test_rules_that_all_markets_share_are_read_once():
    """In C++ too, which goes on to the next market's otherwise."""
    layout, _ = LAYOUTS["all classes"]
    markets = markets_of([random_config(Random(7), layout)] * 5, layout.seats, seed=7)
    rules = markets.rules._replace(numbers=markets.rules.numbers[0], arrivals=markets.rules.arrivals[0])
    sent = message_of([[(0, 0, 1, 1, 0, -1)]] * 5)
    expected = batched(ticked, markets, markets.state, sent)
    for form in FORMS:
        told = torch.vmap(lambda one, words, form=form: form(one, words, rules, layout))(markets.state, sent)
        assert same(told, expected)


DEFAULT = {
    "session_ticks": 23_400, "mean_price": 100_000, "reversion": 45, "volatility": 103_547,
    "log_volatility_spread": 0, "log_volatility_noise": 0, "log_volatility_reversion": 298_096,
    "shock_chance": 12, "shock_mean": 1_000, "shock_spread": 224, "news_chance": 2_385_430, "news_magnitude": 60,
    "news_duration": 120, "level_spacing": 1, "first_spread": 10, "spread_alpha": 192, "share_of_volume": 1_638,
    "min_quote": 50, "price_skew": 4, "volume_ticks": 60, "observation_noise": 2_072_248,
    "aggressive_chance": 429_496_730, "depth_spread": 2, "momentum_every": 1, "maker_latency": 0, "value_latency": 0,
    "momentum_latency": 0, "noise_latency": 0, "fair_noise": 30, "candle_ticks": 1, "max_spread": 100,
    "take_spread": 20, "auction_spread": 10,
}  # fmt: skip
OTHER = {
    "tick_seconds": 0.5, "reversion": 0.1, "volatility": 2.0, "volatility_spread": 0.5, "volatility_seconds": 10.0,
    "shock_rate": 0.2, "news_rate": 0.4, "session_seconds": 100.0, "news_seconds": 7.0, "volume_seconds": 9.0,
    "num_makers": 3, "maker_seconds": 3.0, "num_value": 8, "value_seconds": 2.0, "num_momentum": 6,
    "momentum_seconds": 3.0,
}  # fmt: skip
# 2^28 (1 - e^-0.05), 2 e^-1/4 / sqrt 2, 2^20 / 2 sqrt(1 - e^-0.1), 2^32 (1 - e^-0.1) and (1 - e^-0.2).
OF_OTHER = DEFAULT | {
    "reversion": 13_091_752, "volatility": 72_181, "log_volatility_spread": 2**19, "log_volatility_noise": 161_735,
    "log_volatility_reversion": 13_091_752, "shock_chance": 408_720_177, "news_chance": 778_545_487,
    "session_ticks": 200, "news_duration": 14, "volume_ticks": 18,
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "numbers", "rates"),
    [({}, DEFAULT, (2 / 60, 102 / 175.4, 12 / 37)), (OTHER, OF_OTHER, (0.5, 2.0, 1.0))],
)
def test_numbers_and_tables_are_these(settings, numbers, rates):
    parameters = background_parameters(BackgroundConfig(**settings))
    tables = [parameters.pop(name) for name in ARRIVALS]
    assert {name: int(value) for name, value in parameters.items()} == numbers
    for table, rate in zip(tables, rates, strict=True):
        assert torch.equal(table, arrival_thresholds(rate, len(table)))
    # As many entries as the busiest class needs, the last of which a word reaches once in 2^32 at most.
    assert int(tables[1][-1]) >= 2**32 - 1 > int(tables[1][-2]) and least_entries(max(rates)) == len(tables[1])
    for rate in (0.0, 1 / 30, 0.58, 3.0, 40.0):
        expected = torch.from_numpy(poisson.cdf(range(60), rate)).float()
        assert torch.allclose(arrival_thresholds(rate, 60) / 2**32, expected, atol=2**-31)
    normal, sizes, growth = normal_table(), size_table(128), growth_table()
    assert normal[[0, 2_047, 2_048, 4_095]].tolist() == [-240_446, -20, 20, 240_446]
    assert float(normal.double().square().mean()) == pytest.approx(2**32, rel=1e-6)
    # A fifth of the orders is lognormal; the others are round lots.
    assert sizes[[0, 100, 818, 819, 4_095]].tolist() == [1, 5, 784, 100, 1_000]
    assert [int((sizes == size).sum()) for size in (100, 200, 400, 900)] == [2_868, 247, 134, 1]
    assert int(size_table(2**22).max()) == 511, "sizes fit into a side"
    assert growth.tolist() == [round(math.exp(place / 64) * 2**16) for place in range(-512, 513)]


def test_shapes_and_settings_of_the_other_way_of_clearing():
    book, auction = BackgroundConfig(), BackgroundConfig(clearing="auction")
    assert layout_of(book, 1) == Layout(1, 2, 102, 12, 1_000, 6, 10, 128, 0)
    assert layout_of(auction, 3) == Layout(3, 2, 102, 12, 1_000, 0, 0, 1, 256)
    assert book.num_owners(3) == layout_of(book, 3).owners == 1_119 and book.price_tick == 0.01
    assert book.inapplicable() == dict.fromkeys(("auction_levels", "auction_spread"), "clearing auction")
    names = auction.inapplicable()
    assert {"room", "slots", "value_seconds"} <= names.keys() and set(names.values()) == {"clearing book"}
    with pytest.raises(ValueError, match=r"auction_levels must be in \[1, 65,536\], got 65537"):
        BackgroundConfig(clearing="auction", auction_levels=2**16 + 1)


AUCTIONS = {
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
        *((name, 3 if "stream" in name else 16, 5) for name in AUCTIONS if name != "all classes"),
    ],
)
def test_random_auctions_do_what_the_lists_do(name, count, ticks):
    random, layout = Random(1), AUCTIONS[name]
    configs = [random_config(random, layout) for _ in range(count)]
    markets = markets_of(configs, layout.seats, seed=2**33, oracle=AuctionMarketOracle)
    seen = +play([ticked], markets, ticks, messages=4, seed=1)
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
