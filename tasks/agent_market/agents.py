"""Baseline agents of the agent-based market: rules that learn nothing and see what a learner sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent, Random
from vecenv.tasks.agent_market.config import ExecutionConfig, MarketMakingConfig, TradingConfig
from vecenv.tasks.agent_market.execution import IMPROVES, JOINS, WAITS
from vecenv.tasks.agent_market.trading import BUYS, HOLDS, SELLS

Config = TypeVar("Config")


def config_of_env(env: VecEnv, kind: type[Config]) -> Config:
    """Return the config of an environment's task; raises ValueError if it is of another kind."""
    config = env.scenario.config  # type: ignore[attr-defined]
    if not isinstance(config, kind):
        raise ValueError(f"an agent for {kind.__name__} cannot play {env.scenario.name}")
    return config


class Hold:
    """Never trades."""

    def act(self, env: VecEnv) -> Tensor:
        return trading_action(env, torch.zeros_like(env.state.shares))


class BuyAndHold:
    """Buys up to the largest position, and keeps it."""

    def act(self, env: VecEnv) -> Tensor:
        return trading_action(env, config_of_env(env, TradingConfig).max_position - env.state.shares)


class FairValue:
    """Holds the largest position on the side of the public estimate, if it is over ``threshold`` ticks off the mid."""

    def __init__(self, threshold: float = 20.0) -> None:
        self.threshold = threshold

    def act(self, env: VecEnv) -> Tensor:
        state, most = env.state, config_of_env(env, TradingConfig).max_position
        away = state.estimate.double() * 2.0**-16 - state.doubled_mid.double() / 2
        target = torch.where(away > self.threshold, most, torch.where(away < -self.threshold, -most, state.shares))
        return trading_action(env, target - state.shares)


class Momentum:
    """Holds the largest position on the side of the last eight candles."""

    def act(self, env: VecEnv) -> Tensor:
        state, most = env.state, config_of_env(env, TradingConfig).max_position
        change = state.features[:, env.scenario.feature_names.index("change_8")]  # type: ignore[attr-defined]
        return trading_action(env, torch.sign(change).to(torch.int64) * most - state.shares)


def trading_action(env: VecEnv, wanted: Tensor) -> Tensor:
    """Return the actions nearest to buying shares at once, selling if negative. Shapes: (N,), int64 -> (N, *action)."""
    config = config_of_env(env, TradingConfig)
    sign = torch.where(wanted > 0, BUYS, torch.where(wanted < 0, SELLS, HOLDS))
    if config.action == "discrete":
        # No order for less than half of its fixed size.
        return torch.where(2 * wanted.abs() >= config.order_size, sign, HOLDS).unsqueeze(-1)
    if config.action == "continuous":
        return (wanted.double() / config.order_size).clamp(-1, 1).float().unsqueeze(-1)
    sizes = torch.tensor([round(size * config.order_size) for size in config.sizes], device=wanted.device)
    size = (wanted.abs().unsqueeze(-1) - sizes).abs().argmin(-1)
    nearest = config.distances.index(min(config.distances))
    return torch.stack([sign, torch.full_like(sign, nearest), size, torch.ones_like(sign)], -1)


class EvenSlices:
    """Sends an even slice of the parent order to the market at every step (TWAP)."""

    def act(self, env: VecEnv) -> Tensor:
        config = config_of_env(env, ExecutionConfig)
        return execution_action(env, torch.full_like(env.state.tick, config.even_slice), WAITS)


class VolumeSlices:
    """Sends slices in proportion to the last step's traded volume over its mean in the episode so far (VWAP)."""

    def act(self, env: VecEnv) -> Tensor:
        config, state = config_of_env(env, ExecutionConfig), env.state
        steps = (state.tick // config.ticks_per_step).clamp(min=1)
        mean = state.flow[:, 0].double() / steps
        ratio = torch.where(mean > 0, state.last_volume.double() / mean.clamp(min=1e-9), 1.0)
        return execution_action(env, (ratio * config.even_slice).round().to(torch.int64), WAITS)


class Passive:
    """Waits at the best price of its own side, and leaves the rest to the last step."""

    def __init__(self, improves: bool = False) -> None:
        self.choice = IMPROVES if improves else JOINS

    def act(self, env: VecEnv) -> Tensor:
        return execution_action(env, torch.zeros_like(env.state.tick), self.choice)


class AtOnce:
    """Sends the largest slice at every step."""

    def act(self, env: VecEnv) -> Tensor:
        return execution_action(
            env, torch.full_like(env.state.tick, config_of_env(env, ExecutionConfig).parent_size), WAITS
        )


def execution_action(env: VecEnv, shares: Tensor, passive: int) -> Tensor:
    """Return the choices of the slices nearest to numbers of shares, and of the passive order. Shape: (N, 2)."""
    config = config_of_env(env, ExecutionConfig)
    slices = torch.tensor([round(part * config.even_slice) for part in config.slices], device=shares.device)
    choice = (shares.unsqueeze(-1) - slices).abs().argmin(-1)
    return torch.stack([choice, torch.full_like(choice, passive)], -1)


class FixedSpread:
    """Quotes both sides at the task's distance from the mid that is nearest to ``distance`` price ticks."""

    def __init__(self, distance: float) -> None:
        self.distance = distance

    def act(self, env: VecEnv) -> Tensor:
        distance = torch.full((env.num_envs, 2), float(self.distance), device=env.state.tick.device)
        return quote_action(env, distance)


class AvellanedaStoikov:
    """Quotes around a reservation price that falls with the inventory.

    Avellaneda and Stoikov, "High-frequency trading in a limit order book", Quantitative Finance 8 (2008), equations
    (29) and (30): reservation price s - q γ σ² (T - t), and a spread of γ σ² (T - t) + (2/γ) ln(1 + γ/k). The inventory
    q is in quotes, σ² the variance of the mid per tick over the last 32 candles, prices in price ticks. ``aversion`` is
    γ, ``decay`` k of the intensity of fills exp(-k distance). T - t is at most ``horizon`` ticks: the risk of a long
    episode would else hide the spread.
    """

    def __init__(self, aversion: float = 1e-4, decay: float = 0.05, horizon: float = 60.0) -> None:
        self.aversion, self.decay, self.horizon = aversion, decay, horizon

    def act(self, env: VecEnv) -> Tensor:
        config, state = config_of_env(env, MarketMakingConfig), env.state
        names = env.scenario.feature_names  # type: ignore[attr-defined]
        mid = state.doubled_mid.double() / 2
        variance = (state.features[:, names.index("volatility_32")].double() * mid).square() / config.candle_ticks
        left = (config.max_ticks - state.tick).double().clamp(max=self.horizon)
        inventory = state.shares.double() / config.quote_size
        risk = self.aversion * variance * left
        half = risk / 2 + math.log1p(self.aversion / self.decay) / self.aversion
        away = inventory * risk
        return quote_action(env, torch.stack([half + away, half - away], -1))


def quote_action(env: VecEnv, distance: Tensor) -> Tensor:
    """Return the choices nearest to distances of bid and ask from the mid, in price ticks. Shape: (N, 2)."""
    config = config_of_env(env, MarketMakingConfig)
    distances = torch.tensor(config.distances, dtype=distance.dtype, device=distance.device)
    return 1 + (distance.unsqueeze(-1) - distances).abs().argmin(-1)


TRADERS: dict[str, Callable[[], Agent]] = {
    "hold": Hold,
    "buy_and_hold": BuyAndHold,
    "fair_value": FairValue,
    "momentum": Momentum,
    "random": Random,
}

EXECUTORS: dict[str, Callable[[], Agent]] = {
    "twap": EvenSlices,
    "vwap": VolumeSlices,
    "passive": Passive,
    "improving": lambda: Passive(improves=True),
    "at_once": AtOnce,
    "random": Random,
}

QUOTERS: dict[str, Callable[[], Agent]] = {
    **{f"fixed_spread_{distance}": partial(FixedSpread, distance) for distance in (1, 2, 4, 8, 16, 32)},
    "avellaneda_stoikov": AvellanedaStoikov,
    "random": Random,
}
