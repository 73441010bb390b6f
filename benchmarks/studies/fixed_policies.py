"""Fixed trading policies on past closes, whose ranking in a simulator is compared with that on real data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.random import episode_key, open_uniform, random_bits
from vecenv.finance.accounts import tape_of
from vecenv.learn.evaluation import Agent, Random
from vecenv.market.bars import CLOSE
from vecenv.market.streams import PortfolioStream
from vecenv.tasks.stock_trading.agents import BuyAndHold, Hold, config_of_env, cost_rate, order_action

Weights = Callable[[VecEnv, Tensor], Tensor]
"""Target weights (N, K) with sum at most 1, the rest cash, from log-returns up to the day (N, lookback, K), float64."""


class TargetWeights:
    """Rebalances the account to target weights every few days."""

    def __init__(self, weights: Weights, every: int, lookback: int = 0) -> None:
        self.weights, self.every, self.lookback = weights, every, lookback

    def act(self, env: VecEnv) -> Tensor:
        state, tape = env.state, tape_of(env)
        if int(state.start_day.min()) < self.lookback:
            raise ValueError(f"{tape.source}: a lookback of {self.lookback} days needs as many before an episode")
        window = state.day[:, None] + torch.arange(-self.lookback, 1, device=env.device)
        price = tape.ohlcv[..., CLOSE][state.path[:, None], window].double().clamp(min=1e-12)
        weights = self.weights(env, price.log().diff(dim=1))
        weights = torch.where(tape.tradable[state.path, state.day], weights, 0.0)
        value = state.portfolio_value.double().unsqueeze(-1) * tape.tick_size
        target = weights * value / (price[:, -1] * (1.0 + cost_rate(env)))
        if config_of_env(env).whole_shares:
            target = target.floor()
        due = ((state.day - state.start_day) % self.every == 0).unsqueeze(-1)
        return order_action(env, torch.where(due, target - state.holdings, 0.0))


def constant(exposure: float) -> Weights:
    return lambda env, returns: returns.new_full((len(returns), returns.shape[-1]), exposure / returns.shape[-1])


def ranked(score: Callable[[Tensor], Tensor]) -> Weights:
    return lambda env, returns: _top_fifth(score(returns))


def drawn(env: VecEnv, returns: Tensor) -> Tensor:
    """Return equal weights of a random fifth of the symbols, drawn from the episode's key."""
    key = episode_key(env.seed_tensor, env.env_ids[:, None], env.rows.episode[:, None])
    streams = PortfolioStream.SHARES + torch.arange(returns.shape[-1], device=env.device)
    return _top_fifth(open_uniform(random_bits(key, streams, env.rows.elapsed[:, None])[0]))


def inverse_volatility(env: VecEnv, returns: Tensor) -> Tensor:
    inverse = 1.0 / returns.std(1).clamp(min=1e-6)
    return inverse / inverse.sum(-1, keepdim=True)


def minimum_variance(env: VecEnv, returns: Tensor) -> Tensor:
    """Return long-only minimum variance, with the covariance shrunk halfway to its diagonal."""
    centred = returns - returns.mean(1, keepdim=True)
    covariance = centred.mT @ centred / (returns.shape[1] - 1)
    variance = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=1e-8)
    shrunk = 0.5 * (covariance + variance.diag_embed())
    raw = torch.linalg.solve(shrunk, torch.ones_like(variance)).clamp(min=0.0)
    return raw / raw.sum(-1, keepdim=True).clamp(min=1e-12)


def volatility_target(target: float) -> Weights:
    """Return equal weights, scaled to a portfolio volatility per year, without leverage."""

    def weights(env: VecEnv, returns: Tensor) -> Tensor:
        yearly = returns.mean(-1).std(1) * tape_of(env).periods_per_year ** 0.5
        exposure = (target / yearly.clamp(min=1e-6)).clamp(max=1.0)
        return (exposure / returns.shape[-1])[:, None].expand(-1, returns.shape[-1])

    return weights


def trend(env: VecEnv, returns: Tensor) -> Tensor:
    """Return equal weights of symbols with the close above its mean, the rest cash."""
    # Closes of the lookback relative to the last one, which is itself 1.
    relative = (-returns.flip(1).cumsum(1)).exp()
    return (relative.mean(1) < 1.0).double() / returns.shape[-1]


def fixed_policies() -> dict[str, Agent]:
    """Return the policies by name; numbers are lookback and days between rebalancings, or as said."""
    momentum, reversal = ranked(lambda returns: returns.sum(1)), ranked(lambda returns: -returns.sum(1))
    return {
        "cash": Hold(),
        "buy and hold": BuyAndHold(),
        "random actions": Random(),
        "25% invested": TargetWeights(constant(0.25), 20),
        "50% invested": TargetWeights(constant(0.5), 20),
        "equal weight, monthly": TargetWeights(constant(1.0), 20),
        "equal weight, daily": TargetWeights(constant(1.0), 1),
        "momentum 20/5": TargetWeights(momentum, 5, 20),
        "momentum 60/5": TargetWeights(momentum, 5, 60),
        "momentum 60/20": TargetWeights(momentum, 20, 60),
        "reversal 1/1": TargetWeights(reversal, 1, 1),
        "reversal 5/5": TargetWeights(reversal, 5, 5),
        "reversal 20/20": TargetWeights(reversal, 20, 20),
        "low volatility 60/20": TargetWeights(ranked(lambda returns: -returns.std(1)), 20, 60),
        "high volatility 60/20": TargetWeights(ranked(lambda returns: returns.std(1)), 20, 60),
        "inverse volatility 60/20": TargetWeights(inverse_volatility, 20, 60),
        "minimum variance 60/20": TargetWeights(minimum_variance, 20, 60),
        "volatility target 5%": TargetWeights(volatility_target(0.05), 5, 20),
        "volatility target 10%": TargetWeights(volatility_target(0.10), 5, 20),
        "trend 20/5": TargetWeights(trend, 5, 20),
        "trend 60/20": TargetWeights(trend, 20, 60),
        "random fifth, daily": TargetWeights(drawn, 1),
        "random fifth, weekly": TargetWeights(drawn, 5),
        "random fifth, monthly": TargetWeights(drawn, 20),
    }


def _top_fifth(score: Tensor) -> Tensor:
    """Return equal weights of the fifth of the symbols, at least one, with the highest score. Shape: (N, K)."""
    count = max(1, score.shape[-1] // 5)
    chosen = score.topk(count, dim=-1).indices
    return torch.zeros(score.shape, dtype=torch.float64, device=score.device).scatter(-1, chosen, 1.0 / count)
