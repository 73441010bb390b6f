"""Agents of trading on scores: those of stock trading under its rules, and rules that read the scores."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.finance.accounts import tape_of
from vecenv.learn.evaluation import Agent, Random
from vecenv.market.panels import NEUTRAL, SCORES
from vecenv.tasks.signals.scenario import moved_by_sentiment
from vecenv.tasks.stock_trading.agents import BASELINES, EqualWeight, Hold, best, towards_equal_parts

SENTIMENT, RISK = (SCORES.index(name) for name in ("sentiment", "risk"))


class Unmoved:
    """An agent of stock trading whose orders are those that it means: its actions allow for being moved by sentiment.

    Bad news make a purchase smaller than the largest action, whatever the agent means.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def act(self, env: VecEnv) -> Tensor:
        action = self.agent.act(env)
        strength = env.scenario.params["sentiment_strength"].reshape(-1, 1)
        # What the rule makes of 1 and of -1 is the factor for actions of that sign.
        factor = moved_by_sentiment(action.sign(), scores_of(env)[..., SENTIMENT], strength).abs()
        return torch.where(action == 0, 0.0, action / factor)


class EqualPartsOf:
    """Holds the same value of every symbol whose score is good, restored daily; of all symbols on days without any.

    ``good`` tells which scores of sentiment and risk are. Shapes: (N, K, 2) -> (N, K), bool.
    """

    def __init__(self, good: Callable[[Tensor], Tensor]) -> None:
        self.good = good

    def act(self, env: VecEnv) -> Tensor:
        state, tape = env.state, tape_of(env)
        tradable = tape.tradable[state.path, state.day]
        good = tradable & self.good(scores_of(env))
        return towards_equal_parts(env, torch.where(good.any(-1, keepdim=True), good, tradable))


def scores_of(env: VecEnv) -> Tensor:
    """Return sentiment and risk on which the next decision is made. Shape: (N, K, 2), float32."""
    state = env.state
    return env.scenario.panels.scores[state.path, state.day]  # type: ignore[attr-defined]


def _follow_sentiment() -> Agent:
    return EqualPartsOf(lambda scores: scores[..., SENTIMENT] > NEUTRAL)


def _avoid_risk() -> Agent:
    return EqualPartsOf(lambda scores: scores[..., RISK] < NEUTRAL)


def _unmoved(make: Callable[[], Agent]) -> Callable[[], Agent]:
    return lambda: Unmoved(make())


def best_rule(env: VecEnv) -> Unmoved | None:
    """Return the agent of the best rule where the market knows one, as stock trading has it."""
    known = best(env)
    return None if known is None else Unmoved(known)


AGENTS: dict[str, Callable[[], Agent]] = {
    name: make if make in (Random, Hold) else _unmoved(make) for name, make in BASELINES.items()
} | {
    "equal_weight_moved": EqualWeight,
    "follow_sentiment": _unmoved(_follow_sentiment),
    "avoid_risk": _unmoved(_avoid_risk),
}
"""Agents by name; ``equal_weight_moved`` means equal weights, and lets the news move them."""
