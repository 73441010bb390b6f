"""Reward of the trading tiers: weighted sum of named components."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vecenv.tasks.tiers.law import CAPACITY_STEPS, Execution, Limits, OrderList, TierState
from vecenv.tasks.tiers.reward_presets import COMPONENTS, weights_by_name

EPISODE, GRADE_CHANGE = (COMPONENTS.index(name) for name in ("episode", "grade_change"))
"""Places of the components made of grades, which are computed only where they weigh something."""

LONG_HOLDING_DAYS = 5

LOSS = 0.05
"""Loss of a position above which holding it is a mistake."""


def component_weights(preset: str, changes: Mapping[str, float] | None = None) -> Tensor:
    """Return `weights_by_name` in the order of the components. Shape: (C,), float64."""
    return torch.tensor([*weights_by_name(preset, changes).values()], dtype=torch.float64)


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
