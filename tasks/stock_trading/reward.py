"""Reward of one step of stock trading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels import rewards
from vecenv.kernels.money import Money
from vecenv.tasks.stock_trading.config import PERCENT, StockTradingConfig
from vecenv.tasks.stock_trading.state import StockState


class RewardRules(NamedTuple):
    """What a reward depends on beside states and parameters; ``uses`` tells by name whether one has an effect.

    With ``own_scale`` money counts as a share of the value at the start, else in currency.
    """

    config: StockTradingConfig
    money: Money
    tick_size: float
    uses: Callable[[str], bool]
    own_scale: bool


def step_reward(
    rules: RewardRules,
    state: StockState,
    next_state: StockState,
    ended: Tensor,
    growth: Tensor | None,
    params: Mapping[str, Tensor],
    shaped: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the configured reward, less the cash penalty, plus the terminal bonus. Shape: ().

    ``growth`` is that of the benchmark over the step, for the excess return, ``shaped`` the change of the configured
    reward before penalty, scale and bonus.
    """
    config, dtype = rules.config, rules.money.dtype
    value, next_value = state.portfolio_value, next_state.portfolio_value

    def money(ticks: Tensor) -> Tensor:
        if rules.own_scale:
            return (ticks.double() / state.start_value.double().clamp(min=1.0)).to(dtype)
        return ticks.to(dtype) * rules.tick_size

    if config.reward == "delta_value":
        reward = money(next_value - value)
    elif config.reward == "log_return":
        reward = rewards.log_return(value, next_value, dtype)
    elif growth is not None:
        reward = (rewards.log_return(value, next_value, torch.float64) - torch.log(growth)).to(dtype)
    else:
        step_return = rewards.simple_return(value, next_value, dtype)
        if config.reward == "differential_sharpe":
            reward = rewards.differential_sharpe(step_return, state.moments)
        else:
            reward = rewards.risk_penalised(step_return, params["risk_aversion"])
    reward = shaped(reward)
    if rules.uses("min_cash_fraction"):
        lacking = params["min_cash_fraction"] * next_value.to(dtype) - next_state.cash.to(dtype)
        penalty = money(lacking.clamp(min=0.0))
        if rules.own_scale:
            penalty = penalty * (PERCENT / config.own_reward_scale)
        reward = reward - params["cash_penalty_weight"].to(dtype) * penalty
    reward = reward * params["reward_scale"].to(dtype)
    if rules.uses("terminal_bonus"):
        total = rewards.simple_return(next_state.start_value, next_value, dtype)
        reward = reward + torch.where(ended, params["terminal_bonus"].to(dtype) * total, 0.0)
    return reward
