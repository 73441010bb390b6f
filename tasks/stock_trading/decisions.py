"""What an agent's actions order on their days, and why less was filled than was wanted.

`decisions` is the one place where an action becomes orders outside the engine's step, by the step's own function:
a backtest asks it for all its days at once, a record for those of a step.
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
        raise ValueError(f"task {env.scenario.name!r} is not on the account of stock_trading")
    return env.scenario


@torch.no_grad()
def decisions(env: VecEnv, states: StockState, actions: Tensor, ids: Tensor) -> Decision:
    """Return what actions order in accounts on the accounts' days, and what is filled, by the engine's own function.

    Nothing later than the fill is read. ``ids`` are the rows of the environment whose parameters the accounts have.
    Shapes: batch (B,), (B, A), (B,) -> batch (B,).
    """
    scenario = scenario_of(env)
    made: Decision = (
        env.engine.bound()
        .of_rows(ids)
        .mapped(
            lambda state, action, params, shared: scenario.decided(state, action, state.day, params, shared),
            states,
            actions,
        )
    )
    return made


def order_table(env: VecEnv, states: StockState, actions: Tensor, made: Decision) -> pd.DataFrame:
    """Return a row for each order that was wanted or forced, in the order of the accounts, whose number is the index.

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
    row, symbol = np.nonzero((wanted != 0) | (filled != 0))
    dates = tape.dates[_numbers(states.day)][row]
    whole = np.int64 if config.whole_shares else np.float64
    shares = {"held": held, "wanted": wanted, "ordered": ordered, "filled": filled}
    return pd.DataFrame(
        {
            "date": dates.astype("datetime64[ns]"),
            "symbol": np.array(tape.symbols, dtype=object)[symbol],
            "action": asked[row, symbol],
            **{name: values[row, symbol].astype(whole) for name, values in shares.items()},
            "price": _numbers(made.prices.fill)[row, symbol] * tape.tick_size,
            "reason": reason[row, symbol],
        },
        row,
    )


def _numbers(tensor: Tensor) -> np.ndarray:
    """Return a tensor's numbers; floats as float64, which holds whole shares and prices in ticks exactly."""
    return (tensor.double() if tensor.is_floating_point() else tensor).cpu().numpy()
