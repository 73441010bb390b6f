"""Reward of the trading tiers: weighted sum of named components."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vecenv.tasks.tiers.law import CAPACITY_STEPS, ORDER_COUNTS, Execution, Limits, OrderList, TierState

HOLD_COUNTS = ("loss_hold", "missed_opportunity")
"""Components that count days without an executed order."""

COMPONENTS = (
    "profit",
    *HOLD_COUNTS,
    "patience",
    *ORDER_COUNTS,
    "long_holding",
    "within_limits",
    "invalid",
    "valid",
    "counterfactual",
    "episode",
    "grade_change",
)
"""Components in storage order; ``tasks/tiers/rules.md`` defines each."""

MISTAKES = (
    "regime_violation",
    "overbought_buy",
    "oversold_sell",
    "position_limit",
    "trade_limit",
    *HOLD_COUNTS,
)
"""The seven mistakes."""

RULE_BREAKS = ("regime_violation", "position_limit", "trade_limit")
"""Mistakes that break the tier's rules, as opposed to market-timing mistakes."""

_SIGNAL = {
    "profit": 10.0,
    "loss_hold": -0.10,
    "missed_opportunity": -0.15,
    "patience": 0.01,
    "regime_violation": -0.30,
    "overbought_buy": -0.15,
    "oversold_sell": -0.15,
    "position_limit": -0.10,
    "trade_limit": -0.10,
    "sell_unheld": -0.05,
    "losing_streak_buy": -0.10,
    "long_holding": -0.02,
    "within_limits": 0.02,
    "invalid": -1.0,
}

REWARD_PRESETS: dict[str, dict[str, float]] = {
    "signal": _SIGNAL,
    "counterfactual": {"counterfactual": 1.0},
    "multi_component": {
        **{name: 1.0 for name in ("profit", "valid", "within_limits")},
        **{name: -1.0 for name in (*MISTAKES, "sell_unheld")},
    },
    "aligned": {**{name: 0.3 * weight for name, weight in _SIGNAL.items()}, "episode": 0.7},
    "grade_potential": {"grade_change": 1.0},
}
"""Weights by preset; a component that is not named weighs nothing. What agents make of the first four is shown by
``benchmarks/studies/reward_presets.py``; the three after the first are there to be watched."""

EPISODE, GRADE_CHANGE = (COMPONENTS.index(name) for name in ("episode", "grade_change"))
"""Places of the components made of grades, which are computed only where they weigh something."""

LONG_HOLDING_DAYS = 5

LOSS = 0.05
"""Loss of a position above which holding it is a mistake."""


def component_weights(preset: str, changes: Mapping[str, float] | None = None) -> Tensor:
    """Return the weights of a preset with some replaced; an unknown name is a ValueError. Shape: (C,), float64."""
    if preset not in REWARD_PRESETS:
        raise ValueError(f"unknown reward preset {preset!r}; there are {', '.join(REWARD_PRESETS)}")
    weights = {**REWARD_PRESETS[preset], **(changes or {})}
    unknown = [name for name in weights if name not in COMPONENTS]
    if unknown:
        raise ValueError(f"unknown reward components {', '.join(unknown)}; there are {', '.join(COMPONENTS)}")
    return torch.tensor([weights.get(name, 0.0) for name in COMPONENTS], dtype=torch.float64)


def stacked(components: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return components by name as a vector; those not named are 0. Shape: (C,)."""
    zero = torch.zeros_like(next(iter(components.values())), dtype=dtype)
    return torch.stack([components[name].to(dtype) if name in components else zero for name in COMPONENTS], dim=-1)


def summed(parts: Tensor) -> Tensor:
    """Return the sum of a short vector in sequential order. Shape: (n,) -> ()."""
    # Eager and compiled reductions add in different orders; a fixed order rounds identically.
    first, *rest = parts.unbind(-1)
    for part in rest:
        first = first + part
    return first


def picked(components: Tensor, names: tuple[str, ...]) -> Tensor:
    """Return some components of a vector. Shape: (number of names,)."""
    return torch.stack([components[COMPONENTS.index(name)] for name in names], dim=-1)


def hold_components(
    state: TierState,
    orders: OrderList,
    done: Execution,
    limits: Limits,
    day: Mapping[str, Tensor],
    owned: Tensor | None,
) -> dict[str, Tensor]:
    """Return the components of a day without an executed order, as flags.

    ``day`` has the closes and where a symbol is oversold or overbought, ``owned`` which are of the tier. Shape: (K,).
    """
    close, held, tempting = day["close"], state.holdings, day["oversold"]
    if owned is not None:
        tempting = tempting * owned
    idle = done.num_trades == 0
    # As float32 numbers, because booleans are not vectorised on a CPU.
    single = torch.float32
    floor = (1.0 - LOSS) * state.average_price
    losing = torch.where(close.to(state.average_price.dtype) < floor, held, 0.0).sum(-1) > 0
    slip = torch.ceil(close * limits.slippage.to(single))
    payable = (close + slip) * (1.0 + limits.commission.to(single))
    cash = (state.cash * limits.capacity / CAPACITY_STEPS).to(single)
    invested = (state.portfolio_value - state.cash).to(single)
    buyable = torch.where(payable <= cash, tempting, 0.0)
    buyable = torch.where((held + 1.0) * close <= limits.position_value.to(single), buyable, 0.0)
    buyable = torch.where(invested + close <= limits.exposure_value.to(single), buyable, 0.0)
    missed = (torch.where(limits.closed, 0.0, buyable.sum(-1)) + (held * day["overbought"]).sum(-1)) > 0
    loss, missed = idle & losing, idle & missed & ~losing
    passive = (orders.valid > 0) & ((orders.buys + orders.sells).sum(-1) == 0)
    return {"loss_hold": loss, "missed_opportunity": missed, "patience": passive & ~loss & ~missed}


def counterfactual(fills: Tensor, close: Tensor, next_close: Tensor) -> Tensor:
    """Return the sum of the next-day changes of bought symbols less those of sold ones. Shapes: (M,) -> ()."""
    return summed(torch.sign(fills).to(close.dtype) * (next_close / close.clamp(min=1.0) - 1.0))
