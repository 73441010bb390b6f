"""What holds for any form of the tick: markets do not know each other, and nothing depends on how they are run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest
import torch

from tests.tasks.agent_market.market_comparison import Tick, batched, drawn_orders, fields_of, message_of
from tests.tasks.agent_market.random_markets_of_agents import Markets, markets_of, random_config
from vecenv.kernels.order_book.messages import Message
from vecenv.tasks.agent_market.background import BackgroundConfig
from vecenv.tasks.agent_market.market import Layout, Market, Report
from vecenv.tasks.agent_market.tick import ticked

LAYOUT = Layout(2, 2, 9, 4, 40, 5, 3, 8)
TICKS, COUNT = 10, 12

Ran = tuple[dict[str, torch.Tensor], Report]


class Day(NamedTuple):
    """Random markets, and what their seats send at each tick. Shape of the messages: (N, 3)."""

    markets: Markets
    sent: list[Message]


def random_day() -> Day:
    random = Random(4)
    markets = markets_of([random_config(random, LAYOUT) for _ in range(COUNT)], LAYOUT.seats, seed=9)
    sent = []
    for _ in range(TICKS):
        orders = drawn_orders(random, markets, 3)
        for oracle, words in zip(markets.oracles, orders, strict=True):
            oracle.tick(words)
        sent.append(message_of(orders))
    return Day(markets, sent)


def run(tick: Tick, markets: Markets, sent: Iterable[Message]) -> list[Ran]:
    """States and reports after each tick."""
    state, ran = markets.state, []
    for orders in sent:
        state, report = batched(tick, markets, state, orders)
        ran.append((fields_of(state), report))
    return ran


def rows_of(day: Day, rows: list[int]) -> Day:
    """Some markets of a day, in an order."""
    markets, chosen = day.markets, torch.tensor(rows)
    rules = markets.rules._replace(numbers=markets.rules.numbers[chosen], arrivals=markets.rules.arrivals[chosen])
    some = Markets(markets.layout, markets.state[chosen], rules, [markets.oracles[row] for row in rows])
    return Day(some, [Message(*(words[chosen] for words in orders)) for orders in day.sent])


def same(one: Ran, other: Ran, rows: list[int] | slice = slice(None)) -> bool:
    """Whether all fields of a run are those of some rows of another."""
    states = all(torch.equal(one[0][name], other[0][name][rows]) for name in one[0])
    return states and all(torch.equal(a, b[rows]) for a, b in zip(one[1], other[1], strict=True))


@pytest.mark.assembly
def test_a_market_is_the_same_alone_among_others_and_in_another_order():
    day = random_day()
    among = run(ticked, *day)
    for rows in ([5], list(reversed(range(COUNT))), [7, 2, 2]):
        some = run(ticked, *rows_of(day, rows))
        assert all(same(one, other, rows) for one, other in zip(some, among, strict=True))


@pytest.mark.assembly
def test_a_market_is_the_same_without_a_batch():
    day, row = random_day(), 3
    state: Market = day.markets.state[row]
    rules = day.markets.rules._replace(numbers=day.markets.rules.numbers[row], arrivals=day.markets.rules.arrivals[row])
    for (fields, reports), orders in zip(run(ticked, *day), day.sent, strict=True):
        state, report = ticked(state, Message(*(words[row] for words in orders)), rules, LAYOUT)
        assert all(torch.equal(tensor, fields[name][row]) for name, tensor in fields_of(state).items())
        assert all(torch.equal(one, column[row]) for one, column in zip(report, reports, strict=True))


@pytest.mark.assembly
def test_two_equal_runs_are_equal_and_nothing_given_is_written():
    day = random_day()
    before = [tensor.clone() for tensor in (*fields_of(day.markets.state).values(), *day.sent[0], *day.markets.rules)]
    first, second = run(ticked, *day), run(ticked, *day)
    assert all(same(one, other) for one, other in zip(first, second, strict=True))
    after = (*fields_of(day.markets.state).values(), *day.sent[0], *day.markets.rules)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def calm(slots: int, seed: int) -> list[Ran]:
    """Ticks of markets in which few traders wake."""
    layout = replace(LAYOUT, slots=slots)
    config = BackgroundConfig(
        room=layout.room,
        slots=slots,
        levels=layout.levels,
        num_makers=layout.makers,
        num_value=layout.value,
        num_momentum=layout.momentum,
        num_noise=layout.noise,
        maker_seconds=5.0,
        value_seconds=30.0,
        momentum_seconds=20.0,
        session_seconds=400.0,
    )
    markets = markets_of([config] * COUNT, layout.seats, seed)
    nothing = Message(*(torch.zeros(COUNT, 1, dtype=torch.int32) for _ in Message._fields))
    return run(ticked, markets, [nothing] * 20)


@pytest.mark.assembly
def test_more_slots_than_are_needed_change_nothing():
    few, many = calm(4, seed=1), calm(6, seed=1)
    carried = few[-1][0]["counts"][:, -1]
    assert not bool(carried.any()) and int(few[-1][0]["counts"][:, 0].sum()) > 5 * COUNT
    assert all(same(one, other) for one, other in zip(few, many, strict=True))


@pytest.mark.assembly
def test_other_seeds_give_other_markets():
    one, other = calm(4, seed=1)[-1][0], calm(4, seed=2)[-1][0]
    for name in ("fundamental", "noise_wakes", "cash", "samples"):
        assert bool((one[name] != other[name]).reshape(COUNT, -1).any(-1).all()), name
    rows = {tuple(row) for row in one["samples"].tolist()}
    assert len(rows) == COUNT
