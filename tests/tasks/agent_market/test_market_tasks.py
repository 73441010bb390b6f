"""The three tasks: they conform, trade, end, and keep exact accounts and limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.random_actions import random_action
from vecenv.registry import task_named
from vecenv.tasks.agent_market.agents import EXECUTORS
from vecenv.tasks.agent_market.execution import ExecutionConfig
from vecenv.tasks.agent_market.market_making import MarketMakingConfig
from vecenv.tasks.agent_market.trading import BUYS, Trading, TradingConfig
from vecenv.testing import check_task

# Short episodes, as `check_task` plays the longest of them.
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "discrete": ("agent_market", {"action": "discrete", "max_ticks": 20}),
    "continuous": ("agent_market", {"action": "continuous", "max_ticks": 20}),
    "limit": ("agent_market", {"action": "limit", "max_ticks": 20}),
    "execution": ("execution", {"max_ticks": 40, "ticks_per_step": 4}),
    "market_making": ("market_making", {"max_ticks": 40, "ticks_per_step": 4}),
}
ALL = pytest.mark.parametrize("kind", TASKS)

# Money that float32 holds exactly: a quarter is a price tick.
EXACT = {"price_tick": 0.25, "reward_scale": 1.0, "initial_cash": 2.0**22}


def made(kind: str, num_envs: int, **changes: Any) -> VecEnv:
    name, config = TASKS[kind]
    return vecenv.make(name, num_envs, seed=2, compile=False, **(config | changes))


def drawn(env: VecEnv) -> Tensor:
    return random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
@ALL
@pytest.mark.assembly
def test_the_tasks_conform(kind, compiled):
    name, config = TASKS[kind]
    task = task_named(name)
    check_task(replace(task, config=lambda: task.config(**config)), steps=6, compiled=compiled)


@ALL
@pytest.mark.assembly
def test_ten_thousand_random_steps_trade_and_end(kind):
    env = made(kind, 100)
    longest, traded, ends, steps = env.scenario.longest, 0, 0, 0
    while steps < 10_000:
        env.advance(drawn(env))
        steps += 100
        rows = env.rows
        assert torch.equal(rows.truncated, rows.state.tick >= env.scenario.config.max_ticks)
        assert torch.equal(rows.truncated, rows.elapsed == longest)
        traded += int(rows.state.traded[rows.done].sum())
        ends += int(rows.done.sum())
        env.restart(rows.done)
    assert traded > 10_000 and ends >= 100 * (100 // longest)


@ALL
@pytest.mark.assembly
def test_positions_stay_within_their_limits(kind):
    """With open orders, whatever comes; the limit is reached."""
    sizes = {"execution": {}, "market_making": {"quote_size": 100, "max_inventory": 250}}
    most = 1_000 if kind == "execution" else 250
    env = made(kind, 64, **sizes.get(kind, {"order_size": 100, "max_position": 250}), max_ticks=240)
    seen = 0
    for _ in range(60):
        env.advance(drawn(env))
        state = env.state
        bids, asks = state.own[:, 0].long().unbind(1)
        assert bool((state.shares + bids <= most).all()) and bool((asks - state.shares <= most).all())
        seen = max(seen, int(state.shares.abs().max()))
        env.restart(env.rows.done)
    assert seen > most // 2


def test_a_seat_is_bankrupt_when_its_equity_is_gone():
    """A deposit below half a spread of 100 shares is gone with the first purchase."""
    env = made("discrete", 32, initial_cash=0.4)
    broke = torch.zeros(32, dtype=torch.bool)
    for _ in range(10):
        env.advance(torch.full((32, 1), BUYS))
        gone = env.info()["equity"] <= 0
        assert torch.equal(env.rows.terminated, gone)
        broke |= gone
    assert broke.float().mean() > 0.5


@pytest.mark.parametrize(("cash", "ends"), [(-1, True), (0, True), (1, False)])
@ALL
def test_bankruptcy_begins_at_nothing(kind, cash, ends):
    """With 10 shares sold short, at a doubled mid of 2,001 price ticks."""
    env = made(kind, 1)
    state = env.state.replace(
        shares=torch.tensor([-10]), cash=torch.tensor([10_005 + cash]), doubled_mid=torch.tensor([2_001])
    )
    flag = env.engine.bound()._vmap(env.scenario.terminated, state)
    assert flag.tolist() == [ends]


@pytest.mark.parametrize("kind", ["discrete", "continuous", "limit", "market_making"])
def test_the_reward_is_the_known_profit(kind):
    """7 shares bought at 1,003 ticks, and a mid from 1,000 to 1,010.5: 52.5 ticks, 13.125 of currency."""
    changes = {"inventory_weight": 0.0} if kind == "market_making" else {}
    env = made(kind, 1, **(EXACT | changes))
    before = env.state.replace(shares=torch.tensor([3]), cash=torch.tensor([50_000]), doubled_mid=torch.tensor([2_000]))
    after = env.state.replace(
        shares=torch.tensor([10]), cash=torch.tensor([50_000 - 7 * 1_003]), doubled_mid=torch.tensor([2_021])
    )
    reward = env.engine.bound()._vmap(env.scenario.reward, before, drawn(env), after)
    assert reward.tolist() == [(10 * 10.5 - 7 * 3) * 0.25]


@pytest.mark.parametrize(("bought", "paid", "told"), [(7, 7_021, -21), (-4, -3_990, -10), (5, 5_000, 0)])
def test_the_shortfall_of_fills_is_what_they_cost_beyond_the_mid(bought, paid, told):
    """At a mid of 1,000 ticks before the step, wherever it is after it; a tick is 0.25."""
    env = made("discrete", 1, **EXACT, reward="shortfall")
    before = env.state.replace(shares=torch.tensor([3]), cash=torch.tensor([50_000]), doubled_mid=torch.tensor([2_000]))
    after = before.replace(
        shares=before.shares + bought, cash=before.cash - paid, doubled_mid=torch.tensor([2_222]), tick=before.tick + 1
    )
    reward = env.engine.bound()._vmap(env.scenario.reward, before, drawn(env), after)
    assert reward.tolist() == [told * 0.25]


class HalfTheProfit(Trading):
    """A reward of one's own."""

    def reward(self, state, action, next_state, params, shared):
        return super().reward(state, action, next_state, params, shared) / 2


def test_a_reward_of_ones_own_is_a_subclass():
    task = replace(task_named("agent_market"), name="half_the_profit", scenario=HalfTheProfit)
    own, usual = (vecenv.make(kind, 8, seed=2, compile=False, max_ticks=20) for kind in (task, "agent_market"))
    for _ in range(20):
        action = drawn(usual)
        assert torch.equal(2 * own.advance(action), usual.advance(action))


@pytest.mark.parametrize("kind", ["discrete", "continuous", "limit", "market_making"])
def test_rewards_add_up_to_the_profit(kind):
    changes = {"inventory_weight": 0.0} if kind == "market_making" else {}
    env = made(kind, 32, **(EXACT | changes))
    total = torch.zeros(32, dtype=torch.float64)
    for _ in range(env.scenario.longest):
        total += env.advance(drawn(env)).double()
    assert bool(env.rows.done.all()) and bool(total.any())
    assert torch.equal(total, env.info()["profit"])


@pytest.mark.parametrize(("tick", "more"), [(36, 0.0), (40, 5.0)])
def test_what_is_left_at_the_end_costs_more_than_the_mid(tick, more):
    """A quarter of the order at 20 basis points; before the end it waits at the mid."""
    env = made("execution", 1, side="buy", parent_size=400)
    state = env.state.replace(
        shares=torch.tensor([300]),
        cost=300 * env.state.first_mid.double() / 2,
        doubled_mid=env.state.first_mid,
        tick=torch.tensor([tick]),
    )
    assert env.scenario.shortfall(state).tolist() == pytest.approx([more], abs=1e-9)


@pytest.mark.parametrize("side", ["buy", "sell"])
def test_the_shortfall_is_that_of_the_fills(side):
    """What fills have cost beyond the arrival price, and the rest at the mid, in 10^-4 of the parent order."""
    env = made("execution", 16, side=side, parent_size=400)
    sign, arrival = (1 if side == "buy" else -1), env.state.first_mid.double() / 2
    assert torch.equal(env.state.first_mid, env.state.doubled_mid)
    filled, excess, rewards = (torch.zeros(16, dtype=torch.float64) for _ in range(3))
    for _ in range(env.scenario.longest):
        before = env.state
        shares, cash = before.shares.clone(), before.cash.clone()
        rewards += env.advance(drawn(env)).double()
        quantity = sign * (env.state.shares - shares).double()
        excess += (cash - env.state.cash).double() - sign * quantity * arrival
        filled += quantity
        waiting = (400 - filled) * sign * (env.state.doubled_mid.double() / 2 - arrival)
        expected = 1e4 * (excess + waiting) / (400 * arrival)
        assert bool((quantity >= 0).all())
        torch.testing.assert_close(env.info()["shortfall"], expected, rtol=1e-9, atol=1e-9)
    assert bool(env.rows.done.all()) and bool((filled == 400).all()) and bool((expected != 0).any())
    torch.testing.assert_close(rewards, -0.1 * expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.assembly
def test_baselines_leave_nothing_of_the_parent_order(name):
    env = vecenv.make("execution", 64, seed=1, compile=False)
    agent = EXECUTORS[name]()
    for _ in range(env.scenario.longest):
        env.advance(agent.act(env))
        if bool(env.rows.done.all()):
            break
    assert bool(env.rows.done.all()) and not env.info()["left"].any()


INVALID = [
    *[
        (kind, {name: 0})
        for kind in (TradingConfig, ExecutionConfig, MarketMakingConfig)
        for name in (
            "initial_cash",
            "max_ticks",
            "ticks_per_step",
            "reward_scale",
            "grade_scale",
            "room",
            "slots",
            "price_tick",
        )
    ],
    *[(TradingConfig, {name: -1}) for name in ("order_size", "max_position", "warm_up_ticks", "drawdown_weight")],
    *[(TradingConfig, {name: -1.0}) for name in ("cost_per_share", "sharpe_weight", "volatility", "fair_noise")],
    (TradingConfig, {"sizes": (0.5, 1.5)}),
    (TradingConfig, {"distances": ()}),
    (TradingConfig, {"mean_price": 2**25}),
    (TradingConfig, {"max_ticks": 2**23}),
    (TradingConfig, {"max_ticks": 7, "ticks_per_step": 2}),
    (TradingConfig, {"initial_cash": float("nan")}),
    (TradingConfig, {"maker_latency": 9}),
    (ExecutionConfig, {"parent_size": 0}),
    (ExecutionConfig, {"passive_slices": -1.0}),
    (ExecutionConfig, {"slices": (1.0,)}),
    (ExecutionConfig, {"slices": (0.0, -1.0)}),
    (MarketMakingConfig, {"quote_size": 0}),
    (MarketMakingConfig, {"max_inventory": 0}),
    (MarketMakingConfig, {"quote_size": 600}),
    (MarketMakingConfig, {"distances": (0, 1)}),
    (MarketMakingConfig, {"inventory_weight": -1.0}),
]


@pytest.mark.parametrize(("config", "changes"), INVALID)
def test_an_invalid_setting_is_named(config, changes):
    with pytest.raises(ValueError, match=next(iter(changes)) if "max_ticks" not in changes else "ticks"):
        config(**changes)
