"""Registration record of the stock-trading task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.market.account import MarketAccount
from vecenv.registry import Task
from vecenv.tasks.stock_trading.agents import BASELINES, return_bound, rules
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.scenario import StockTrading


def market_options(settings: StockTradingConfig) -> Mapping[str, Any]:
    """Return the market requirements of the rules."""
    return {"features": settings.features, "context": settings.context}


def shortened(settings: StockTradingConfig, days: int) -> StockTradingConfig:
    """Return the rules with a maximum episode length."""
    if settings.episode_length <= days:
        return settings
    return replace(settings, episode_length=days, min_episode_length=min(settings.min_episode_length, days))


def bound(env: VecEnv) -> Tensor | None:
    """Return an upper bound of the cumulative return, shape (N,); not available with short positions."""
    return None if rules(env).shorting else return_bound(env)


def check_trained(trained: Mapping[str, Any], settings: StockTradingConfig) -> None:
    """Reject rules with another action type than a policy was trained on.

    Raises:
        ValueError: the action types differ.
    """
    if trained["action"] != settings.action:
        raise ValueError(f"the checkpoint was trained on actions {trained['action']!r}, not {settings.action!r}")


STOCK_TRADING = Task(
    name="stock_trading",
    version="1",
    scenario=StockTrading,
    settings=StockTradingConfig,
    market=market_options,
    agents=BASELINES,
    outcomes={"portfolio_value": "currency", "total_return": "share", "cash": "currency"},
    account=MarketAccount(),
    bound=bound,
    shortened=shortened,
    check_trained=check_trained,
)
