"""Programs that play stock trading: what their names mean, in which units, and how they act."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from vecenv.finance.programs import ACCOUNT, BAR_FEATURES, Strategies, shown_features
from vecenv.programs.expressions import Vocabulary
from vecenv.programs.units import NONE, SHARES, WEALTH
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.law import StockState
from vecenv.tasks.stock_trading.scenario import StockTrading

OUTPUTS = {"weights": {"weight": WEALTH}, "tilt": {"tilt": NONE}, "shares": {"order": SHARES}}
"""What a program gives for each symbol by kind of action: a weight, the tilt of a weight, or an order."""

ROUNDING = 1e-5
"""Part of an account by which purchases of fractional shares may pass its cash by rounding."""


class StockStrategies(Strategies):
    """How programs play stock trading."""

    actions: ClassVar = {output: {"action": action} for action, outputs in OUTPUTS.items() for output in outputs}

    def vocabulary(self, config: StockTradingConfig) -> Vocabulary:
        """Return the names of bars, of the indicators, columns and series that a config shows, and of the account."""
        shown = shown_features((*config.features, *config.context))
        return Vocabulary(features=shown | BAR_FEATURES | ACCOUNT, outputs=OUTPUTS[config.action])

    def action(self, scenario: StockTrading, output: Tensor) -> Tensor:
        """Return the actions that outputs name. Shape: (N, K) -> (N, K), with tilts (N, K + 1)."""
        if scenario.config.action == "shares":
            hmax = scenario.params["hmax"].reshape(-1, 1)
            return (output.double() / hmax).float().clamp(-1.0, 1.0)
        tilts = scenario.config.action == "tilt"
        return torch.cat([output, torch.zeros_like(output[:, :1])], -1) if tilts else output

    def full(self, config: StockTradingConfig) -> StockTradingConfig:
        return replace(config, reward="delta_value", random_start=False, min_episode_length=0)

    def days(self, config: StockTradingConfig) -> int:
        return config.episode_length

    def opened(self, scenario: StockTrading, path: Tensor, day: Tensor, params: Any, shared: Any) -> StockState:  # noqa: ANN401
        return scenario.opened(path, day, params["episode_length"], params, shared)

    def refused(self, scenario: StockTrading, before: StockState, after: StockState) -> Tensor:
        """Return the entries of actions that were no numbers, and whether cash did not cover the purchases."""
        return after.invalid_actions - before.invalid_actions + _cut(scenario, after)

    def rules(self, config: StockTradingConfig) -> str:
        costs = config.commission + config.slippage  # type: ignore[operator]
        free = "Trading is free" if not costs else f"Trading costs {100 * costs:g}% of the value traded"
        return f"0.5 for what equal parts bought and held earn, 0.73 for ten points of log-return more. {free}."


def _cut(scenario: StockTrading, after: StockState) -> Tensor:
    """Return where cash did not cover the purchases of a day, of fractional shares by more than a rounding. (B,)."""
    if scenario.config.whole_shares:
        return after.buy_ratio < 1.0
    # No more than this: what was traded are purchases, after the cut, and sales.
    lacking = after.traded * (1.0 / after.buy_ratio.clamp(min=1e-12) - 1.0)
    return (after.buy_ratio <= 0.0) | (lacking > ROUNDING * after.portfolio_value)


PROGRAMS = StockStrategies()
