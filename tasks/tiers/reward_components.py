"""Reward of the trading tiers: weighted sum of named components."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vecenv.tasks.tiers.order_list import ORDER_COUNTS

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
