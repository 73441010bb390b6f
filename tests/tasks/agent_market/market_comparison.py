"""A tick of many markets beside the lists: every field of the state and of the report, at every tick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.tasks.agent_market.market_oracle import Words
from tests.tasks.agent_market.random_markets_of_agents import ROWS, Markets, seat_order
from vecenv.kernels.order_book.messages import BUY, SELL, Message
from vecenv.tasks.agent_market.market import Layout, Market, Report, Rules
from vecenv.tasks.agent_market.native_tick import advanced_market, copied
from vecenv.tasks.agent_market.tick import ticked

Tick = Callable[[Market, Message, Rules, Layout], tuple[Market, Report]]
"""A form of the tick, of one market."""


def native(market: Market, orders: Message, rules: Rules, layout: Layout) -> tuple[Market, Report]:
    """The tick in C++, on a copy of the market, which it overwrites."""
    return advanced_market(copied(market), orders, rules, layout)


FORMS: list[Tick] = [ticked, native]
"""All forms of the tick; without a compiler both are PyTorch's."""

BOOK = ("key", "quantity", "owner", "id")
"""Fields that are compared as lists of orders."""


def batched(tick: Tick, markets: Markets, state: Market, orders: Message) -> tuple[Market, Report]:
    """A tick of all markets."""
    mapped = torch.vmap(lambda one, sent, rules: tick(one, sent, rules, markets.layout), in_dims=(0, 0, ROWS))
    return mapped(state, orders, markets.rules)


def message_of(orders: list[list[Words]]) -> Message:
    """Messages of the seats of each market, equally many. Shape of each: (N, J), int32."""
    return Message(*torch.tensor(orders, dtype=torch.int32).reshape(len(orders), -1, 6).unbind(-1))


def fields_of(state: Market) -> dict[str, Tensor]:
    return {name: getattr(state, name) for name in Market.__annotations__ if name != "batch_size"}


def states_of(state: Market) -> list[dict[str, Any]]:
    """Each market in the words of the oracle."""
    listed = {name: tensor.tolist() for name, tensor in fields_of(state).items()}
    book = [listed.pop(name) for name in BOOK]
    rows = [dict(zip(listed, values, strict=True)) for values in zip(*listed.values(), strict=True)]
    for number, row in enumerate(rows):
        row["orders"] = [
            [(abs(key), *told) for key, *told in zip(*(part[number][side] for part in book), strict=True) if told[0]]
            for side in (BUY, SELL)
        ]
    return rows


def reports_of(report: Report) -> list[dict[str, Any]]:
    columns = [column.tolist() for column in report]
    return [dict(zip(Report._fields, values, strict=True)) for values in zip(*columns, strict=True)]


def check_laws(state: Market) -> None:
    """Cash and shares add up to nothing, keys are sorted, and no book is crossed or locked."""
    assert not bool(state.cash.sum(-1).any()) and not bool(state.shares.sum(-1).any())
    assert bool((state.key[..., 1:] >= state.key[..., :-1]).all())
    best = torch.where(state.quantity > 0, state.key, 2**31 - 1).amin(-1).to(torch.int64)
    bid, ask = -best[..., BUY], best[..., SELL]
    assert bool((bid < ask).all())


def check_same(found: list[dict[str, Any]], expected: list[dict[str, Any]], when: object) -> None:
    """Every field of every market is the same, and none is missing."""
    for row, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.keys() == other.keys()
        assert {name: one[name] for name in one if one[name] != other[name]} == {
            name: other[name] for name in one if one[name] != other[name]
        }, (when, row)


def same(one: tuple[Market, Report], other: tuple[Market, Report]) -> bool:
    """Whether markets and reports are those of others bit for bit, holes of the books included."""
    pairs = [(tensor, fields_of(other[0])[name]) for name, tensor in fields_of(one[0]).items()]
    pairs += zip(one[1], other[1], strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def drawn_orders(random: Random, markets: Markets, messages: int) -> list[list[Words]]:
    """Messages of the seats of each market to the books of the oracles."""
    return [[seat_order(random, oracle) for _ in range(messages)] for oracle in markets.oracles]


def play(forms: list[Tick], markets: Markets, ticks: int, messages: int, seed: int) -> Counter[str]:
    """Hold ticks of all markets with random messages of their seats to the lists; return what has happened in them."""
    random, state, oracles = Random(seed), markets.state, markets.oracles
    check_same(states_of(state), [oracle.state() for oracle in oracles], "before the market opens")
    for number in range(ticks):
        orders = drawn_orders(random, markets, messages)
        before, sent = state, message_of(orders)
        state, report = batched(forms[0], markets, before, sent)
        assert all(same(batched(form, markets, before, sent), (state, report)) for form in forms[1:]), number
        check_laws(state)
        told = [oracle.tick(sent) for oracle, sent in zip(oracles, orders, strict=True)]
        check_same(reports_of(report), told, number)
        check_same(states_of(state), [oracle.state() for oracle in oracles], number)
    return sum((oracle.seen for oracle in oracles), Counter())
