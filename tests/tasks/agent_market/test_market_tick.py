"""The tick beside lists written from the rules: every field of state and report of random markets, at every tick."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.tasks.agent_market.market_comparison import FORMS, play
from tests.tasks.agent_market.random_markets_of_agents import markets_of, random_config
from vecenv.kernels.order_book.messages import Status
from vecenv.tasks.agent_market.background import CLASSES, MAX_LATENCY
from vecenv.tasks.agent_market.market import Layout

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

TRADERS = CLASSES[1:]
"""Classes that wait for a slot."""

OF_SEATS = {f"seat {status.name}" for status in Status} | {"prevented of a seat", "empty side", "evicted by a message"}
"""What happens in every layout with a small book."""

OF_FUNDAMENTALS = {"shock", "good news", "bad news", "news ended", "news at the end of news", "far fundamental"}
OF_FUNDAMENTALS |= {"fundamental at its end", "volatility moved", "volatility at its end"}

OF_MAKERS = {"requotes", "unplaced", "requote without a spread", "makers wait", "quotes above the least"}

OF_CANDLES = {"candle opened", "candle extended"}

OF_TRADERS = {
    "value mispriced",
    "backlog carried",
    "price brought into range",
    "value aggressive",
    "value inside",
    "momentum buys",
}
OF_TRADERS |= {"momentum sells", "momentum does nothing", "noise does nothing", "value without a spread"}
OF_TRADERS |= {f"{name} messages" for name in TRADERS}

EVERYTHING = OF_CANDLES | OF_SEATS | OF_FUNDAMENTALS | OF_MAKERS | OF_TRADERS
EVERYTHING |= {"evicted by a requote", "asks of nothing", "spread too wide", "too wide to take"}
EVERYTHING |= {f"{name} latency {ticks}" for name in CLASSES for ticks in range(MAX_LATENCY + 1)}


def played(form: str, name: str, count: int, ticks: int, seed: int) -> Counter[str]:
    """What has happened in random markets of a layout that have been held to the lists."""
    random, layout = Random(seed), LAYOUTS[name]
    configs = [random_config(random, layout) for _ in range(count)]
    return play(FORMS[form], markets_of(configs, layout.seats, seed=2**40 + seed), ticks, messages=3, seed=seed)


@pytest.mark.parametrize("form", FORMS)
def test_random_markets_of_all_classes_do_what_the_lists_do(form):
    seen = played(form, "all classes", count=160, ticks=24, seed=1)
    assert EVERYTHING - (+seen).keys() == set()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a wide book", OF_MAKERS | OF_TRADERS),
        ("a ladder longer than a side", OF_SEATS | {"evicted by a requote", "unplaced", "makers wait"}),
        ("one of each", OF_SEATS | {"evicted by a requote", "makers wait", "backlog carried"}),
        ("no makers", OF_SEATS | {f"{trader} messages" for trader in TRADERS} | {"backlog carried"}),
        ("no noise traders", OF_SEATS | {"value messages", "momentum messages", "evicted by a requote"}),
        ("makers alone", {"requotes", "prevented of a seat", "unplaced", "makers wait"}),
        ("noise traders alone", OF_SEATS | {"noise messages", "noise does nothing", "backlog carried"}),
    ],
)
@pytest.mark.assembly
def test_random_markets_of_other_layouts_do_what_the_lists_do(form, name, expected):
    seen = played(form, name, count=40, ticks=16, seed=2)
    assert expected - (+seen).keys() == set()


@pytest.mark.nightly
@pytest.mark.parametrize("name", LAYOUTS)
def test_long_random_markets_do_what_the_lists_do(name):
    # In C++ alone: minutes less, and the other tests hold it to PyTorch by the same lists.
    seen = played("c++", name, count=48, ticks=128, seed=3)
    if name == "all classes":
        assert (OF_CANDLES | OF_SEATS | OF_FUNDAMENTALS | OF_MAKERS | OF_TRADERS) - (+seen).keys() == set()
