"""Several learners in one market: rows of one batch that meet each other's orders."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.random_actions import random_action
from vecenv.core.rows import hollow, leaf_names, leaves
from vecenv.kernels.order_book.messages import BUY, SELL
from vecenv.registry import make_spoken, task_named
from vecenv.tasks.agent_market.market import Market, joined
from vecenv.tasks.agent_market.orders import Order
from vecenv.tasks.agent_market.records import MarketRecorder
from vecenv.tasks.agent_market.seat_state import own_orders
from vecenv.tasks.agent_market.trading import HOLDS
from vecenv.testing import check_task

TASKS = {
    "agent_market": {"action": "limit", "max_ticks": 60},
    "execution": {"max_ticks": 60, "ticks_per_step": 6},
    "market_making": {"max_ticks": 60, "ticks_per_step": 6},
}


def made(task: str, seats: int, markets: int = 4, **changes) -> VecEnv:
    return vecenv.make(task, seats * markets, seed=2, compile=False, seats=seats, **TASKS[task] | changes)


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
    config = TASKS[name] | {"seats": seats}
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
        MarketRecorder(make_spoken("execution", 2, seats=2), [0, 1])
