"""The tick beside lists written from the rules: every field of state and report of random markets, at every tick."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import NamedTuple

import pytest
import torch

from tests.tasks.agent_market.market_comparison import (
    FORMS,
    Tick,
    batched,
    drawn_orders,
    fields_of,
    message_of,
    native,
    play,
    same,
)
from tests.tasks.agent_market.random_markets_of_agents import Markets, markets_of, random_config
from vecenv.kernels.order_book.messages import Message, Status
from vecenv.tasks.agent_market.background import CLASSES, MAX_LATENCY, BackgroundConfig
from vecenv.tasks.agent_market.market import Layout, Market, Report
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

TRADERS = {f"{name} messages" for name in CLASSES[1:]}
OF_SEATS = {f"seat {status.name}" for status in Status} | {"prevented of a seat", "empty side", "evicted by a message"}
"""What happens in every layout with a small book."""
OF_FUNDAMENTALS = {"shock", "good news", "bad news", "news ended", "news at the end of news", "far fundamental"}
OF_FUNDAMENTALS |= {"fundamental at its end", "volatility moved", "volatility at its end"}
OF_MAKERS = {"requotes", "unplaced", "requote without a spread", "makers wait", "quotes above the least"}
OF_TRADERS = TRADERS | {"value mispriced", "value inside", "value aggressive", "momentum buys", "momentum sells"}
OF_TRADERS |= {"momentum does nothing", "noise does nothing", "value without a spread", "backlog carried"}
OF_TRADERS |= {"price brought into range"}
USUAL = OF_SEATS | OF_FUNDAMENTALS | OF_MAKERS | OF_TRADERS | {"candle opened", "candle extended"}
RARE = {"evicted by a requote", "asks of nothing", "spread too wide", "too wide to take"}
RARE |= {f"{name} latency {ticks}" for name in CLASSES for ticks in range(MAX_LATENCY + 1)}


def played(forms: list[Tick], name: str, count: int, ticks: int, seed: int) -> set[str]:
    """What has happened in random markets of a layout that have been held to the lists."""
    random, layout = Random(seed), LAYOUTS[name]
    configs = [random_config(random, layout) for _ in range(count)]
    seen = play(forms, markets_of(configs, layout.seats, seed=2**40 + seed), ticks, messages=3, seed=seed)
    return set((+Counter(seen)).keys())


@pytest.mark.parametrize(
    ("name", "ticks", "expected"),
    [
        ("all classes", 20, (OF_SEATS | OF_MAKERS | OF_TRADERS) - {"seat NO_ROOM"}),
        ("a ladder longer than a side", 8, {"evicted by a requote", "unplaced", "makers wait", "seat NO_ROOM"}),
        ("one of each", 8, {"makers wait", "backlog carried"}),
        ("makers alone", 8, {"requotes", "unplaced", "makers wait"}),
        ("no noise traders", 8, {"value messages", "momentum messages"}),
    ],
)
def test_some_random_markets_do_what_the_lists_do(name, ticks, expected):
    assert expected - played(FORMS, name, count=40 if ticks == 20 else 24, ticks=ticks, seed=4) == set()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all classes", USUAL | RARE),
        ("a wide book", OF_MAKERS | OF_TRADERS),
        ("a ladder longer than a side", OF_SEATS | {"evicted by a requote", "unplaced", "makers wait"}),
        ("one of each", OF_SEATS | {"evicted by a requote", "makers wait", "backlog carried"}),
        ("no makers", OF_SEATS | TRADERS | {"backlog carried"}),
        ("no noise traders", OF_SEATS | {"value messages", "momentum messages", "evicted by a requote"}),
        ("makers alone", {"requotes", "prevented of a seat", "unplaced", "makers wait"}),
        ("noise traders alone", OF_SEATS | {"noise messages", "noise does nothing", "backlog carried"}),
    ],
)
@pytest.mark.assembly
def test_random_markets_do_what_the_lists_do(name, expected):
    usual = name != "all classes"
    seen = played(FORMS, name, count=40 if usual else 160, ticks=16 if usual else 24, seed=2 if usual else 1)
    assert expected - seen == set()


@pytest.mark.nightly
@pytest.mark.parametrize("name", LAYOUTS)
def test_long_random_markets_do_what_the_lists_do(name):
    # In C++ alone: minutes less, and the other tests hold it to PyTorch.
    seen = played([native], name, count=48, ticks=128, seed=3)
    assert name != "all classes" or seen >= USUAL


class Day(NamedTuple):
    """Random markets, and what their seats send at each tick. Shape of the messages: (N, 3)."""

    markets: Markets
    sent: list[Message]

    def rows(self, rows: list[int]) -> Day:
        """Some markets, in an order."""
        markets, chosen = self.markets, torch.tensor(rows)
        rules = markets.rules._replace(numbers=markets.rules.numbers[chosen], arrivals=markets.rules.arrivals[chosen])
        some = Markets(markets.layout, markets.state[chosen], rules, [])
        return Day(some, [Message(*(words[chosen] for words in orders)) for orders in self.sent])

    def run(self) -> list[tuple[Market, Report]]:
        """States and reports after each tick."""
        state, ran = self.markets.state, []
        for orders in self.sent:
            ran.append(batched(ticked, self.markets, state, orders))
            state = ran[-1][0]
        return ran


@pytest.fixture(scope="module")
def day() -> Day:
    random, layout = Random(4), LAYOUTS["all classes"]
    markets = markets_of([random_config(random, layout) for _ in range(8)], layout.seats, seed=9)
    sent = []
    for _ in range(5):
        orders = drawn_orders(random, markets, 3)
        for oracle, words in zip(markets.oracles, orders, strict=True):
            oracle.tick(words)
        sent.append(message_of(orders))
    return Day(markets, sent)


def test_a_market_is_the_same_alone_among_others_in_another_order_and_without_a_batch(day):
    given = (*fields_of(day.markets.state).values(), *day.sent[0], *day.markets.rules)
    before = [tensor.clone() for tensor in given]
    among = day.run()
    assert all(torch.equal(one, other) for one, other in zip(before, given, strict=True)), "nothing given is written"
    for rows in ([5], [7, 2, 2, 0]):
        assert all(same(one, other, rows) for one, other in zip(day.rows(rows).run(), among, strict=True))
    state, rules = day.markets.state[3], day.rows([3]).markets.rules
    rules = rules._replace(numbers=rules.numbers[0], arrivals=rules.arrivals[0])
    for (fields, reports), orders in zip(among, day.sent, strict=True):
        state, report = ticked(state, Message(*(words[3] for words in orders)), rules, day.markets.layout)
        assert all(torch.equal(tensor, fields_of(fields)[name][3]) for name, tensor in fields_of(state).items())
        assert all(torch.equal(one, column[3]) for one, column in zip(report, reports, strict=True))


def calm(slots: int, seed: int) -> list[tuple[Market, Report]]:
    """Ticks of markets in which few traders wake."""
    config = BackgroundConfig(
        room=8, slots=slots, levels=3, num_value=9, num_momentum=4, num_noise=40,
        maker_seconds=5.0, value_seconds=30.0, momentum_seconds=20.0, session_seconds=400.0,
    )  # fmt: skip
    nothing = Message(*(torch.zeros(6, 1, dtype=torch.int32) for _ in Message._fields))
    return Day(markets_of([config] * 6, 2, seed), [nothing] * 12).run()


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


def test_more_slots_than_are_needed_change_nothing_and_other_seeds_everything():
    few, many, other = calm(3, seed=1), calm(4, seed=1), calm(3, seed=2)
    counts = few[-1][0].counts
    assert not bool(counts[:, -1].any()) and int(counts[:, 0].sum()) > 18
    assert all(same(one, two) for one, two in zip(few, many, strict=True))
    for name in ("fundamental", "noise_wakes", "cash", "samples"):
        one, two = (ran[-1][0].get(name).reshape(6, -1) for ran in (few, other))
        assert bool((one != two).any(-1).all()) and len(torch.unique(one, dim=0)) == 6, name
