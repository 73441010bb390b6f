"""A backtest is the engine with one row: the account in plain Python, trades that add up, reasons that hold."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import vecenv
from tests.tasks.stock_trading.oracle import Account, Rules
from tests.tasks.stock_trading.test_stock_trading_oracle import LONGEST, Case
from tests.tasks.tiers.random_markets import oracle_market
from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Random
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.backtest.result import Backtest, backtested, played
from vecenv.tasks.stock_trading.agents import BASELINES
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.decisions import REASONS, decisions
from vecenv.tasks.stock_trading.task import STOCK_TRADING


class Given:
    """Plays given actions. Shape: (T, A)."""

    def __init__(self, actions: torch.Tensor) -> None:
        self.actions = actions

    def act(self, env: VecEnv) -> torch.Tensor:
        return self.actions[env.elapsed]


def ticks(amounts: pd.Series | pd.DataFrame, tape: MarketTape) -> np.ndarray:
    return (amounts / tape.tick_size).round().to_numpy(np.int64)


def played_case(seed: int) -> tuple[Case, VecEnv, Given, Account]:
    case = Case(seed, 1)
    if seed % 2 and case.rules["shorting"]:
        # Positions that may be opened are soon called.
        case.rules |= {"initial_margin": 0.0, "maintenance_margin": 1.0, "initial_cash": 1e4, "hmax": 1000}
    gate = "turbulence" if case.gate else "none"
    fixed = {"random_start": False, "episode_length": LONGEST, "features": case.tape.feature_names, "gate": gate}
    config = StockTradingConfig(**case.rules | fixed)
    env = VecEnv(STOCK_TRADING.build(case.tape, config), 1, compiled=False)
    account = Account(Rules(gate=case.gate, **case.rules), oracle_market(case.tape), 0, LONGEST)
    return case, env, Given(torch.from_numpy(case.actions[:, 0])), account


def test_every_number_is_that_of_the_account_in_plain_python():
    """Over random rules, markets and actions; trades are changes of holdings, and add up to the cash in ticks."""
    reasons: set[str] = set()
    for seed in range(50):
        case, env, agent, account = played_case(seed)
        found = backtested(env, {"given": agent})
        tape, config = case.tape, env.scenario.config
        told = [(account.value, account.cash, account.holdings)]
        paid = []
        for action in case.actions[:, 0].tolist():
            if account.terminated or account.truncated:
                break
            account.step(action)
            told.append((account.value, account.cash, list(account.holdings)))
            paid.append((account.traded, account.costs))
        values, cash, holdings = (np.array(column) for column in zip(*told, strict=True))
        np.testing.assert_array_equal(ticks(found.daily["value"], tape), values)
        np.testing.assert_array_equal(ticks(found.daily["cash"], tape), cash)
        np.testing.assert_array_equal(found.holdings.to_numpy(), holdings)
        assert list(found.daily.index) == list(pd.to_datetime(tape.dates[: len(values)]))
        late = int(config.fill == "next_open")
        of_orders = found.daily[["traded", "costs"]].iloc[late : len(paid) + late]
        np.testing.assert_array_equal(ticks(of_orders, tape), np.array(paid).reshape(-1, 2))
        check_trades(found, tape, np.diff(cash), np.diff(holdings, axis=0), np.array([cost for _, cost in paid]), late)
        check_orders(found, np.diff(holdings, axis=0), tape)
        reasons |= set(found.orders["reason"])
    assert reasons == {"", *REASONS}


def check_trades(found: Backtest, tape: MarketTape, cash, shares, costs, late: int) -> None:
    """Trades of each day give the change of cash, but for fees of shorts, which are costs beside theirs."""
    trades = found.trades
    flows = {name: np.zeros(len(cash), np.int64) for name in ("cash", "commission", "slippage")}
    day = np.searchsorted(found.daily.index, trades["date"]) - late
    for name, flow in flows.items():
        np.add.at(flow, day, ticks(trades[name], tape))
    fees = costs - flows["commission"] - flows["slippage"]
    np.testing.assert_array_equal(flows["cash"] - fees, cash)
    assert (fees >= 0).all() and (found.told["config"]["shorting"] or not fees.any())
    changed = np.zeros_like(shares)
    np.add.at(changed, (day, [tape.symbols.index(name) for name in trades["symbol"]]), trades["shares"])
    np.testing.assert_array_equal(changed, shares)
    value = trades["shares"].abs().to_numpy() * ticks(trades["price"], tape)
    assert (ticks(trades["value"], tape) == value).all() and (trades["commission"] >= 0).all()


def check_orders(found: Backtest, shares, tape: MarketTape) -> None:
    orders = found.orders
    filled = np.zeros_like(shares)
    day = np.searchsorted(found.daily.index, orders["date"])
    np.add.at(filled, (day, [tape.symbols.index(name) for name in orders["symbol"]]), orders["filled"])
    np.testing.assert_array_equal(filled, shares)
    cut = orders["filled"] != orders["wanted"]
    assert (orders.loc[cut, "reason"] != "").all()
    assert set(orders.loc[~cut, "reason"]) <= {"", "limit", "stop_loss", "gate", "margin_call"}
    assert (orders.loc[orders["reason"] == "cash", "filled"] >= 0).all()
    assert (orders.loc[orders["reason"] == "not_tradable", "filled"] == 0).all()


def test_what_one_day_orders_is_what_the_backtest_orders_on_it():
    """Alone, without the later days, and from a market that ends on the day: no later bar is read."""
    for seed in (3, 8, 10, 16):
        case, env, agent, _ = played_case(seed)
        account = played(env, agent)
        every = decisions(env, account.states[:-1], account.actions, torch.zeros(len(account.actions), dtype=int))
        for day in range(len(account.actions)):
            state, action = account.states[day : day + 1], account.actions[day : day + 1]
            ohlcv = case.tape.ohlcv.clone()
            ohlcv[:, day + 1 + (env.scenario.config.fill == "next_open") :] = 1.0
            scenario = STOCK_TRADING.build(replace(case.tape, ohlcv=ohlcv), env.scenario.config)
            blind = VecEnv(scenario, 1, compiled=False)
            for other in (env, blind):
                made = decisions(other, state, action, torch.zeros(1, dtype=int))
                for name in ("wanted", "order"):
                    assert torch.equal(getattr(made, name)[0], getattr(every, name)[day]), (seed, day, name)
                assert torch.equal(made.fills.holdings[0], account.states.holdings[day + 1])


def daily_tape(days: int, symbols: int, tick: float | None = None) -> MarketTape:
    names = tuple(f"S{number}" for number in range(symbols))
    return MarketTape.from_bars(synthetic_bars(1, days, names, seed=2), ("rsi_14",), tick_size=tick)


def env_on(tape: MarketTape, **rules) -> VecEnv:
    length = tape.num_days - tape.first_day - 1
    given = {"features": ("rsi_14",), "action": "weights", "random_start": False, "episode_length": length}
    return VecEnv(STOCK_TRADING.build(tape, StockTradingConfig(**given | rules)), 1, compiled=False)


def test_figures_are_those_of_the_days():
    tape = daily_tape(400, 4)
    env = env_on(tape)
    agents = {"random": Random(), "buy_and_hold": BASELINES["buy_and_hold"]()}
    found = backtested(env, agents, trained_until=str(tape.dates[200]))
    value, returns = found.daily["value"], found.returns
    assert isinstance(returns.index, pd.DatetimeIndex) and returns.name == "random" and not returns.isna().any()
    np.testing.assert_allclose(returns, value.pct_change().iloc[1:], atol=1e-12)
    total = value.iloc[-1] / value.iloc[0] - 1
    np.testing.assert_allclose((1 + found.monthly["total"]).prod() - 1, total)
    np.testing.assert_allclose((1 + found.monthly.drop(columns="total").stack()).prod() - 1, total)
    march = returns[(returns.index.year == found.monthly.index[1]) & (returns.index.month == 3)]
    np.testing.assert_allclose(found.monthly.loc[found.monthly.index[1], 3], (1 + march).prod() - 1)
    np.testing.assert_allclose(found.daily["drawdown"], 1 - value / value.cummax(), atol=1e-12)
    np.testing.assert_allclose(found.daily["exposure"], 1 - found.daily["cash"] / value, atol=1e-12)
    own, year = found.summary["random"], tape.periods_per_year
    np.testing.assert_allclose(own["cumulative_return"], total)
    np.testing.assert_allclose(own["annual_return"], (1 + total) ** (year / len(returns)) - 1)
    np.testing.assert_allclose(own["volatility"], returns.std() * year**0.5)
    np.testing.assert_allclose(own["sharpe"], returns.mean() / returns.std() * year**0.5)
    np.testing.assert_allclose(own["costs"], found.daily["costs"].sum())
    np.testing.assert_allclose(own["costs"], found.trades[["commission", "slippage"]].sum().sum())
    # Where part of the days is after the training, they alone are judged.
    (verdict,) = found.verdicts
    apart = np.log1p(returns) - np.log1p(found.daily["buy_and_hold"].pct_change().iloc[1:])
    assert verdict.part == f"after {tape.dates[200]}" and verdict.benchmark == "buy_and_hold"
    np.testing.assert_allclose(verdict.difference.mean, apart[apart.index > str(tape.dates[200])].sum())
    assert verdict.difference.low < verdict.difference.mean < verdict.difference.high
    later = returns[returns.index > pd.Timestamp(tape.dates[200])]
    unseen = found.unseen["random"]
    assert unseen["days"] == len(later) == 199 and own["days"] == len(returns)
    np.testing.assert_allclose(unseen["cumulative_return"], (1 + later).prod() - 1)
    np.testing.assert_allclose(unseen["costs"], found.daily["costs"].iloc[-200:].sum())
    worst = returns.nsmallest(10)
    np.testing.assert_array_equal(found.worst["random"], worst)
    closes = tape.ohlcv[0, :, :, 3].double().numpy()[tape.first_day :]
    place = found.daily.index.get_loc(worst.index[0])
    gain = found.holdings.iloc[place] * (closes[place] - closes[place - 1])
    assert found.worst["most_lost"].iloc[0].startswith(f"{gain.idxmin()} {gain.min():,.0f}")
    # A training that ended before the first day, or after the last one, parts nothing.
    for day, told in (("1990-01-01", None), ("2100-01-01", "2100-01-01")):
        other = backtested(env, agents, trained_until=day)
        assert other.unseen is None and other.trained_until == told
        np.testing.assert_allclose(other.verdicts[0].difference.mean, apart.sum())
    # What chose the policy is no test either: then the days after it are judged alone.
    chosen = backtested(env, agents, trained_until=str(tape.dates[200]), chosen_until=str(tape.dates[300]))
    pd.testing.assert_frame_equal(chosen.unseen, found.unseen)
    assert chosen.apart[0] == str(tape.dates[300]) and chosen.test.loc["days", "random"] == 99
    np.testing.assert_allclose(chosen.verdicts[0].difference.mean, apart[apart.index > str(tape.dates[300])].sum())
    with pytest.raises(ValueError, match="a backtest has one account, got 2 rows"):
        backtested(VecEnv(env.scenario, 2, compiled=False), agents)
    tier = vecenv.make("single_stock", market="synthetic", compile=False)
    with pytest.raises(ValueError, match="task 'single_stock' is not on the account of stock_trading"):
        backtested(tier, agents)


def test_vectorbt_has_the_same_account_to_the_cent():
    """Ten years of thirty symbols: orders at the close, whole shares, commissions, cash that all share."""
    vectorbt = pytest.importorskip("vectorbt")
    # So fine a tick that commissions rounded up to it stay below a cent in ten years.
    tape = daily_tape(2520 + 28, 30, tick=1e-6)
    env = env_on(tape, initial_cash=100_000.0)
    assert tape.num_days - tape.first_day >= 2520
    found = backtested(env, {"random": Random()})
    prices = tape.price_ticks()[0, tape.first_day :].double().numpy() * tape.tick_size
    closes = pd.DataFrame(prices, found.daily.index, list(tape.symbols))
    size = found.holdings.diff().shift(-1).where(lambda shares: shares != 0)
    account = vectorbt.Portfolio.from_orders(
        closes, size, fees=0.001, init_cash=100_000.0, group_by=True, cash_sharing=True, call_seq="auto"
    )
    # The row of a day is the account before its orders; vectorbt's is the one after them.
    held = account.assets().shift(1, fill_value=0.0)
    pd.testing.assert_frame_equal(held, found.holdings.astype(float), check_names=False)
    cash = account.cash().shift(1, fill_value=100_000.0)
    assert len(found.trades) > 50_000
    assert (cash - found.daily["cash"]).abs().max() < 0.01
    assert (cash + (held * closes).sum(axis=1) - found.daily["value"]).abs().max() < 0.01
    costs = account.orders.records["fees"].sum()
    assert abs(costs - found.summary.loc["costs", "random"]) < 0.01
