"""Stock trading on a planted signal, and settings of PPO small enough for tests."""

from __future__ import annotations

from torch import Tensor

import vecenv
from vecenv import FusedCollector, VecEnv
from vecenv.learn.ppo import PPOConfig
from vecenv.market.planted import planted_bars
from vecenv.market.tape import MarketTape

HORIZON = 20
RULES = {
    "features": ("signal",),
    "initial_cash": 1_000.0,
    "commission": 0.0,
    "whole_shares": False,
    "episode_length": HORIZON,
    "feature_scale": 1.0,
    "compile": False,
}
SMALL = PPOConfig(num_steps=8, total_frames=4 * 8 * 16, epochs=2, minibatches=2, hidden=(8, 8))


def planted_env(
    num_envs: int = 16, market_seed: int = 0, seed: int = 0, num_symbols: int = 1, **overrides: object
) -> VecEnv:
    tape = MarketTape.from_bars(planted_bars(32, 200, num_symbols, seed=market_seed), features=("signal",))
    return vecenv.make("stock_trading", num_envs, market=tape, seed=seed, **(RULES | overrides))


def episode_returns(env: VecEnv, policy: object) -> Tensor:
    """Return each row's return over its first episode. Shape: (N,)."""
    FusedCollector(env, policy, HORIZON).rollout()
    info = env.info()
    return info["portfolio_value"] / info["start_value"] - 1
