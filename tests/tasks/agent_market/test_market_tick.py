"""The tick beside lists written from the rules: every field of state and report of random markets, at every tick."""

from __future__ import annotations

from random import Random

import pytest
import torch

from tests.tasks.agent_market.market_comparison import (
    FORMS,
    Tick,
    batched,
    message_of,
    native,
    play,
    same,
)
from tests.tasks.agent_market.random_markets_of_agents import markets_of, random_config
from vecenv.kernels.order_book.messages import Status
from vecenv.tasks.agent_market.background import CLASSES, MAX_LATENCY
from vecenv.tasks.agent_market.market import Layout
from vecenv.tasks.agent_market.tick import ticked

LAYOUTS = {
    # Seats, makers, value, momentum and noise traders, slots, levels, room.
    "all classes": Layout(2, 2, 9, 4, 40, 5, 3, 8),
    "a wide book": Layout(2, 2, 30, 6, 200, 8, 10, 64),
    "a ladder longer than a side": Layout(1, 2, 5, 2, 10, 2, 12, 8),
    "one of each": Layout(1, 1, 1, 1, 1, 1, 1, 4),
    "no makers": Layout(1, 0, 6, 3, 30, 3, 1, 4),
    "no noise traders": Layout(2, 1, 7, 2, 0, 4, 2, 6),
    "makers alone": Layout(1, 3, 0, 0, 0, 2, 4, 16),
    "noise traders alone": Layout(2, 0, 0, 0, 50, 3, 1, 5),
}

OF_SEATS = {f"seat {status.name}" for status in Status} | {"prevented of a seat", "empty side", "evicted by a message"}
"""What happens in every layout with a small book."""
OF_ALL = {"requotes", "requote without a spread", "quotes above the least", "price brought into range"}
OF_ALL |= {"value mispriced", "value inside", "value aggressive", "value without a spread", "noise does nothing"}
OF_ALL |= {"momentum buys", "momentum sells", "momentum does nothing", "good news", "bad news", "news ended"}
SELDOM = {"far fundamental", "fundamental at its end", "volatility at its end", "shock", "news at the end of news"}
SELDOM |= {"evicted by a requote", "asks of nothing", "spread too wide", "too wide to take"}
SELDOM |= {f"{name} latency {ticks}" for name in CLASSES for ticks in range(MAX_LATENCY + 1)}
CROWDED = {"unplaced", "makers wait", "backlog carried"}
EXPECTED = {
    "all classes": OF_ALL | CROWDED,
    "a wide book": OF_ALL,
    "a ladder longer than a side": CROWDED | {"evicted by a requote"},
    "one of each": {"makers wait", "backlog carried"},
    "no makers": {"value messages", "momentum messages", "noise messages"},
    "no noise traders": {"value messages", "momentum messages"},
    "makers alone": {"requotes", "unplaced", "makers wait"},
    "noise traders alone": {"noise messages", "noise does nothing"},
}


def play_random(forms: list[Tick], name: str, count: int, ticks: int, seed: int) -> set[str]:
    """Hold random markets of a layout to the lists; return what has happened in them."""
    random, layout = Random(seed), LAYOUTS[name]
    configs = [random_config(random, layout) for _ in range(count)]
    seen = play(forms, markets_of(configs, layout.seats, seed=2**40 + seed), ticks, messages=3, seed=seed)
    assert EXPECTED[name] - (+seen).keys() == set()
    return set((+seen).keys())


@pytest.mark.parametrize(
    "name", ["all classes", "a ladder longer than a side", "one of each", "makers alone", "no noise traders"]
)
def test_some_random_markets_do_what_the_lists_do(name):
    whole = name == "all classes"
    play_random(FORMS, name, count=40 if whole else 24, ticks=20 if whole else 8, seed=4)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.assembly
def test_random_markets_do_what_the_lists_do(name):
    if name == "all classes":
        assert play_random(FORMS, name, count=160, ticks=24, seed=1) >= OF_SEATS | SELDOM
    else:
        seen = play_random(FORMS, name, count=40, ticks=16, seed=2)
        assert name in ("a wide book", "makers alone") or seen >= OF_SEATS


@pytest.mark.nightly
@pytest.mark.parametrize("name", LAYOUTS)
def test_long_random_markets_do_what_the_lists_do(name):
    # In C++ alone: minutes less, and the other tests hold it to PyTorch.
    seen = play_random([native], name, count=48, ticks=128, seed=3)
    assert name != "all classes" or seen >= OF_SEATS


def test_rules_that_all_markets_share_are_read_once():
    """In C++ too, which goes on to the next market's otherwise."""
    layout = LAYOUTS["all classes"]
    markets = markets_of([random_config(Random(7), layout)] * 5, layout.seats, seed=7)
    rules = markets.rules._replace(numbers=markets.rules.numbers[0], arrivals=markets.rules.arrivals[0])
    sent = message_of([[(0, 0, 1, 1, 0, -1)]] * 5)
    expected = batched(ticked, markets, markets.state, sent)
    for form in FORMS:
        told = torch.vmap(lambda one, words, form=form: form(one, words, rules, layout))(markets.state, sent)
        assert same(told, expected)
