"""Observation vector of the tiers, and the action mask derived from it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from vecenv.tasks.tiers.layout import ACCOUNT_SIZE, PRICE_UNIT, VALUE_UNIT, Account
from vecenv.tasks.tiers.order_spaces import choice_mask
from vecenv.tasks.tiers.rules import Tensors, TierRules
from vecenv.tasks.tiers.state import TierState

TRADES_SCALE = 0.01
"""Scale of the daily trade limit in the observation."""


def observe(rules: TierRules, state: TierState, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
    """Return the account (16,), series of the market, its symbols (14 K,) and the positions (3 times K,)."""
    number = partial(rules.rule, state=state, params=params)
    row = state.path * rules.tape.num_days + state.day
    value = state.portfolio_value
    breadth = shared["breadth"][row].double()
    account = {
        "days_gone": (state.day - state.start_day).double(),
        "num_days": number("days"),
        "start_value": state.start_value * (rules.tape.tick_size / VALUE_UNIT),
        "total_return": value / state.start_value - 1.0,
        "cash": state.cash / value,
        "exposure": (value - state.cash) / value,
        "drawdown": 1.0 - value / state.peak_value,
        "losing_sells": state.losing_sells.double(),
        "gate_closed": torch.where(number("gate") > 0, breadth[0], 0.0),
        "share_down": breadth[1],
        "mean_change": breadth[2],
        "max_position": number("max_position"),
        "max_exposure": number("max_exposure"),
        "max_trades": number("max_trades") * TRADES_SCALE,
        "commission": number("commission"),
        "slippage": number("slippage"),
    }
    close = shared["close"][row]
    weight = state.holdings * close / value.to(torch.float32)
    average = state.average_price.to(torch.float32)
    gain = torch.where(state.holdings > 0, close / average.clamp(min=1e-9) - 1.0, 0.0)
    shown = shared["shown"][row]
    owned = rules.owned(state, params)
    if owned is not None:
        mask = owned.repeat_interleave(2 + len(rules.config.features))
        shown = shown * mask
    series = (shared["context"][row],) if rules.config.context else ()
    numbers = torch.stack([account[name] for name in Account._fields], dim=-1)
    return numbers.to(torch.float32), *series, shown, weight, gain, state.days_held


def allowed_choices(rules: TierRules, observation: Tensor) -> Tensor | None:
    """Return the mask of discrete choices that can have an effect, from the observation.

    Args:
        rules: of the tiers.
        observation: Shape: (B, D).

    Returns:
        In the layout of the components' logits, shape (B, sum of the choices), bool; None for other spaces.
    """
    if rules.config.action != "discrete":
        return None
    num_symbols = rules.tape.num_symbols
    start = ACCOUNT_SIZE + len(rules.config.context)
    width = 2 + len(rules.config.features)
    shown = observation[:, start : start + num_symbols * width].unflatten(-1, (num_symbols, width))
    weight = observation[:, start + num_symbols * width :][:, :num_symbols]
    number = {name: observation[:, index : index + 1] for index, name in enumerate(Account._fields)}
    value = number["start_value"] * (1.0 + number["total_return"])
    cash = number["cash"] * value * (VALUE_UNIT / PRICE_UNIT)
    unit_cost = 1.0 + number["commission"] + number["slippage"]
    return choice_mask(shown[..., 1], shown[..., 0], weight, cash, unit_cost, rules.config.max_orders)
