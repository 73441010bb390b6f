"""Orders of today are those that the backtest gives on that day when it knows tomorrow: 250 days of 30 symbols."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from tests.tasks.commands.small_runs import TILTS, bars, made_run, settings_on
from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent, PolicyAgent
from vecenv.learn.policies import ActorPolicy, make_network
from vecenv.learn.settings.run import NetworkConfig
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.backtest import backtest, orders, todays_orders
from vecenv.tasks.backtest.account import Account, place_account
from vecenv.tasks.backtest.holdings import CASH
from vecenv.tasks.backtest.result import played
from vecenv.tasks.stock_trading import scenario as rules
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.decisions import decisions, order_table
from vecenv.tasks.stock_trading.task import STOCK_TRADING

DAYS, CAPITAL = 250, 100_000.0
FEATURES = ("rsi_14", "momentum_10")
COLUMNS = ["date", "symbol", "action", "held", "wanted", "ordered", "shares", "price", "reason"]
CASES = {
    "weights": {"action": "weights", "slippage": 0.001, "stop_loss": 0.05},
    "tilts": {"action": "tilt", "benchmark": "buy_and_hold"},
    "shares": {"action": "shares", "hmax": 25.0, "rationing": "by_size"},
}


def env_on(tape: MarketTape, config: StockTradingConfig) -> VecEnv:
    config = replace(config, random_start=False, episode_length=tape.num_days - tape.first_day - 1)
    return VecEnv(STOCK_TRADING.build(tape, config), 1, compiled=False)


def policy_on(env: VecEnv) -> Agent:
    """A policy whose actions differ by day and symbol: an untrained one's are almost the same."""
    network = make_network(env, NetworkConfig(hidden=(8,)))
    actor, _ = network.initial_parameters(torch.Generator().manual_seed(3), env.device)
    moments = [torch.zeros(network.moments_size), torch.ones(network.moments_size)]
    return PolicyAgent(
        ActorPolicy(
            network, moments, [6 * tensor if tensor.ndim == 2 else tensor for tensor in actor], deterministic=True
        )
    )


@pytest.fixture(scope="module")
def tapes() -> list[MarketTape]:
    """The tapes of a market that ends on its day d, for each d with a tradable day before it; the last is whole."""
    whole = synthetic_bars(1, DAYS + 29, tuple(f"S{number}" for number in range(30)), seed=2)
    full = MarketTape.from_bars(whole, FEATURES)
    cut = [
        replace(whole, dates=whole.dates[:days], ohlcv=whole.ohlcv[:, :days])
        for days in range(full.first_day + 2, full.num_days)
    ]
    return [*(MarketTape.from_bars(one, FEATURES) for one in cut), full]


def expected(env: VecEnv, agent: Agent) -> list[tuple[Account, pd.DataFrame]]:
    """Return the account and the orders of the backtest on each day."""
    account, tick = played(env, agent), env.scenario.tape.tick_size
    states = account.states[:-1]
    made = decisions(env, states, account.actions, torch.zeros(len(states), dtype=torch.int64))
    table = order_table(env, states, account.actions, made).rename(columns={"filled": "shares"})
    found = []
    for day in range(len(states)):
        amounts = [states.holdings[day], *([states.average_price[day] * tick] if env.scenario.config.stop_loss else [])]
        by_name = [dict(zip(env.scenario.tape.symbols, column.tolist(), strict=True)) for column in amounts]
        own = Account(float(states.cash[day]) * tick, by_name[0], by_name[-1], CAPITAL)
        found.append((own, table.loc[table.index == day, COLUMNS].reset_index(drop=True)))
    return found


def differing(days: list, config: StockTradingConfig, agent: Agent) -> int:
    """Return on how many days, each a tape and what the backtest did, today's orders are others than the backtest's."""
    count = 0
    for tape, (account, table) in days:
        env = env_on(tape, account.rules(config, tape))
        todays_orders.place_account(env, account)
        count += todays_orders.ordered(env, agent).orders[COLUMNS].values.tolist() != table.values.tolist()
    return count


@pytest.fixture(scope="module", params=CASES)
def case(request, tapes) -> tuple[list, StockTradingConfig, Agent]:
    """All days of some rules, their settings, and a policy."""
    config = StockTradingConfig(features=FEATURES, initial_cash=CAPITAL, **CASES[request.param])
    env = env_on(tapes[-1], config)
    agent = policy_on(env)
    # On the first day an episode has no day yet; on the last one the backtest orders nothing.
    days = [*zip(tapes[:-1], expected(env, agent)[1:], strict=True)]
    assert len(days) == DAYS and sum(len(table) for _, (_, table) in days) > 1000
    return days, config, agent


def test_todays_orders_are_those_of_the_backtest_on_all_days(case):
    """On each day by weights, on each tenth by the other actions."""
    days, config, agent = case
    assert differing(days[:: 1 if config.action == "weights" else 10], config, agent) == 0


def seen_a_day_late(monkeypatch) -> None:
    """The agent acts on what it sees of the day before; the orders are sized on the right one."""
    act = PolicyAgent.act

    def late(self, env):
        env.held.state.day.sub_(1)
        action = act(self, env)
        env.held.state.day.add_(1)
        return action

    monkeypatch.setattr(PolicyAgent, "act", late)


def stale_feature(monkeypatch) -> None:
    def stale(tape, config, dtype, made=rules.market_tensors):
        tensors = made(tape, config, dtype)
        tensors["features"][-1, :1] = tensors["features"][-2, :1]
        return tensors

    monkeypatch.setattr(rules, "market_tensors", stale)


def shares_as_lots(monkeypatch) -> None:
    def faulty(env, account):
        place_account(env, replace(account, shares={name: held // 10 for name, held in account.shares.items()}))

    monkeypatch.setattr(todays_orders, "place_account", faulty)


@pytest.mark.parametrize("plant", [seen_a_day_late, stale_feature, shares_as_lots])
def test_a_planted_fault_is_found(case, plant, monkeypatch):
    """Of a day, of one symbol's feature on the last day, and of the unit of shares: on most days."""
    days, config, agent = case
    plant(monkeypatch)
    assert differing(days[::25], config, agent) > 2


def test_a_run_orders_from_files_that_end_on_a_day_what_its_backtest_ordered(tmp_path):
    """Whole calls, on files that were cut before they are read; by default the account begins today."""
    table = bars(30, 120)
    table.to_parquet(tmp_path / "market.parquet")
    run = made_run(tmp_path / "run", settings_on(tmp_path, env=replace(TILTS, features=FEATURES)))
    found = backtest(run)
    for day in found.daily.index[[1, 40, 80, -2]]:
        table[table["date"] <= day].to_parquet(tmp_path / "cut.parquet")
        held = pd.DataFrame({"symbol": found.holdings.columns, "shares": found.holdings.loc[day]})
        held.to_csv(tmp_path / "account.csv", index=False)
        given = {"cash": found.daily["cash"][day], "today": day.date()}
        today = orders(run, tmp_path / "cut.parquet", tmp_path / "account.csv", start_value=1e6, **given)
        known = found.orders[found.orders["date"] == day].rename(columns={"filled": "shares"})
        assert today.orders[COLUMNS].equals(known[COLUMNS].reset_index(drop=True)) and len(known) > 20
        # What would be held is what the backtest held on the next day, and its costs are those of the day.
        after, following = today.after.set_index("symbol"), found.daily.index.get_loc(day) + 1
        assert (after["shares"].drop(CASH) == found.holdings.iloc[following]).all()
        assert after["value"][CASH] == pytest.approx(found.daily["cash"].iloc[following])
        assert after["weight"].sum() == pytest.approx(1) and today.value == found.daily["value"][day]
        costs = today.orders[["commission", "slippage"]].sum().sum()
        assert costs == pytest.approx(found.daily["costs"][day])
        began = orders(run, tmp_path / "cut.parquet", held, **given).told["account"]
        assert began == {"start": str(day.date()), "start_value": today.value, "cash": pytest.approx(given["cash"])}
