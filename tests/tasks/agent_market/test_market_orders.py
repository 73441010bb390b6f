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

TASKS = {
    "discrete": ("agent_market", {"action": "discrete", "max_position": 250}),
    "continuous": ("agent_market", {"action": "continuous", "max_position": 250}),
    "limit": ("agent_market", {"action": "limit", "max_position": 250}),
    "execution": ("execution", {"max_ticks": 40, "ticks_per_step": 4}),
    "market_making": ("market_making", {"max_inventory": 250}),
}
ALL = pytest.mark.parametrize("kind", TASKS)

SIDES = {
    Order.BUY: BUY,
    Order.BUY_LIMIT: BUY,
    Order.BID: BUY,
    Order.SELL: SELL,
    Order.SELL_LIMIT: SELL,
    Order.ASK: SELL,
}


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
        for _ in range(draw.randrange(1, 6))
    ]
    return orders, own, room


@pytest.mark.assembly
def test_the_messages_are_those_of_the_rules():
    """All kinds, with orders in the book or none, full room or none, against plain Python."""
    env = vecenv.make("agent_market", 1, compile=False)
    draw, seen = random.Random(1), Counter()
    for _ in range(3_000):
        orders, own, room = drawn_case(draw)
        parts = [[side.quantity, side.price, side.size, 0, side.id] for side in own]
        state = env.state[0].replace(own=torch.tensor(parts, dtype=torch.int32).T)
        sent = order_messages(state, torch.tensor(orders), [torch.tensor(shares) for shares in room])
        for message, wanted in zip(sent, told(orders, own, room), strict=True):
            kind, side, price, quantity, owner, target = (int(word) for word in message)
            if wanted[0] is None:
                assert kind not in list(Kind)
                seen["unknown"] += 1
                continue
            assert kind == wanted[0], (orders, own, room)
            seen[Kind(kind).name] += 1
            assert owner == 0
            shown = (kind, side, min(price, 2**31 - 1), quantity, target)
            for got, want in zip(shown, wanted, strict=False):
                want = want if want is None else min(max(want, 0), 2**31 - 1)
                assert want is None or got == want, (orders, own, room)
    assert {"unknown", "NOTHING", "MARKET", "LIMIT", "POST_ONLY", "MODIFY", "CANCEL", "CANCEL_ALL"} == set(seen)
    assert min(seen.values()) >= 20, seen


@ALL
@pytest.mark.assembly
def test_an_action_is_the_list_that_it_stands_for(kind):
    """Of two equal markets one gets actions, the other their lists: states and rewards are equal bit for bit."""
    task, config = TASKS[kind]
    acting, listing = (vecenv.make(task, 32, seed=4, compile=False, **config) for _ in range(2))
    longest = acting.scenario.config.max_orders
    for _ in range(30):
        action = random_action(acting.scenario.action_spec, acting.episode_keys, acting.rows.elapsed)
        orders = torch.vmap(acting.scenario.chosen_orders)(listing.state, action)
        padded = torch.cat([orders, orders.new_zeros(32, longest - orders.shape[1], 3)], 1)
        assert torch.equal(acting.advance(action), listing.advance(padded))
        for name in ("cash", "shares", "own", "ladder", "counts", "doubled_mid"):
            assert torch.equal(getattr(acting.state, name), getattr(listing.state, name)), name
        for env in (acting, listing):
            env.restart(env.rows.done)
    assert bool(acting.state.traded.any())


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", ["discrete", "execution", "market_making"])
@pytest.mark.assembly
def test_random_lists_stay_within_the_limits(kind, compiled):
    """With their open orders, and all shares and cash of a market add up to nothing."""
    task, config = TASKS[kind]
    env = vecenv.make(task, 64, seed=5, compile=compiled, **config)
    most = 1_000 if kind == "execution" else 250
    draw = torch.Generator().manual_seed(1)
    reached = 0
    for _ in range(60):
        kinds = torch.randint(0, 10, (64, 4), generator=draw)
        away = torch.randint(-3, 4, (64, 4), generator=draw)
        prices = (env.state.doubled_mid >> 1).unsqueeze(-1) + away
        sizes = torch.randint(0, 300, (64, 4), generator=draw)
        before, invalid = env.state.counts[:, 1].clone(), env.state.invalid.clone()
        config = env.scenario.config
        closed = (env.state.tick + config.ticks_per_step >= config.max_ticks) & (kind == "execution")
        env.advance(torch.stack([kinds, prices, sizes], -1))
        state = env.state
        bids, asks = state.own[:, 0].long().unbind(1)
        long, short = state.shares + bids, asks - state.shares
        if kind == "execution":
            # The other side is closed.
            bought = state.parent[:, 0] > 0
            assert bool((torch.where(bought, short, long) <= 0).all())
        assert bool((long <= most).all()) and bool((short <= most).all())
        assert not bool(state.market.cash.sum(-1).any()) and not bool(state.market.shares.sum(-1).any())
        assert bool((state.counts[:, 1] >= before).all())
        assert torch.equal(state.invalid - invalid, (kinds == Order.INVALID).any(1).long() * ~closed)
        reached = max(reached, int(state.shares.abs().max()))
        env.restart(env.rows.done)
    assert reached > most // 2 and int(state.counts[:, 1].max()) > 0


def test_the_last_step_of_an_execution_ignores_the_list():
    env = vecenv.make("execution", 16, seed=1, compile=False, parent_size=50, max_ticks=8, ticks_per_step=4)
    nothing = torch.zeros(16, 4, 3, dtype=torch.int64)
    env.advance(nothing)
    assert not bool(env.state.traded.any())
    env.advance(nothing)
    assert env.info()["left"].tolist() == [0] * 16


@pytest.mark.parametrize("count", [1, 65])
def test_a_list_has_room_for_a_closing_order_and_an_end(count):
    with pytest.raises(ValueError, match=f"max_orders must be in 2 … 64, got {count}"):
        vecenv.make("agent_market", 1, max_orders=count)
