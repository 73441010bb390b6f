"""Lists of orders: the messages are those of the rules, limits hold, and actions are the lists they stand for."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
import torch

import vecenv
from vecenv.core.random_actions import random_action
from vecenv.kernels.order_book.messages import BUY, SELL, Kind
from vecenv.tasks.agent_market.orders import Order, order_messages

# The limit is reached within a few steps.
TRADING = {"max_position": 250, "order_size": 100, "max_ticks": 15}
TASKS = {
    "discrete": ("agent_market", {"action": "discrete", **TRADING}),
    "continuous": ("agent_market", {"action": "continuous", **TRADING}),
    "limit": ("agent_market", {"action": "limit", **TRADING}),
    "execution": ("execution", {"max_ticks": 40, "ticks_per_step": 4}),
    "market_making": ("market_making", {"max_inventory": 250, "quote_size": 100, "max_ticks": 75}),
}

SIDES = dict.fromkeys((Order.BUY, Order.BUY_LIMIT, Order.BID), BUY)
SIDES |= dict.fromkeys((Order.SELL, Order.SELL_LIMIT, Order.ASK), SELL)


@dataclass
class Own:
    """The seat's orders on a side: shares of all, and price, shares and id of the best."""

    quantity: int = 0
    price: int = 0
    size: int = 0
    id: int = -1


def told(orders: list[tuple[int, int, int]], own: list[Own], room: list[int]) -> list[tuple[int, ...]]:
    """Messages (kind, side, price, quantity, id) of a list of orders, from its rules; what is not read is None."""
    spent, waiting = [0, 0], [side.quantity for side in own]
    quoted, kept, sent = set(), True, []
    for kind, price, quantity in orders:
        quantity = min(max(quantity, 0), 2**31 - 1)
        if kind in (Order.NONE, Order.INVALID):
            sent.append((Kind.NOTHING,))
        elif kind == Order.CANCEL:
            waiting, kept = [0, 0], False
            sent.append((Kind.CANCEL_ALL,))
        elif kind not in SIDES:
            sent.append((None,))
        elif kind in (Order.BID, Order.ASK):
            side = SIDES[kind]
            mine = own[side]
            if side in quoted:
                sent.append((Kind.NOTHING,))
                continue
            quoted.add(side)
            there = kept and mine.quantity > 0
            waiting[side] -= mine.size if there else 0
            size = max(min(quantity, room[side] - spent[side] - waiting[side]), 0)
            spent[side] += size
            if size == 0:
                sent.append((Kind.CANCEL, None, None, None, mine.id) if there else (Kind.NOTHING,))
            elif there and mine.price == price and mine.size <= size:
                spent[side] -= size - mine.size
                sent.append((Kind.NOTHING,))
            elif there:
                sent.append((Kind.MODIFY, None, price, size, mine.id))
            else:
                sent.append((Kind.POST_ONLY, side, price, size, None))
        else:
            side = SIDES[kind]
            size = max(min(quantity, room[side] - spent[side] - waiting[side]), 0)
            spent[side] += size
            if quantity > 0 and size == 0:
                sent.append((Kind.NOTHING,))
            elif kind in (Order.BUY, Order.SELL):
                sent.append((Kind.MARKET, side, None, size, None))
            else:
                sent.append((Kind.LIMIT, side, price, size, None))
    return sent


def drawn_case(draw: random.Random) -> tuple[list[tuple[int, int, int]], list[Own], list[int]]:
    """A list of orders, own orders, and room that they fit into or, after a fill, do not."""
    own = []
    for _ in range(2):
        size = draw.choice([0, 0, 30, 100])
        more = draw.choice([0, 70]) if size else 0
        own.append(Own(size + more, draw.choice([99, 100, 101]), size, draw.randrange(50)) if size else Own())
    room = [draw.choice([0, 100, 250, 1_000]) + draw.choice([0, side.quantity]) for side in own]
    kinds = [*Order, *Order, 9, -1, 2**40]
    quantities = [-5, 0, 1, 30, 100, 300, 2**31, 2**62]
    orders = [
        (int(draw.choice(kinds)), draw.choice([-3, 0, 99, 100, 101, 2**30, 2**40]), draw.choice(quantities))
        for _ in range(5)
    ]
    return orders, own, room


def test_the_messages_are_those_of_the_rules():
    """All kinds, with orders in the book or none, full room or none, against plain Python."""
    draw, seen = random.Random(1), Counter()
    cases = [drawn_case(draw) for _ in range(2_000)]
    env = vecenv.make("agent_market", 1, compile=False)
    parts = [[[side.quantity, side.price, side.size, 0, side.id] for side in own] for _, own, _ in cases]
    states = env.state.expand(len(cases)).replace(own=torch.tensor(parts, dtype=torch.int32).mT)
    orders, room = torch.tensor([orders for orders, _, _ in cases]), torch.tensor([room for _, _, room in cases])
    sent = torch.vmap(order_messages)(states, orders, list(room.unbind(1)), torch.arange(len(cases)))
    words = torch.stack([torch.stack(message) for message in sent]).permute(2, 0, 1).tolist()
    for row, (found, case) in enumerate(zip(words, cases, strict=True)):
        for (kind, side, price, quantity, owner, target), wanted in zip(found, told(*case), strict=True):
            if wanted[0] is None:
                assert kind not in list(Kind)
                seen["unknown"] += 1
                continue
            assert (kind, owner) == (wanted[0], row), case
            seen[Kind(kind).name] += 1
            for got, want in zip((side, price, quantity, target), wanted[1:], strict=False):
                assert want is None or got == min(max(want, 0), 2**31 - 1), case
    assert {"unknown", "NOTHING", "MARKET", "LIMIT", "POST_ONLY", "MODIFY", "CANCEL", "CANCEL_ALL"} == set(seen)
    assert min(seen.values()) >= 20, seen


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("kind", TASKS)
def test_positions_stay_within_the_limits_with_open_orders_and_episodes_end(kind, lists):
    """By random actions or random lists; and all shares and cash of a market add up to nothing."""
    task, config = TASKS[kind]
    env = vecenv.make(task, 32, seed=5, compile=False, **config)
    config, most = env.scenario.config, 1_000 if kind == "execution" else 250
    draw, reached = torch.Generator().manual_seed(1), 0
    while not bool(env.rows.done.all()):
        action = random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)
        wrong = torch.zeros(32, dtype=torch.bool)
        if lists:
            ranges = ((0, 10), (-3, 4), (0, 300))
            kinds, away, sizes = (torch.randint(low, high, (32, 4), generator=draw) for low, high in ranges)
            action = torch.stack([kinds, (env.state.doubled_mid >> 1).unsqueeze(-1) + away, sizes], -1)
            closed = (env.state.tick + config.ticks_per_step >= config.max_ticks) & (kind == "execution")
            wrong = (kinds == Order.INVALID).any(1) & ~closed & ~env.rows.done
        invalid = env.state.invalid.clone()
        env.advance(action)
        rows, state = env.rows, env.state
        bids, asks = state.own[:, 0].long().unbind(1)
        long, short = state.shares + bids, asks - state.shares
        if kind == "execution":
            # The other side is closed.
            assert bool((torch.where(state.parent[:, 0] > 0, short, long) <= 0).all())
        assert bool((long <= most).all()) and bool((short <= most).all())
        assert not bool(state.market.cash.sum(-1).any()) and not bool(state.market.shares.sum(-1).any())
        assert torch.equal(state.invalid - invalid, wrong.long())
        assert torch.equal(rows.truncated, state.tick >= config.max_ticks)
        reached = max(reached, int(state.shares.abs().max()))
    assert reached > most // 2
