"""Fixed trading policies on past closes, whose ranking in a simulator is compared with that on real data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.random import episode_key, open_uniform, random_bits
from vecenv.learn.agents import Agent, Random
from vecenv.learn.metrics import TRADING_DAYS
from vecenv.market.account import tape_of
from vecenv.market.bars import CLOSE
from vecenv.market.streams import PortfolioStream
from vecenv.tasks.stock_trading.agents import BuyAndHold, Hold, config_of_env, cost_rate, order_action


class TargetWeights(ABC):
    """Rebalances the account to target weights every few days.

    Args:
        every: days between rebalancings.
        lookback: number of past returns for the weights; the market needs as many days before an episode.
    """

    def __init__(self, every: int, lookback: int = 0) -> None:
        self.every, self.lookback = every, lookback

    @abstractmethod
    def weights(self, env: VecEnv, returns: Tensor) -> Tensor:
        """Return target weights with sum at most 1; the rest is cash.

        Args:
            env: a stock-trading environment.
            returns: log-returns up to the day. Shape: (N, lookback, K), float64.

        Returns:
            Shape: (N, K), float64.
        """

    def act(self, env: VecEnv) -> Tensor:
        """Return orders towards the target weights. Shape: (N, K)."""
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


class ConstantMix(TargetWeights):
    """Equal weights of all symbols, and the rest in cash.

    Args:
        exposure: share of the value in symbols.
        every: days from one rebalancing to the next.
    """

    def __init__(self, exposure: float, every: int) -> None:
        super().__init__(every)
        self.exposure = exposure

    def weights(self, env: VecEnv, returns: Tensor) -> Tensor:
        """Return equal weights. Shape: (N, K)."""
        symbols = returns.shape[-1]
        return returns.new_full((len(returns), symbols), self.exposure / symbols)


class Ranked(TargetWeights):
    """Equal weights of the fifth of the symbols with the highest score.

    Args:
        score: maps past returns (N, lookback, K) to scores (N, K).
        lookback: number of past returns for the score.
        every: days from one rebalancing to the next.
    """

    def __init__(self, score: Callable[[Tensor], Tensor], lookback: int, every: int) -> None:
        super().__init__(every, lookback)
        self.score = score

    def weights(self, env: VecEnv, returns: Tensor) -> Tensor:
        """Return equal weights of the symbols with the highest score. Shape: (N, K)."""
        return _top_fifth(self.score(returns))


class RandomPortfolio(TargetWeights):
    """A random fifth of the symbols at every rebalancing, drawn from the episode's key."""

    def weights(self, env: VecEnv, returns: Tensor) -> Tensor:
        """Return equal weights of the symbols drawn. Shape: (N, K)."""
        key = episode_key(env.seed_tensor, env.env_ids[:, None], env.rows.episode[:, None])
        streams = PortfolioStream.SHARES + torch.arange(returns.shape[-1], device=env.device)
        return _top_fifth(open_uniform(random_bits(key, streams, env.rows.elapsed[:, None])[0]))


class InverseVolatility(TargetWeights):
    """Fully invested, with weights proportional to inverse volatility."""

    def weights(self, env: VecEnv, returns: Tensor) -> Tensor:
        """Return weights that sum to 1. Shape: (N, K)."""
        inverse = 1.0 / returns.std(1).clamp(min=1e-6)
        return inverse / inverse.sum(-1, keepdim=True)


class MinimumVariance(TargetWeights):
    """Fully invested long-only minimum variance, with the covariance shrunk halfway to its diagonal."""

    def weights(self, env: VecEnv, returns: Tensor) -> Tensor:
        """Return weights that sum to 1. Shape: (N, K)."""
        centred = returns - returns.mean(1, keepdim=True)
        covariance = centred.mT @ centred / (returns.shape[1] - 1)
        variance = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=1e-8)
        shrunk = 0.5 * (covariance + variance.diag_embed())
        raw = torch.linalg.solve(shrunk, torch.ones_like(variance)).clamp(min=0.0)
        return raw / raw.sum(-1, keepdim=True).clamp(min=1e-12)


class VolatilityTarget(TargetWeights):
    """Equal weights of all symbols, scaled to a target portfolio volatility, without leverage.

    Args:
        target: volatility per year.
        lookback: number of past returns for the volatility.
        every: days from one rebalancing to the next.
    """

    def __init__(self, target: float, lookback: int, every: int) -> None:
        super().__init__(every, lookback)
        self.target = target

    def weights(self, env: VecEnv, returns: Tensor) -> Tensor:
        """Return equal weights. Shape: (N, K)."""
        yearly = returns.mean(-1).std(1) * TRADING_DAYS**0.5
        exposure = (self.target / yearly.clamp(min=1e-6)).clamp(max=1.0)
        return (exposure / returns.shape[-1])[:, None].expand(-1, returns.shape[-1])


class Trend(TargetWeights):
    """Equal weights of symbols with the close above its mean, the rest in cash."""

    def weights(self, env: VecEnv, returns: Tensor) -> Tensor:
        """Return weights of the symbols in an upward trend. Shape: (N, K)."""
        # Closes of the lookback relative to the last one, which is itself 1.
        relative = (-returns.flip(1).cumsum(1)).exp()
        return (relative.mean(1) < 1.0).double() / returns.shape[-1]


def fixed_policies() -> dict[str, Agent]:
    """Return the policies by name; numbers are lookback and days between rebalancings, or as said."""
    return {
        "cash": Hold(),
        "buy and hold": BuyAndHold(),
        "random actions": Random(),
        "25% invested": ConstantMix(0.25, 20),
        "50% invested": ConstantMix(0.5, 20),
        "equal weight, monthly": ConstantMix(1.0, 20),
        "equal weight, daily": ConstantMix(1.0, 1),
        "momentum 20/5": Ranked(_total, 20, 5),
        "momentum 60/5": Ranked(_total, 60, 5),
        "momentum 60/20": Ranked(_total, 60, 20),
        "reversal 1/1": Ranked(lambda returns: -_total(returns), 1, 1),
        "reversal 5/5": Ranked(lambda returns: -_total(returns), 5, 5),
        "reversal 20/20": Ranked(lambda returns: -_total(returns), 20, 20),
        "low volatility 60/20": Ranked(lambda returns: -returns.std(1), 60, 20),
        "high volatility 60/20": Ranked(lambda returns: returns.std(1), 60, 20),
        "inverse volatility 60/20": InverseVolatility(20, 60),
        "minimum variance 60/20": MinimumVariance(20, 60),
        "volatility target 5%": VolatilityTarget(0.05, 20, 5),
        "volatility target 10%": VolatilityTarget(0.10, 20, 5),
        "trend 20/5": Trend(5, 20),
        "trend 60/20": Trend(20, 60),
        "random fifth, daily": RandomPortfolio(1),
        "random fifth, weekly": RandomPortfolio(5),
        "random fifth, monthly": RandomPortfolio(20),
    }


def _total(returns: Tensor) -> Tensor:
    return returns.sum(1)


def _top_fifth(score: Tensor) -> Tensor:
    """Return equal weights of the fifth of the symbols, at least one, with the highest score. Shape: (N, K)."""
    count = max(1, score.shape[-1] // 5)
    chosen = score.topk(count, dim=-1).indices
    return torch.zeros(score.shape, dtype=torch.float64, device=score.device).scatter(-1, chosen, 1.0 / count)
