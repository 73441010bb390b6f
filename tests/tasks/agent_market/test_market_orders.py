"""Lists of orders are the messages of the rules and keep the limits, also of several learners in one market."""

import random
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.random import random_action
from vecenv.core.rows import hollow, leaf_names, leaves
from vecenv.kernels.order_book.messages import BUY, SELL, Kind
from vecenv.registry import make_spoken, task_named
from vecenv.tasks.agent_market.market import Market, joined
from vecenv.tasks.agent_market.orders import Order, order_messages
from vecenv.tasks.agent_market.records import MarketRecording
from vecenv.tasks.agent_market.seat import own_orders
from vecenv.tasks.agent_market.trading import HOLDS
from vecenv.testing import check_task

# The limit is reached within a few steps.
TASKS = {
    "agent_market": {"action": "limit", "max_position": 250, "order_size": 100, "max_ticks": 20},
    "execution": {"max_ticks": 60, "ticks_per_step": 4},
    "market_making": {"max_inventory": 250, "quote_size": 100, "max_ticks": 100},
}

SIDES = dict.fromkeys((Order.BUY, Order.BUY_LIMIT, Order.BID), BUY)
SIDES |= dict.fromkeys((Order.SELL, Order.SELL_LIMIT, Order.ASK), SELL)


class Own(NamedTuple):
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
        side, quote, asked = SIDES.get(kind), kind in (Order.BID, Order.ASK), min(max(quantity, 0), 2**31 - 1)
        if kind == Order.CANCEL:
            waiting, kept = [0, 0], False
        if side is None or (quote and side in quoted):
            named = {Order.CANCEL: Kind.CANCEL_ALL, Order.NONE: Kind.NOTHING, Order.INVALID: Kind.NOTHING}
            sent.append((named.get(kind) if side is None else Kind.NOTHING,))
            continue
        mine, there = own[side], quote and kept and own[side].quantity > 0
        waiting[side] -= mine.size if there else 0
        size = max(min(asked, room[side] - spent[side] - waiting[side]), 0)
        spent[side] += size
        if quote:
            quoted.add(side)
        if size == 0 and (quote or asked > 0):
            sent.append((Kind.CANCEL, None, None, None, mine.id) if there else (Kind.NOTHING,))
        elif there and mine.price == price and mine.size <= size:
            spent[side] -= size - mine.size
            sent.append((Kind.NOTHING,))
        elif there:
            sent.append((Kind.MODIFY, None, price, size, mine.id))
        elif kind in (Order.BUY, Order.SELL):
            sent.append((Kind.MARKET, side, None, size, None))
        else:
            sent.append((Kind.POST_ONLY if quote else Kind.LIMIT, side, price, size, None))
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


@pytest.mark.parametrize("task", TASKS)
def test_positions_stay_within_the_limits_with_open_orders(task):
    """By random actions or random lists in turns; an execution's other side is closed."""
    env = vecenv.make(task, 32, seed=5, compile=False, **TASKS[task])
    draw, most, reached = torch.Generator().manual_seed(1), 1_000 if task == "execution" else 250, 0
    while not bool(env.rows.done.all()):
        action = random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)
        if int(env.rows.elapsed.max()) % 2:
            ranges = ((0, 10), (-3, 4), (0, 300))
            kinds, away, sizes = (torch.randint(low, high, (32, 4), generator=draw) for low, high in ranges)
            action = torch.stack([kinds, (env.state.doubled_mid >> 1).unsqueeze(-1) + away, sizes], -1)
        env.advance(action)
        state = env.state
        bids, asks = state.own[:, 0].long().unbind(1)
        long, short = state.shares + bids, asks - state.shares
        if task == "execution":
            assert bool((torch.where(state.parent[:, 0] > 0, short, long) <= 0).all())
        assert bool((long <= most).all()) and bool((short <= most).all())
        assert not bool(state.market.cash.sum(-1).any()) and not bool(state.market.shares.sum(-1).any())
        reached = max(reached, int(state.shares.abs().max()))
    assert reached > most // 2


SEATED = {
    "agent_market": {"action": "limit", "max_ticks": 60},
    "execution": {"max_ticks": 60, "ticks_per_step": 6},
    "market_making": {"max_ticks": 60, "ticks_per_step": 6},
}


def made(task: str, seats: int, markets: int = 4, **changes) -> VecEnv:
    return vecenv.make(task, seats * markets, seed=2, compile=False, seats=seats, **SEATED[task] | changes)


def market_of(env: VecEnv, number: int) -> Market:
    """Return a market of two seats as one."""
    return joined(env.state.market[2 * number : 2 * number + 2], env.scenario.layout)


def asked(env: VecEnv, *rows: list[tuple[int, int, int]]) -> Tensor:
    """Return lists of orders (kind, price, shares) of the rows, which are filled up with nothing."""
    most = env.scenario.config.max_orders
    return torch.tensor([[*orders, *[(Order.NONE, 1, 0)] * most][:most] for orders in rows])


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("name", "seats"), [("agent_market", 3), ("execution", 2), ("market_making", 3)])
@pytest.mark.assembly
def test_markets_with_seats_conform(name, compiled, seats):
    task = task_named(name)
    config = SEATED[name] | {"seats": seats}
    check_task(replace(task, config=lambda: task.config(**config)), steps=4, compiled=compiled)


def test_a_seat_that_does_nothing_changes_nothing():
    """The owners of the others have other numbers, the market is else the same."""
    alone, pair = made("agent_market", 1), made("agent_market", 2)
    idle = torch.tensor([[HOLDS, 0, 0, 0]] * 4)
    for _ in range(8):
        action = random_action(alone.scenario.action_spec, alone.episode_keys, alone.rows.elapsed)
        alone.advance(action)
        pair.advance(torch.stack([action, idle], 1).flatten(0, 1))
    own = hollow(pair.rows[::2], {"market"})
    for name, one, other in zip(leaf_names(own), leaves(hollow(alone.rows, {"market"})), leaves(own), strict=True):
        assert torch.equal(one, other), name
    assert (pair.state.shares[1::2] == 0).all() and alone.state.traded.sum() > 0
    for number in range(4):
        one, other = alone.state.market[number], market_of(pair, number)
        assert torch.equal(one.quantity, other.quantity) and torch.equal(one.cash[0], other.cash[0])


def test_seats_trade_with_each_other_and_take_turns_to_be_first():
    """The second sells all that waits at the best bid, and 40 of what the first has put behind it."""
    env = made("agent_market", 2, 1, max_position=5_000)
    before = env.state.cash[0]
    price, waiting = (int(part) for part in env.state.ladder[0, :, BUY, 0])
    env.advance(asked(env, [(Order.BUY_LIMIT, price, 60)], [(Order.SELL, 1, waiting + 40)]))
    assert env.state.last_traded.tolist()[1] == [0, waiting + 40]
    assert env.state.shares[0] in (40, 60), "background traders may meet the rest"
    assert (env.state.cash - before).tolist() == [-int(env.state.shares[0]) * price, (waiting + 40) * price]
    market = market_of(env, 0)
    assert torch.equal(market.shares[:2], env.state.shares) and market.cash.sum() == market.shares.sum() == 0
    # Both ask at one price: the first of a step has nobody of them before it.
    env = made("agent_market", 2, 1)
    far = int(env.state.touch[0, 1]) + 40
    for step in range(4):
        own = [[(Order.CANCEL, 1, 0), (Order.SELL_LIMIT, far + 10 * step, 50 + row)] for row in range(2)]
        env.advance(asked(env, *own))
        ahead, first = own_orders(env.state, SELL).ahead.tolist(), step % 2
        assert ahead[1 - first] - ahead[first] == 50 + first


def test_seats_have_sides_of_their_own_and_worlds_are_whole():
    parents = made("execution", 2, 8).state.parent[:, 0].view(8, 2)
    assert (parents[:, 0] != parents[:, 1]).any(), "all seats of a market have the same side"
    with pytest.raises(ValueError, match="num_envs must be a multiple of 2, the agents of one world of agent_market"):
        vecenv.make("agent_market", 3, seats=2, compile=False)
    with pytest.raises(ValueError, match="an episode is recorded alone, but 2 agents share a world"):
        MarketRecording().recorder(make_spoken("execution", 2, seats=2), [0, 1])
