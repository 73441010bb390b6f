"""What a backtest finds, as tables: the account by date, orders, trades, months, and figures beside benchmarks.

Money is in currency: a whole number of ticks times the tick, so that `round(amount / tick_size)` is the engine's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import with_leaves
from vecenv.finance.metrics import EpisodeCurves, drawdowns, episode_metrics, independent_groups, sums_interval
from vecenv.learn.evaluation import Agent
from vecenv.learn.verdict import Verdict
from vecenv.market.bars import CLOSE
from vecenv.tasks.backtest.account import put_state
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.decisions import decisions, order_table, scenario_of
from vecenv.tasks.stock_trading.law import Decision, StockState


class Played(NamedTuple):
    """An account from its first day to its last: T decisions.

    Attributes:
        states: at the closes, before the orders of each day. Batch: (T + 1,).
        actions: Shape: (T, A).
    """

    states: StockState
    actions: Tensor


@torch.no_grad()
def played(env: VecEnv, agent: Agent, seed: int = 0, start: Mapping[str, Tensor] | None = None) -> Played:
    """Play the first episode of the only row under a seed, by the engine, to its end.

    ``start`` are fields of the first state by name that are others than the rules have them.
    """
    env.reset_first(seed)
    if start is not None:
        put_state(env, start, env.elapsed)
    # Tensors, as each step makes new ones, and a tensorclass costs as much as a step.
    seen, actions = [env.held.tensors], []
    while not bool(env.ended.all()):
        action = agent.act(env)
        env.advance(action, eager=not env.compiled)
        seen.append(env.held.tensors)
        actions.append(action)
    rows = with_leaves(env.row_form, [torch.cat(column) for column in zip(*seen, strict=True)], [len(seen)])
    return Played(rows.state, torch.cat(actions))


@dataclass(frozen=True)
class Backtest:
    """A dated backtest. Frames by date have a `DatetimeIndex`; money is in currency, shares of money are fractions.

    Attributes:
        agent: name of what traded.
        daily: the account at each close, before the orders of that close: ``value``, ``return`` since the close before
            (NaN on the first day), ``cash``, ``exposure`` (invested share of the value), ``drawdown`` (loss since the
            peak); ``traded`` and ``costs`` of the orders that were decided at that close (0 on the last day); and the
            value of each benchmark, by its name.
        holdings: shares at each close, before its orders, a column for each symbol.
        trades: changes of holdings, a row each, in their order: ``date`` of the fill, ``symbol``, ``shares`` (positive
            to buy), ``price`` paid or received with slippage (and with commission where that differs by symbol),
            ``value``, ``commission``, ``slippage``, and ``cash``, the change of cash. The commission of a day is
            rounded as a whole; here it is shared among the day's trades by value.
        orders: as of `vecenv.tasks.stock_trading.decisions.order_table`.
        monthly: returns by ``year``, with columns 1 to 12, and in ``total``.
        summary: figures by agent, see `summarised`.
        unseen: the same of the days after the last one that the policy was trained on; None where it saw none.
        test: the same of the days after the last one of the validation that chose the policy; None without them.
        worst: the ten days with the lowest return, the worst first: returns by agent, and the symbols that lost most.
        told: task, rules, market, capital and seed, JSON-able.
        verdicts: on the agent beside each benchmark, by the days of ``test``, else of ``unseen``, else by all.
        notes: what is to be known of this backtest, in sentences.
        trained_until: last day that the policy was trained on, None where it saw none.
        chosen_until: last day of the validation that chose the policy, None where that has none of these days.
        handovers: days at whose close another policy took the account over.
    """

    agent: str
    daily: pd.DataFrame
    holdings: pd.DataFrame
    trades: pd.DataFrame
    orders: pd.DataFrame
    monthly: pd.DataFrame
    summary: pd.DataFrame
    unseen: pd.DataFrame | None
    test: pd.DataFrame | None
    worst: pd.DataFrame
    told: Mapping[str, Any] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()
    trained_until: str | None = None
    chosen_until: str | None = None
    handovers: tuple[str, ...] = ()

    @property
    def returns(self) -> pd.Series:
        """Simple daily returns, as quantstats and pyfolio take them."""
        return self.daily["return"].iloc[1:].rename(self.agent)

    @property
    def benchmarks(self) -> list[str]:
        """Names of the benchmarks' columns."""
        return [name for name in self.summary.columns if name != self.agent]

    @property
    def apart(self) -> tuple[str, pd.DataFrame] | None:
        """What the policy has not seen: the day before it, and figures, of the test where that is known."""
        if self.test is not None:
            assert self.chosen_until is not None
            return self.chosen_until, self.test
        return None if self.unseen is None or self.trained_until is None else (self.trained_until, self.unseen)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables that are written, by the names of their files."""
        by_date = {"daily": self.daily, "holdings": self.holdings}
        found = {name: table.reset_index() for name, table in by_date.items()}
        return {**found, "trades": self.trades, "orders": self.orders, "monthly": self.monthly.reset_index()}


def backtested(
    env: VecEnv,
    agents: Mapping[str, Agent],
    seed: int = 0,
    trained_until: str | None = None,
    notes: tuple[str, ...] = (),
    told: Mapping[str, Any] | None = None,
    chosen_until: str | None = None,
) -> Backtest:
    """Play the account of an environment's only row with each agent, and tell of the first one beside the others.

    Raises:
        ValueError: the environment has several rows, or is not on the account of stock trading.
    """
    length = scenario_of(env).config.episode_length
    if env.num_envs != 1:
        raise ValueError(f"a backtest has one account, got {env.num_envs} rows")
    env.expect(length * len(agents))
    accounts = {name: played(env, agent, seed) for name, agent in agents.items()}
    return found_of(env, accounts, seed, trained_until, notes, told, chosen_until)


@torch.no_grad()
def found_of(
    env: VecEnv,
    accounts: Mapping[str, Played],
    seed: int = 0,
    trained_until: str | None = None,
    notes: tuple[str, ...] = (),
    told: Mapping[str, Any] | None = None,
    chosen_until: str | None = None,
) -> Backtest:
    """Tell of the first of accounts that were played on the days of an environment beside the others."""
    scenario, tape = scenario_of(env), scenario_of(env).tape
    name, own = next(iter(accounts.items()))
    made = decisions(env, own.states[:-1], own.actions, torch.zeros(len(own.actions), dtype=torch.int64))
    days = own.states.day.cpu().numpy()
    dates = pd.DatetimeIndex(tape.dates[days].astype("datetime64[ns]"), name="date")
    curves = _curves(list(accounts.values()), tape.tick_size, tape.periods_per_year)
    daily = _daily(own, curves, tape.tick_size, dates, scenario.config.fill == "next_open")
    for place, other in enumerate(list(accounts)[1:], 1):
        daily[other] = curves.equity[: len(days), place].numpy()
    shares = own.states.holdings.double().numpy()
    kind = np.int64 if scenario.config.whole_shares else np.float64
    holdings = pd.DataFrame(shares.astype(kind), dates, list(tape.symbols))
    trades = _trades(own, made, dates, list(tape.symbols), tape.tick_size, scenario.config)
    later, test = (None if day is None else dates[1:] > pd.Timestamp(day) for day in (trained_until, chosen_until))
    prices = tape.ohlcv[own.states.path, own.states.day, :, CLOSE].double().numpy()
    paid = np.diff(shares, axis=0) * made.prices.fill.double().numpy() * tape.tick_size
    gain = np.diff(shares * prices, axis=0) - paid
    parts = {"test": (test, chosen_until), "unseen": (later, trained_until)}
    parts = {name: (counted, day) for name, (counted, day) in parts.items() if _parts(counted)}
    judged_on, after = next(iter(parts.values()), (None, None))
    figures = {
        part: summarised(list(accounts), curves, accounts, tape.tick_size, counted)
        for part, (counted, _) in parts.items()
    }
    return Backtest(
        agent=name,
        daily=daily,
        holdings=holdings,
        trades=trades,
        orders=order_table(env, own.states[:-1], own.actions, made).reset_index(drop=True),
        monthly=_monthly(daily["return"].iloc[1:]),
        summary=summarised(list(accounts), curves, accounts, tape.tick_size),
        unseen=figures.get("unseen"),
        test=figures.get("test"),
        worst=_worst(daily, curves, list(accounts), gain, list(tape.symbols)),
        told={**scenario.metadata(), "adjusted": tape.adjusted, "seed": seed, **(told or {})},
        verdicts=judged(list(accounts), curves, judged_on, f"after {after}" if after else "all days"),
        notes=notes,
        trained_until=trained_until if later is not None and not later.all() else None,
        chosen_until=chosen_until if test is not None and not test.all() else None,
    )


def judged(names: list[str], curves: EpisodeCurves, counted: np.ndarray | None, part: str) -> tuple[Verdict, ...]:
    """Return the verdicts on the first account beside the others, by its log-return above theirs on the counted days.

    Intervals are over blocks of days, as those of evaluations: one account has no other episodes. Shape: (T,), bool.
    """
    growth = curves.log_growth.diff(dim=0)
    growth = growth if counted is None else growth[: len(counted)][torch.from_numpy(counted.copy())]
    start, lived = torch.zeros(1, dtype=torch.int64), torch.ones(len(growth), 1, dtype=torch.bool)
    groups = independent_groups(start, start, len(growth))
    return tuple(
        Verdict(names[0], name, part, None, "excess_log_return", sums_interval(above.unsqueeze(1), lived, groups))
        for name, above in zip(names[1:], (growth[:, :1] - growth[:, 1:]).T, strict=True)
    )


def _parts(later: np.ndarray | None) -> bool:
    """Whether some days are after the training, and some not."""
    return later is not None and bool(later.any()) and not bool(later.all())


def _curves(accounts: list[Played], tick: float, year: float) -> EpisodeCurves:
    """Return the curves of accounts; one that ends early stays as it is. Shapes: (T + 1, N)."""
    most = max(len(account.actions) for account in accounts)

    def column(account: Played, name: str) -> Tensor:
        values = getattr(account.states, name).double().cpu() * tick
        return torch.cat([values, values[-1:].expand(most + 1 - len(values))])

    equity, cash, traded = (
        torch.stack([column(account, name) for account in accounts], 1)
        for name in ("portfolio_value", "cash", "traded")
    )
    length = torch.tensor([len(account.actions) for account in accounts])
    lived = torch.arange(most)[:, None] < length
    return EpisodeCurves(equity, torch.where(lived, traded[1:], 0.0), cash, length, year)


def _daily(own: Played, curves: EpisodeCurves, tick: float, dates: pd.DatetimeIndex, late: bool) -> pd.DataFrame:
    days = len(dates)
    value = curves.equity[:days, 0]
    # The state after a step has what was traded in it: at the close before, or at the open of its day.
    paid = {name: getattr(own.states, name).double().numpy() * tick for name in ("traded", "costs")}
    paid = {name: values if late else np.append(values[1:], 0.0) for name, values in paid.items()}
    return pd.DataFrame(
        {
            "value": value.numpy(),
            "return": np.append(np.nan, curves.returns[: days - 1, 0].numpy()),
            "cash": curves.cash[:days, 0].numpy(),
            "exposure": curves.exposure[:days, 0].numpy(),
            "drawdown": drawdowns(value.unsqueeze(1))[:, 0].numpy(),
            **paid,
        },
        dates,
    )


def _trades(
    own: Played, made: Decision, dates: pd.DatetimeIndex, symbols: list[str], tick: float, config: StockTradingConfig
) -> pd.DataFrame:
    """Return the differences of the engine's holdings as trades."""
    change = own.states.holdings.double().diff(dim=0).numpy()
    day, symbol = np.nonzero(change)
    shares = change[day, symbol]
    fill, buy, sell = (getattr(made.prices, name).double().numpy()[day, symbol] for name in ("fill", "buy", "sell"))
    price = np.where(shares > 0, buy, sell)
    value = np.abs(shares) * price
    commission = shared_by_value(made.fills.commissions.double().numpy(), day, value, config.whole_shares)
    whole = np.int64 if config.whole_shares else np.float64
    return pd.DataFrame(
        {
            "date": dates[day + (config.fill == "next_open")],
            "symbol": np.array(symbols, dtype=object)[symbol],
            "shares": shares.astype(whole),
            "price": price * tick,
            "value": value * tick,
            "commission": commission * tick,
            "slippage": np.abs(shares) * np.abs(price - fill) * tick,
            "cash": (-shares * price - commission) * tick,
        }
    )


def shared_by_value(total: np.ndarray, day: np.ndarray, value: np.ndarray, whole: bool) -> np.ndarray:
    """Share each day's total among its trades by value, in whole ticks, so that the parts sum up to it. Shape: (M,)."""
    parts = np.zeros_like(value)
    for place in np.split(np.arange(len(day)), np.flatnonzero(np.diff(day)) + 1):
        so_far = value[place].cumsum()
        if len(place) and so_far[-1] > 0:
            upto = total[day[place[0]]] * (so_far / so_far[-1])
            parts[place] = np.diff(np.floor(upto) if whole else upto, prepend=0.0)
    return parts


def _monthly(returns: pd.Series) -> pd.DataFrame:
    """Return compound returns by year, with columns 1 to 12 and ``total``; NaN of months without a day."""
    growth = (1.0 + returns).groupby([returns.index.year, returns.index.month]).prod() - 1.0
    table = growth.unstack().reindex(columns=range(1, 13))
    table["total"] = (1.0 + returns).groupby(returns.index.year).prod() - 1.0
    table.index.name = "year"
    return table


def _worst(
    daily: pd.DataFrame, curves: EpisodeCurves, names: list[str], gain: np.ndarray, symbols: list[str], count: int = 10
) -> pd.DataFrame:
    """Return the days with the lowest returns; ``gain`` is that of each symbol by day, in currency. Shape: (T, K)."""
    returns = curves.returns[: len(daily) - 1].numpy()
    rows = np.argsort(returns[:, 0], kind="stable")[:count]
    rows = rows[returns[rows, 0] < 0]
    table = pd.DataFrame({name: returns[rows, place] for place, name in enumerate(names)}, daily.index[1:][rows])
    table["value"] = daily["value"].iloc[1:].to_numpy()[rows]
    lost = [[k for k in np.argsort(gain[row], kind="stable")[:3] if gain[row, k] < 0] for row in rows]
    table["most_lost"] = [
        ", ".join(f"{symbols[k]} {gain[row, k]:,.0f}" for k in places) for row, places in zip(rows, lost, strict=True)
    ]
    return table


def summarised(
    names: list[str],
    curves: EpisodeCurves,
    accounts: Mapping[str, Played],
    tick: float,
    counted: np.ndarray | None = None,
) -> pd.DataFrame:
    """Return figures of accounts, a column each, of all days or of those counted. Shape of those: (T,), bool.

    With n the days and y those of a year: ``annual_return`` is (1 + cumulative return)^(y/n) - 1, ``volatility`` the
    standard deviation of daily returns times √y, ``exposure`` the mean invested share, ``costs`` commissions, slippage
    and fees in currency, ``best_day`` and ``worst_day`` returns. The others are those of
    `vecenv.finance.metrics.episode_metrics`.
    """
    kept = torch.ones(len(curves.traded), dtype=torch.bool) if counted is None else torch.from_numpy(counted.copy())
    kept = torch.nn.functional.pad(kept, (0, len(curves.traded) - len(kept)))
    found = episode_metrics(curves, kept[:, None].expand_as(curves.lived))
    table = {}
    for place, name in enumerate(names):
        lived = kept & curves.lived[:, place]
        returns, days = curves.returns[lived, place], int(lived.sum())
        costs = accounts[name].states.costs.double().cpu()[1:] * tick
        table[name] = {
            "days": float(days),
            "final_value": float(curves.equity[1:][lived, place][-1]),
            "cumulative_return": float(found["cumulative_return"][place]),
            "annual_return": float((1.0 + found["cumulative_return"][place]) ** (curves.periods_per_year / days) - 1.0),
            "volatility": float(returns.std()) * curves.periods_per_year**0.5 if days > 1 else 0.0,
            **{metric: float(found[metric][place]) for metric in ("sharpe", "sortino", "max_drawdown", "cvar")},
            "best_day": float(returns.max()),
            "worst_day": float(returns.min()),
            "turnover": float(found["turnover"][place]),
            "exposure": 1.0 - float(found["cash_share"][place]),
            "costs": float(costs[lived[: len(costs)]].sum()),
        }
    return pd.DataFrame(table)
