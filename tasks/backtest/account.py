"""The account of a person: holdings, checked against the market and the rules, and its state on a day."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from vecenv.core.env import VecEnv
from vecenv.market.tape import MarketTape
from vecenv.tasks.backtest.holdings import CASH, Holdings, check_whole
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.decisions import scenario_of

PART = 1e-3
"""Part of a tick by which cash may lie below a whole number of them, as floats in currency do."""


@dataclass(frozen=True)
class Account:
    """An account at the last close; money is in currency.

    Attributes:
        cash: amount.
        shares: of each symbol, negative of shorts.
        average_price: of purchases, slippage included, by symbol; where it is known.
        start_value: value on the tape's first tradable day, on which the account began with cash alone; None for an
            account that begins today.
    """

    cash: float
    shares: Mapping[str, float]
    average_price: Mapping[str, float]
    start_value: float | None = None

    def rules(self, config: StockTradingConfig, tape: MarketTape) -> StockTradingConfig:
        """Return the rules with the account's start: cash on an earlier day, or what is held today."""
        if self.start_value is not None:
            return replace(config, initial_cash=self.start_value, initial_holdings=0.0)
        held = tuple(self.shares.get(name, 0.0) for name in tape.symbols)
        # A start has a tick of cash at least; the state has what there is.
        return replace(config, initial_cash=max(self.cash, tape.tick_size), initial_holdings=held)


def checked_account(
    given: Holdings, cash: float | None, start_value: float | None, tape: MarketTape, config: StockTradingConfig
) -> Account:
    """Check holdings against the market and the rules; ``cash`` is what is known of it beside them.

    Raises:
        ValueError: the cash is told twice, or a debt, a symbol is unknown, a price that the rules need is missing,
            shorts are not allowed, or the currency is not that of the prices.
    """
    where, shares, average = given.where, dict(given.shares), given.average_price
    if other := [code for code in given.currencies if code != tape.currency]:
        known = "unknown: give --currency" if tape.currency is None else tape.currency
        raise ValueError(f"{where}: is in {', '.join(other)}, but the currency of the prices is {known}")
    if CASH in shares and CASH not in tape.symbols:
        if cash is not None:
            raise ValueError(f"{where}: has a row {CASH}, and --cash is given too: one of them says what cash there is")
        cash = shares.pop(CASH)
    if cash is None:
        raise ValueError(f"{where}: {CASH} is a symbol of {tape.source}: give --cash")
    if cash < 0:
        raise ValueError(f"{where}: cash must not be negative, got {cash:g}")
    if unknown := [name for name in shares if name not in tape.symbols]:
        raise ValueError(
            f"{where}: {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} not among the {tape.num_symbols} "
            f"symbols that are traded of {tape.source}; leave such rows out to trade the rest as an account of its own"
        )
    # Of a symbol CASH too.
    check_whole(shares, where)
    for name, number in shares.items():
        if number < 0 and not config.shorting:
            raise ValueError(f"{where}: {name} has {number:,.0f} shares, but the rules have no short positions")
    lacking = [name for name, number in shares.items() if number > 0 and not average.get(name, 0.0) > 0]
    if config.stop_loss and lacking:
        raise ValueError(f"{where}: the stop-loss needs the average_price of {', '.join(lacking)}")
    return Account(cash, shares, average, start_value)


def put_state(env: VecEnv, changed: Mapping[str, torch.Tensor], elapsed: torch.Tensor) -> None:
    """Replace fields of the state of an environment's only row, in the episode that it has, after so many steps."""
    rows, state = env.rows, env.state
    fields = {name: getattr(state, name) for name in state.keys()}  # noqa: SIM118  # not a dict
    fields |= {name: values.to(fields[name].dtype) for name, values in changed.items()}
    placed, ended = type(state)(**fields, batch_size=[1]), torch.zeros_like(rows.ended)
    env.rows = type(rows)(state=placed, episode=rows.episode, elapsed=elapsed, ended=ended, batch_size=[1])


def place_account(env: VecEnv, account: Account) -> None:
    """Make an account the state of the environment's only row, on the last day of its tape.

    Raises:
        ValueError: it is worth too little to go on under the rules, or holds more than their orders can have bought.
    """
    scenario, tape = scenario_of(env), scenario_of(env).tape
    env.reset_first(int(env.seed_tensor))
    state = env.state
    last, today = torch.full_like(state.day, tape.num_days - 1), account.start_value is None
    held, paid = (
        torch.tensor([[known.get(name, 0.0) for name in tape.symbols]], dtype=torch.float64)
        for known in (account.shares, account.average_price)
    )
    cash = torch.tensor([math.floor(account.cash / tape.tick_size + PART)], dtype=torch.float64)
    value = cash + (held * scenario.shared["close"][tape.num_days - 1].double()).sum(-1)
    start = value if today else state.start_value.double()
    if float(value) <= float(start) * float(scenario.params["ruin_fraction"]):
        now, before = (f"{float(ticks) * tape.tick_size:,.2f}" for ticks in (value, start))
        raise ValueError(f"the account is worth {now}, of {before} at its start: the rules end it")
    most = scenario.max_holdings
    if most is not None and (more := [name for name, number in account.shares.items() if number > most]):
        raise ValueError(
            f"the account holds more of {', '.join(more)} than orders of at most hmax shares a day can have bought "
            "since its start: leave --start-value out, and it begins today"
        )
    changed = {"cash": cash, "holdings": held, "portfolio_value": value, "start_value": start, "day": last}
    changed |= {"start_day": last if today else state.start_day, "end_day": last}
    if scenario.config.stop_loss:
        changed["average_price"] = paid / tape.tick_size
    put_state(env, changed, last - changed["start_day"])
