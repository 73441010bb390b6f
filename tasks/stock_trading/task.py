"""Registration record of the stock-trading task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vecenv.finance.trading import Trading
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.stock_trading.config import StockTradingConfig


def shortened(config: StockTradingConfig, days: int) -> StockTradingConfig:
    """Return the config with a maximum episode length."""
    if config.episode_length <= days:
        return config
    return replace(config, episode_length=days, min_episode_length=min(config.min_episode_length, days))


def compared(config: StockTradingConfig) -> StockTradingConfig:
    """Return the rules with episodes of full length: shorter ones are a means of training."""
    return replace(config, min_episode_length=0)


def smooth(config: StockTradingConfig) -> StockTradingConfig:
    """Return the rules with fractional shares and no dead zone."""
    return replace(config, whole_shares=False, dead_zone=0.0)


def check_trained(trained: Mapping[str, Any], config: StockTradingConfig) -> None:
    """Raise a ValueError if a policy was trained on another action type than the config's."""
    if trained["action"] != config.action:
        raise ValueError(f"the checkpoint was trained on actions {trained['action']!r}, not {config.action!r}")


OF_POLICY = (
    "features", "action", "benchmark", "benchmark_cash", "tilt_gain", "hmax", "dead_zone", "gate", "gate_threshold",
    "stop_loss", "reward", "reward_scale", "sharpe_decay", "risk_aversion", "min_cash_fraction", "cash_penalty_weight",
    "terminal_bonus", "cash_scale", "price_scale", "holdings_scale", "feature_scale",
)  # fmt: skip
"""Fields of the config that are a policy's own; the others are the account's."""

ACCOUNTS = Trading(
    scale="0.5 at the return of costless equal-weight buy and hold, 0.73 ten points of log-return above, 0.27 below",
    judged_by="excess_log_return",
    of_policy=OF_POLICY,
    bound=later("vecenv.tasks.stock_trading.agents:bound"),
    best=later("vecenv.tasks.stock_trading.agents:best"),
    compared=compared,
    smooth=smooth,
    shortened=shortened,
    check_trained=check_trained,
)

STOCK_TRADING = Task(
    name="stock_trading",
    version="1",
    scenario=later("vecenv.tasks.stock_trading.scenario:StockTrading"),
    config=StockTradingConfig,
    agents=later("vecenv.tasks.stock_trading.agents:BASELINES"),
    outcomes={"portfolio_value": "currency", "total_return": "share", "cash": "currency"},
    actions=lambda config: "numbers",
    domain=ACCOUNTS,
    recording=later("vecenv.tasks.stock_trading.records:RECORDING"),
    programs=later("vecenv.tasks.stock_trading.programs:PROGRAMS"),
)
