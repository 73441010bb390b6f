"""The three tasks: they conform, and accounts, rewards, orders and what is shown are numbers worked out by hand."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.random import random_action
from vecenv.registry import task_named
from vecenv.tasks.agent_market import agents
from vecenv.tasks.agent_market.agents import EXECUTORS, FixedSpread, trading_action
from vecenv.tasks.agent_market.config import BackgroundConfig, ExecutionConfig, MarketMakingConfig, TradingConfig
from vecenv.tasks.agent_market.execution import IMPROVES, JOINS, WAITS, shortfall_to_vwap
from vecenv.tasks.agent_market.figures import played
from vecenv.tasks.agent_market.orders import Order
from vecenv.tasks.agent_market.scenario import MarketScenario
from vecenv.tasks.agent_market.seat import SeatState, cost_after
from vecenv.tasks.agent_market.trading import BUYS, HOLDS, SELLS
from vecenv.testing import check_task

# Short episodes, as `check_task` plays the longest of them.
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "discrete": ("agent_market", {"action": "discrete", "max_ticks": 20}),
    "continuous": ("agent_market", {"action": "continuous", "max_ticks": 20}),
    "limit": ("agent_market", {"action": "limit", "max_ticks": 20}),
    "execution": ("execution", {"max_ticks": 40, "ticks_per_step": 4}),
    "market_making": ("market_making", {"max_ticks": 40, "ticks_per_step": 4}),
}

# Money that float32 holds exactly: a quarter is a price tick.
EXACT = {"price_tick": 0.25, "reward_scale": 1.0, "initial_cash": 2.0**22}
START = 2**24
"""The initial cash in price ticks."""


def made(kind: str, num_envs: int, **changes: Any) -> VecEnv:
    name, config = TASKS[kind]
    return vecenv.make(name, num_envs, seed=2, compile=False, **(config | changes))


@cache
def one(kind: str, *config: tuple[str, Any]) -> VecEnv:
    """An environment of one row that no test steps."""
    return made(kind, 1, **dict(config))


def seat(kind: str, config: dict[str, Any] | None = None, **fields: Any) -> tuple[MarketScenario, SeatState]:
    """A scenario, and a state of one seat with some fields."""
    env = one(kind, *(EXACT if config is None else config).items())
    return env.scenario, changed(env.state[0], **fields)


def changed(state: SeatState, **fields: Any) -> SeatState:
    given = {name: torch.as_tensor(value).to(getattr(state, name).dtype) for name, value in fields.items()}
    return state.replace(**given)


def rows(kind: str, config: dict[str, Any], **fields: list[Any]) -> VecEnv:
    """An environment whose rows have some fields, a number for each row."""
    env = made(kind, len(next(iter(fields.values()))), **config)
    env.rows = env.rows.replace(state=changed(env.state, **fields))
    return env


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.assembly
def test_the_tasks_conform(kind, compiled):
    name, config = TASKS[kind]
    task = task_named(name)
    check_task(replace(task, config=lambda: task.config(**config)), steps=6, compiled=compiled)


def test_the_reward_is_the_known_profit():
    """7 shares bought at 1,003 ticks, and a mid from 1,000 to 1,010.5: 52.5 + 31.5 ticks less 42, at 0.25."""
    for kind, penalty in (("discrete", 0.0), ("limit", 0.0), ("market_making", 0.5 * 0.1**2)):
        config = EXACT | ({"inventory_weight": 0.5} if kind == "market_making" else {})
        scenario, before = seat(kind, config, shares=3, cash=50_000, doubled_mid=2_000)
        after = changed(before, shares=10, cash=50_000 - 7 * 1_003, doubled_mid=2_021)
        reward = scenario.reward(before, torch.zeros(4), after, {}, {})
        assert float(reward) == pytest.approx((10 * 10.5 - 7 * 3) * 0.25 - penalty, rel=1e-6)
    env, total = made("discrete", 8, **EXACT), torch.zeros(8, dtype=torch.float64)
    while not bool(env.rows.done.all()):
        total += env.advance(random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)).double()
    assert bool(total.any()) and torch.equal(total, env.info()["profit"])
    # Or what fills cost beyond a mid of 1,000 ticks before the step, wherever it is after it.
    scenario, before = seat("discrete", EXACT | {"reward": "shortfall"}, shares=3, cash=50_000, doubled_mid=2_000)
    for bought, paid, told in ((7, 7_021, -21), (-4, -3_990, -10), (5, 5_000, 0)):
        after = changed(before, shares=3 + bought, cash=50_000 - paid, doubled_mid=2_222, tick=1)
        assert float(scenario.reward(before, torch.zeros(1), after, {}, {})) == told * 0.25


def test_the_reward_with_risk_takes_drawdown_and_trades_off_and_adds_the_sharpe_ratio_at_the_end():
    """The profit is 21, the equity 104 below its peak, 11 shares are traded; changes of 6 and 44 in all."""
    weights = {"drawdown_weight": 0.5, "cost_per_share": 0.25, "sharpe_weight": 2.0, "ticks_per_step": 2}
    config = EXACT | weights | {"reward": "risk_adjusted", "reward_scale": 0.5}
    scenario, before = seat("discrete", config, shares=3, cash=50_000, doubled_mid=2_000)
    fields = {"shares": 10, "cash": 50_000 - 7_021, "doubled_mid": 2_021, "peak": 107_000, "last_traded": [9, 2]}
    for tick, steps, ends in ((6, 3, False), (20, 10, True)):
        after = changed(before, tick=tick, changes=[6.0, 44.0], **fields)
        mean, deviation = 6 / steps, math.sqrt(44 / steps - (6 / steps) ** 2)
        bonus = 2.0 * mean / deviation if ends else 0.0
        reward = float(scenario.reward(before, torch.zeros(1), after, {}, {}))
        assert reward == pytest.approx(0.5 * (21.0 - 0.5 * 104 - 0.25 * 11) + bonus, rel=1e-6)
    # Equal changes have no Sharpe ratio; a bankrupt seat's episode has ended too.
    same = changed(before, tick=20, changes=[20.0, 40.0], **fields)
    assert float(scenario.reward(before, torch.zeros(1), same, {}, {})) == -16.875
    bankrupt = changed(before, tick=6, changes=[6.0, 44.0], **(fields | {"cash": -50_000}))
    without = changed(bankrupt, changes=[0.0, 0.0])
    bonus = (scenario.reward(before, torch.zeros(1), state, {}, {}) for state in (bankrupt, without))
    assert float(next(bonus) - next(bonus)) == pytest.approx(2.0 * 2 / math.sqrt(44 / 3 - 4), abs=1e-2)


HELD = {"cash": START - 7_021, "shares": 10, "doubled_mid": 2_021, "cost": 7_021.0, "peak": 2 * START + 8_000}
HELD |= {"tick": 7, "traded": [12, 2], "invalid": 3, "counts": [11, 12, 13, 14, 15]}
HELD |= {"own": [[30, 0], [1_000, 0], [20, 0], [50, 0], [9, -1]]}
"""Ten shares, 3,084 price ticks above the start and 916 below the peak; orders of 30 shares, the best with 50 ahead."""


def test_what_is_told_shown_and_graded_of_an_account():
    scenario, state = seat(
        "discrete", EXACT | {"depth": True}, **HELD, ladder=[[[1_000] + [0] * 9] * 2, [[3] * 10] * 2]
    )
    told = {name: value.item() for name, value in scenario.info(state, {}, {}).items()}
    assert told == {
        "equity": 2.0**22 + 771, "profit": 771.0, "total_return": pytest.approx(771 / 2**22), "realised_profit": 0.0,
        "peak_equity": 2.0**22 + 1_000, "cash": 2.0**22 - 7_021 / 4, "mid": 252.625, "shares": 10, "traded": 14,
        "invalid_actions": 3, "tick": 7, "messages": 11, "rejected": 12, "evicted": 13, "unplaced": 14, "carried": 15,
    }  # fmt: skip
    features, account, depth = scenario.observation(state, {}, {})
    share = [1 - 7_021 / START, 6_168 / 2 / START, (6_168 - 8_000) / 2 / START, 0.65]
    assert account.tolist() == pytest.approx([0.1, *share, 0.3, -10.5, 0.5, 0.0, 0.0, 0.0], rel=1e-5, abs=1e-9)
    assert torch.equal(features, state.features) and depth.shape == (40,)
    assert depth[:2].tolist() == [-10.5, 0.0] and depth[-1].item() == pytest.approx(math.log(4))
    assert float(scenario.grade(state, {}, {})) == pytest.approx(1 / (1 + math.exp(-771 / 2**22 / 0.01)))
    maker, state = seat("market_making", **HELD)
    assert float(maker.grade(state, {}, {})) == pytest.approx(1 / (1 + math.exp(-771 / 500)))
    assert maker.observation(state, {}, {})[1][0].item() == pytest.approx(0.1)
    # A seat is bankrupt when its equity is gone.
    for kind, (cash, ends) in ((kind, case) for kind in TASKS for case in ((-1, True), (0, True), (1, False))):
        scenario, state = seat(kind, {}, shares=-10, cash=10_005 + cash, doubled_mid=2_001)
        assert bool(scenario.terminated(state, {}, {})) == ends, (kind, cash)


def test_the_cost_of_a_position_is_at_average_cost():
    """Bought more, sold a part, turned around, closed, sold short more, and nothing traded; after 40 for 10 or -10."""
    held, bought = torch.tensor([10, 10, 10, 10, -10, 10]), torch.tensor([5, -4, -15, -10, -5, 0])
    paid, cost = torch.tensor([30, -20, -90, -60, -30, 0]), torch.tensor([40.0] * 4 + [-40.0, 40.0])
    assert cost_after(cost.double(), held, bought, paid).tolist() == [70.0, 24.0, -30.0, 0.0, -70.0, 40.0]


def orders(scenario: MarketScenario, state: SeatState, action: list[float]) -> list[list[int]]:
    kind = torch.float32 if any(isinstance(part, float) for part in action) else torch.int64
    return scenario.orders(state, torch.tensor(action, dtype=kind)).tolist()


def test_actions_of_trading_are_these_orders():
    for kind, action, order in (
        ("discrete", [SELLS], [Order.SELL, 1, 100]),
        ("discrete", [HOLDS], [Order.NONE, 1, 0]),
        ("discrete", [BUYS], [Order.BUY, 1, 100]),
        ("continuous", [0.42], [Order.BUY, 1, 42]),
        ("continuous", [-3.0], [Order.SELL, 1, 100]),
        ("continuous", [math.nan], [Order.NONE, 1, 0]),
    ):
        assert orders(*seat(kind), action) == [order]
    scenario, state = seat("limit", touch=[1_000, 1_003], doubled_mid=2_021)
    assert orders(scenario, state, [BUYS, 3, 1, 1]) == [[Order.CANCEL, 1, 0], [Order.BUY_LIMIT, 998, 50]]
    assert orders(scenario, state, [SELLS, 0, 2, 0]) == [[Order.NONE, 1, 0], [Order.SELL_LIMIT, 1_002, 100]]
    assert orders(scenario, state, [HOLDS, 0, 2, 1])[1][0] == Order.NONE
    alone = changed(state, touch=[0, 0])
    for side, order in ((BUYS, [Order.BUY_LIMIT, 1_005, 25]), (SELLS, [Order.SELL_LIMIT, 1_015, 25])):
        assert orders(scenario, alone, [side, 4, 0, 0])[1] == order
    assert [part.item() for part in scenario.room(changed(state, shares=70))] == [430, 570]


def test_actions_of_an_execution_are_these_orders():
    """Of ten steps, so that an even slice is 100 shares; passive orders are of 200."""
    scenario, state = seat("execution", {"side": "buy"}, touch=[1_000, 1_003], doubled_mid=2_003)
    bid, ask, buy = Order.BID, Order.ASK, Order.BUY
    assert scenario.config.even_slice == 100
    assert orders(scenario, state, [2, IMPROVES]) == [[bid, 1_001, 200], [ask, 1_001, 0], [buy, 1, 100]]
    narrow = changed(state, touch=[1_000, 1_001])
    assert orders(scenario, narrow, [1, IMPROVES]) == [[bid, 1_000, 200], [ask, 1_000, 0], [buy, 1, 50]]
    assert orders(scenario, state, [0, WAITS]) == [[bid, 1_000, 0], [ask, 1_000, 0], [Order.NONE, 1, 0]]
    late = changed(state, shares=750)
    assert orders(scenario, late, [2, JOINS]) == [[bid, 1_000, 150], [ask, 1_000, 0], [buy, 1, 100]]
    assert orders(scenario, late, [4, JOINS])[::2] == [[bid, 1_000, 0], [buy, 1, 250]]
    assert orders(scenario, changed(state, touch=[0, 1_003]), [0, JOINS])[0][2] == 0
    sells = changed(state, parent=[-1, 1_000], shares=-900)
    assert orders(scenario, sells, [1, JOINS]) == [[bid, 1_003, 0], [ask, 1_003, 50], [Order.SELL, 1, 50]]
    assert [part.item() for part in scenario.room(sells)] == [0, 100]
    # In the last step what is left is bought or sold, 100 price ticks from the mid.
    for last, tick in ((False, 35), (True, 36)):
        closing = [[Order.NONE, 1, 0], [Order.SELL_LIMIT, 901, 100], [Order.NONE, 1, 0]]
        assert (orders(scenario, changed(sells, tick=tick), [1, JOINS]) == closing) == last
        listed = [[Order.BID, 7, 7]] * 4
        told = scenario.orders(changed(sells, tick=tick), torch.tensor(listed)).tolist()
        assert told == ([*closing, closing[0]] if last else listed)
    waiting = changed(late, tick=36, own=[[0, 7], [0, 9], [0, 7], [0, 0], [-1, 3]])
    assert orders(scenario, waiting, [1, JOINS])[:2] == [[Order.CANCEL, 1, 0], [Order.BUY_LIMIT, 1_101, 250]]


def test_actions_of_a_market_maker_are_these_quotes():
    scenario, state = seat("market_making", {"max_inventory": 250}, doubled_mid=2_001)
    assert orders(scenario, state, [1, 3]) == [[Order.BID, 999, 100], [Order.ASK, 1_005, 100]]
    assert [words[2] for words in orders(scenario, state, [0, 6])] == [0, 100]
    held = (({"shares": 200}, [0, 100]), ({"shares": -150}, [100, 100]), ({"doubled_mid": 2}, [0, 100]))
    for fields, sizes in held:
        assert [words[2] for words in orders(scenario, changed(state, **fields), [1, 1])] == sizes


def test_the_shortfall_counts_what_is_paid_what_waits_and_what_is_left_at_the_end(monkeypatch):
    """300 of 400 shares at 1,003 where the mid was 1,000 and is 1,002; then a quarter at 20 basis points."""
    fields = {"shares": 300, "cost": 300_900.0, "first_mid": 2_000, "doubled_mid": 2_004}
    scenario, state = seat("execution", {"side": "buy", "parent_size": 400}, **fields, tick=36, flow=[100, 100_500])
    ended = changed(state, tick=40)
    assert [float(scenario.shortfall(part)) for part in (state, ended)] == pytest.approx([27.5, 32.5])
    assert float(scenario.reward(state, torch.zeros(2), ended, {}, {})) == pytest.approx(-0.5)
    assert float(scenario.grade(state, {}, {})) == pytest.approx(1 / (1 + math.exp(27.5 / 2)))
    assert [float(part) for part in scenario.shown(state, {})] == pytest.approx([1.0, 0.25, -0.15, 27.5])
    told = scenario.info(state, {}, {})
    assert int(told["left"]) == 100
    # The shares traded at 1,005 on average.
    assert float(told["shortfall_to_vwap"]) == pytest.approx(1e4 * (1_003 - 1_005) / 1_005)
    nothing = (changed(state, shares=0, cost=0.0), changed(state, flow=[0, 0]))
    assert [float(shortfall_to_vwap(part)) for part in nothing] == [0.0, 0.0]
    sold = changed(state, parent=[-1, 400], shares=-300, cost=-300_900.0)
    assert float(scenario.shortfall(sold)) == pytest.approx(-27.5)
    for number, shares, done in ((1, 400, True), (1, 399, False), (2, 400, False)):
        monkeypatch.setattr(scenario, "num_agents", number)
        assert bool(scenario.terminated(changed(state, shares=shares), {}, {})) == done


def test_an_episode_of_an_execution_leaves_nothing_and_costs_what_its_fills_do():
    """What fills have cost beyond the arrival price, in 10^-4 of the parent order."""
    env = made("execution", 16, parent_size=400)
    sign, arrival = env.state.parent[:, 0].double(), env.state.first_mid.double() / 2
    excess, rewards = torch.zeros(16, dtype=torch.float64), torch.zeros(16, dtype=torch.float64)
    while not bool(env.rows.done.all()):
        shares, cash = env.state.shares.clone(), env.state.cash.clone()
        rewards += env.advance(EXECUTORS["twap"]().act(env)).double()
        bought = (env.state.shares - shares).double()
        excess += (cash - env.state.cash).double() - bought * arrival
        assert bool((bought * sign >= 0).all())
    told = env.info()
    assert len(sign.unique()) == 2 and not told["left"].any()
    torch.testing.assert_close(told["shortfall"], 1e4 * excess / (400 * arrival), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rewards, -0.1 * told["shortfall"], rtol=1e-5, atol=1e-5)


def test_agents_of_trading_do_what_they_say():
    env = rows("discrete", {}, **{"shares": [0, 0, 0, 451, 450]})
    assert agents.BuyAndHold().act(env).squeeze(1).tolist() == [BUYS, BUYS, BUYS, HOLDS, BUYS]
    assert agents.Hold().act(env).squeeze(1).tolist() == [HOLDS] * 5
    # A mid of 1,000, and estimates of 1,020.5, 979.5, 1,020 and 980; beyond 20 ticks the largest position is held.
    estimates = [int(1_020.5 * 2**16), int(979.5 * 2**16), 1_020 * 2**16, 980 * 2**16]
    env = rows("discrete", {}, shares=[0, 0, 40, -500], doubled_mid=[2_000] * 4, estimate=estimates)
    assert agents.FairValue().act(env).squeeze(1).tolist() == [BUYS, SELLS, HOLDS, HOLDS]
    features = torch.zeros(4, 54)
    features[:, env.scenario.feature_names.index("change_8")] = torch.tensor([0.1, -0.1, 0.0, 0.3])
    env = rows("discrete", {}, shares=[0, 0, 500, 500], features=features)
    assert agents.Momentum().act(env).squeeze(1).tolist() == [BUYS, SELLS, SELLS, HOLDS]
    wanted = torch.tensor([300, -50, 0, 20])
    shown = {kind: trading_action(rows(kind, {}, shares=[0] * 4), wanted) for kind in ("continuous", "limit")}
    assert shown["continuous"].squeeze(1).tolist() == pytest.approx([1.0, -0.5, 0.0, 0.2])
    assert shown["limit"].tolist() == [[BUYS, 0, 2, 1], [SELLS, 0, 1, 1], [HOLDS, 0, 0, 1], [BUYS, 0, 0, 1]]
    with pytest.raises(ValueError, match="an agent for ExecutionConfig cannot play agent_market"):
        EXECUTORS["twap"]().act(env)


def test_agents_of_executions_and_makers_do_what_they_say():
    """An even slice is 17 of 1,000 shares; slices are 0, 8, 17, 34 and 68."""
    config = {"max_ticks": 600, "ticks_per_step": 10}
    volume = {"tick": [20, 20, 20, 0], "flow": [[200, 0]] * 3 + [[0, 0]], "last_volume": [100, 210, 0, 0]}
    env = rows("execution", config, **volume)
    assert agents.VolumeSlices().act(env).tolist() == [[2, WAITS], [3, WAITS], [0, WAITS], [2, WAITS]]
    told = {name: EXECUTORS[name]().act(env)[0].tolist() for name in EXECUTORS if name not in ("vwap", "random")}
    assert told == {"twap": [2, WAITS], "passive": [0, JOINS], "improving": [0, IMPROVES], "at_once": [4, WAITS]}
    config = {"max_ticks": 1_000, "distances": tuple(range(1, 41))}
    env = rows("market_making", config, shares=[100, 0], tick=[952, 0], doubled_mid=[2_000] * 2)
    assert FixedSpread(4).act(env).tolist() == [[4, 4]] * 2 and FixedSpread(50).act(env).tolist() == [[40, 40]] * 2
    features = env.state.features.clone()
    features[:, env.scenario.feature_names.index("volatility_32")] = 0.006
    env.rows = env.rows.replace(state=env.state.replace(features=features))
    # A variance of 36 over 48, 60 or 24 ticks: 10.6, 12.8 and 6.3 about the mid, less 17.3 or 8.6 for a quote held.
    assert agents.AvellanedaStoikov(aversion=0.01, decay=0.5).act(env).tolist() == [[28, 1], [13, 13]]
    assert agents.AvellanedaStoikov(aversion=0.01, decay=0.5, horizon=24).act(env).tolist() == [[15, 1], [6, 6]]


def test_pictures_show_what_was_played():
    """A book of quotes at 4 ticks from the mid, inventories, and shortfalls."""
    env, agent = made("market_making", 3), FixedSpread(4)
    figures = task_named("market_making").domain.pictures(env, {"fixed": agent, "wide": FixedSpread(32)}, 1)
    record, (axis, *_), tick = played(env, agent, seed=1), figures["book"].axes, env.scenario.config.price_tick
    # The last step is after the end of the episode.
    assert record.tick.tolist() == list(range(0, 41, 4)) and not np.isfinite(record.shares[-1]).any()
    record = record._replace(**{name: part[:-1] for name, part in record._asdict().items()})
    assert np.isfinite(record.shares).all() and (record.mid[1:] > record.quotes[1:, 0]).any()
    for line, ticks in zip(axis.lines, (record.mid, *record.quotes.T), strict=True):
        assert line.get_ydata().tolist() == pytest.approx((ticks * tick).tolist(), nan_ok=True)
    held = figures["inventory"].axes[0].lines
    assert [line.get_label() for line in held] == ["fixed", "wide"]
    assert held[0].get_ydata().tolist() == np.median(record.shares, axis=1).tolist()
    env, executors = made("execution", 4), {name: EXECUTORS[name]() for name in ("twap", "passive")}
    lines = task_named("execution").domain.pictures(env, executors, 1)["shortfall"].axes[0].lines
    upright = np.array([line.get_xdata()[0] for line in lines if len(set(line.get_xdata())) == 1])
    for agent in executors.values():
        played(env, agent, seed=1)
        assert np.abs(upright - np.median(env.info()["shortfall"].numpy())).min() < 1e-9


OF_ALL = ("initial_cash", "max_ticks", "ticks_per_step", "reward_scale", "grade_scale", "room", "slots", "price_tick")
OF_TRADING = {
    **dict.fromkeys(("order_size", "max_position", "warm_up_ticks", "drawdown_weight"), -1),
    **dict.fromkeys(("cost_per_share", "sharpe_weight", "volatility", "fair_noise"), -1.0),
    **{"sizes": (0.5, 1.5), "distances": (), "mean_price": 2**25, "initial_cash": math.nan, "maker_latency": 9},
    **{"levels": 65, "spread_alpha": 1.1, "num_makers": 1.5, "news_seconds": 2.0**31, "max_orders": 1, "seats": 65},
    **{"num_noise": 2**20, "min_quote": 2**25, "shock_rate": math.inf, "max_ticks": 2**23},
}
OF_EXECUTION = {"parent_size": 0, "passive_slices": -1.0, "left_cost": -1.0, "slices": (1.0,), "room": 0}
OF_MAKERS = {"quote_size": 600, "max_inventory": 0, "distances": (0, 1), "inventory_weight": -1.0, "room": 0}
WRONG = [
    *((TradingConfig, {name: 0}) for name in OF_ALL),
    *((TradingConfig, {name: value}) for name, value in OF_TRADING.items()),
    *((ExecutionConfig, {name: value}) for name, value in OF_EXECUTION.items()),
    *((MarketMakingConfig, {name: value}) for name, value in OF_MAKERS.items()),
    (ExecutionConfig, {"slices": (0.0, -1.0)}),
    # Money and shares beyond what the account and the book count.
    *((kind, {"initial_cash": 6e16}) for kind in (TradingConfig, ExecutionConfig, MarketMakingConfig)),
    (ExecutionConfig, {"price_tick": 1e-300}),
    *((kind, {name: 10**9}) for kind, name in ((ExecutionConfig, "parent_size"), (TradingConfig, "order_size"))),
    (TradingConfig, {"max_ticks": 7, "ticks_per_step": 2}),
    (TradingConfig, {"num_value": 600, "value_seconds": 1.0}),
]


def test_settings_are_these_and_invalid_ones_named():
    words = {"num_noise": "agents together", "num_value": "at most 500 agents"}
    for config, changes in WRONG:
        name = next(iter(changes))
        with pytest.raises(ValueError, match=words.get(name, name)):
            config(**changes)
    TradingConfig(room=2**12, slots=256, levels=64, spread_alpha=1.0, maker_latency=8, seats=64, max_orders=64)
    TradingConfig(num_noise=2**20 - 116, max_orders=2, sizes=(1.0,), drawdown_weight=0.0, warm_up_ticks=0)
    assert TradingConfig(warm_up_ticks=0).warm_up == 65 and TradingConfig(candle_ticks=2).warm_up == 130
    assert ExecutionConfig(left_cost=0.0, slices=(0.0, 1.0)).even_slice == 17
    assert MarketMakingConfig(quote_size=500, inventory_weight=0.0).num_steps == 200
    names = TradingConfig().inapplicable()
    assert names["sizes"] == "action limit" and names["sharpe_weight"] == "reward risk_adjusted"
    assert "sizes" not in TradingConfig(action="limit").inapplicable()
    assert "sharpe_weight" not in TradingConfig(reward="risk_adjusted").inapplicable()
    # Without options they are these; those of the market are where its numbers are.
    names = BackgroundConfig.__dataclass_fields__.keys()
    common = (1, 1_000_000.0)
    seat = (100, True, False, "scaled", 4)
    for kind, own in (
        (TradingConfig, (10_000, 1, *seat, "discrete", 100, 500, (-1, 0, 1, 2, 5, 10), (0.25, 0.5, 1.0), "equity",
                         None, 0.1, 0.0, 0.0, 0.01)),
        (ExecutionConfig, (600, 10, *seat, 1_000, "random", (0.0, 0.5, 1.0, 2.0, 4.0), 2.0, 20.0, 0.1, 2.0)),
        (MarketMakingConfig, (1_000, 5, *seat, 100, 500, (1, 2, 4, 8, 16, 32), 1e-5, 0.01, 500.0)),
    ):  # fmt: skip
        config = kind()
        assert tuple(getattr(config, name) for name in kind.__dataclass_fields__ if name not in names) == common + own
    for name in ("agent_market", "execution", "market_making"):
        task = task_named(name)
        spoken = task.text_config()
        assert (spoken.max_ticks, spoken.ticks_per_step, spoken.candle_ticks) == (600, 30, 10)
        assert task.spoken(spoken).depth and not spoken.depth
