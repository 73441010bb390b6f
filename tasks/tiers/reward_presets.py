"""Components of the tiers' reward by name, and their weights by preset."""

from __future__ import annotations

from collections.abc import Mapping

ORDER_COUNTS = (
    "regime_violation",
    "overbought_buy",
    "oversold_sell",
    "position_limit",
    "trade_limit",
    "sell_unheld",
    "losing_streak_buy",
)
"""Reward components that count orders."""

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
"""Components in storage order; ``tasks/tiers/learner.md`` defines each."""

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


def weights_by_name(preset: str, changes: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the weights of a preset with some replaced, by component; an unknown name is a ValueError."""
    if preset not in REWARD_PRESETS:
        raise ValueError(f"unknown reward preset {preset!r}; there are {', '.join(REWARD_PRESETS)}")
    weights = {**REWARD_PRESETS[preset], **(changes or {})}
    unknown = [name for name in weights if name not in COMPONENTS]
    if unknown:
        raise ValueError(f"unknown reward components {', '.join(unknown)}; there are {', '.join(COMPONENTS)}")
    return {name: weights.get(name, 0.0) for name in COMPONENTS}
