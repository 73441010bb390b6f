"""What an agent's actions order on their days, and why less was filled than was wanted.

`decisions` is the one place where an action becomes orders outside the engine's step, by the step's own function:
a backtest asks it for all its days at once, and who orders today for one.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.tasks.stock_trading.law import Decision, StockState
from vecenv.tasks.stock_trading.scenario import StockTrading

REASONS = {
    "stop_loss": "the position has lost the share at which the rules sell it",
    "gate": "the gate's series is above its threshold: nothing is bought, all is sold",
    "margin_call": "cash is below the maintenance margin: all is closed",
    "not_tradable": "the symbol has no bar where the order would fill",
    "holdings": "no more was held",
    "margin": "cash did not cover the shorts, or the purchases beside them",
    "cash": "cash did not cover all purchases",
    "limit": "the largest order that the rules allow",
}
"""Why an order is not what the agent wanted, or could not be larger, and what that means."""


def scenario_of(env: VecEnv) -> StockTrading:
    """Return the rules of an environment on the account of stock trading; ValueError of another one."""
    if not isinstance(env.scenario, StockTrading):
        raise ValueError(f"task {env.scenario.name!r} has no dated backtest: it is not on the account of stock_trading")
    return env.scenario


@torch.no_grad()
def decisions(env: VecEnv, states: StockState, actions: Tensor) -> Decision:
    """Return what actions order in accounts on the accounts' days, and what is filled, by the engine's own function.

    Nothing later than the fill is read. Shapes: batch (B,), (B, A) -> batch (B,). All rows have the same parameters.
    """
    scenario = scenario_of(env)
    if scenario.varied:
        raise ValueError(f"decisions are of one account, but {', '.join(sorted(scenario.varied))} differ by row")
    made: Decision = env.engine.bound().mapped(
        lambda state, action, params, shared: scenario.decided(state, action, state.day, params, shared),
        states,
        actions,
    )
    return made


def order_table(env: VecEnv, states: StockState, actions: Tensor, made: Decision) -> pd.DataFrame:
    """Return a row for each order that was wanted or forced, by the date of the decision.

    Columns are ``date``, ``symbol``, ``action`` (the agent's number), ``held`` (shares before), ``wanted``, ``ordered``
    (after the rules) and ``filled`` (shares, positive to buy), ``price`` (before costs, in currency) and ``reason``,
    one of `REASONS`, empty where all that was wanted is filled.
    """
    tape, config = scenario_of(env).tape, scenario_of(env).config
    wanted, ordered = _numbers(made.wanted), _numbers(made.order)
    held = _numbers(states.holdings)
    filled = _numbers(made.fills.holdings) - held
    symbols = tape.num_symbols
    asked = _numbers(actions)[:, :symbols]
    less = filled != ordered
    conditions = {
        "margin": less & config.shorting,
        "holdings": less & (ordered < 0),
        "cash": less & (ordered > 0),
        "limit": (np.abs(asked) >= 1.0) & (ordered != 0) & (config.action == "shares"),
    }
    reason = np.select(list(conditions.values()), list(conditions), "")
    reason = np.where(~_numbers(made.tradable) & (wanted != 0), "not_tradable", reason)
    for name, where in made.forced.items():
        reason = np.where(_numbers(where) & (wanted != -held), name, reason)
    day, symbol = np.nonzero((wanted != 0) | (filled != 0))
    dates = tape.dates[_numbers(states.day)][day]
    whole = np.int64 if config.whole_shares else np.float64
    shares = {"held": held, "wanted": wanted, "ordered": ordered, "filled": filled}
    return pd.DataFrame(
        {
            "date": dates.astype("datetime64[ns]"),
            "symbol": np.array(tape.symbols, dtype=object)[symbol],
            "action": asked[day, symbol],
            **{name: values[day, symbol].astype(whole) for name, values in shares.items()},
            "price": _numbers(made.prices.fill)[day, symbol] * tape.tick_size,
            "reason": reason[day, symbol],
        }
    )


def _numbers(tensor: Tensor) -> np.ndarray:
    """Return a tensor's numbers; floats as float64, which holds whole shares and prices in ticks exactly."""
    return (tensor.double() if tensor.is_floating_point() else tensor).cpu().numpy()
