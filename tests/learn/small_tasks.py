"""A walk whose values are known and a market of a planted signal, with settings of learners small enough for tests."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Categorical

import vecenv
from vecenv import FusedCollector, VecEnv
from vecenv.core.capabilities import Masked
from vecenv.core.random import EpisodeKey, randint
from vecenv.core.scenario import Scenario
from vecenv.learn.dqn import DQNConfig
from vecenv.learn.ppo import PPOConfig
from vecenv.market.planted import planted_bars
from vecenv.market.tape import MarketTape

PLACES, GAMMA = 6, 0.8
SMALL_DQN = DQNConfig(
    num_steps=4, total_frames=4 * 16 * 4, minibatches=3, minibatch_size=32, hidden=(8,), gamma=GAMMA, buffer_size=200,
    exploration_fraction=0.5, checkpoint_every=2,
)  # fmt: skip
VARIANTS = {"plain": {}, "double": {"double": True}, "duelling": {"duelling": True}}


class ChainState(TensorClass):
    place: Tensor
    steps: Tensor


class Chain(Masked, Scenario[ChainState]):
    """A walk on the places 0 … 5: left, stay (which may be forbidden) or right.

    Reaching the last one is worth 1, and terminates; the seventh step truncates.
    """

    name, version = "chain", "1"

    def __init__(self, forbid: bool = False) -> None:
        self.shared: Mapping[str, Tensor] = {}
        self.params: Mapping[str, Tensor] = {}
        self.forbid = forbid
        self.action_spec = Categorical(3, (1,), dtype=torch.int64)

    def reset(self, key: EpisodeKey, params: Mapping, shared: Mapping) -> ChainState:
        place = randint(key, 0, PLACES - 1)
        return ChainState(place=place, steps=torch.zeros_like(place), batch_size=[])

    def step(self, state: ChainState, action: Tensor, params: Mapping, shared: Mapping) -> ChainState:
        place = (state.place + action[0] - 1).clamp(0, PLACES - 1)
        return ChainState(place=place, steps=state.steps + 1, batch_size=[])

    def observation(self, state: ChainState, params: Mapping, shared: Mapping) -> tuple[Tensor, ...]:
        return ((state.place == torch.arange(PLACES)).float(),)

    def reward(self, state: ChainState, action, next_state, params, shared) -> Tensor:
        return (next_state.place == PLACES - 1).float()

    def terminated(self, state: ChainState, params: Mapping, shared: Mapping) -> Tensor:
        return state.place == PLACES - 1

    def truncated(self, state: ChainState, params: Mapping, shared: Mapping) -> Tensor:
        return state.steps >= 7

    def grade(self, state: ChainState, params: Mapping, shared: Mapping) -> Tensor:
        return torch.ones(())

    def action_mask(self, observation: Tensor) -> Tensor | None:
        if not self.forbid:
            return None
        return torch.tensor([True, False, True]).expand(len(observation), 3)


def chain_env(num_envs: int = 16, forbid: bool = False, seed: int = 0) -> VecEnv:
    return VecEnv(Chain(forbid), num_envs, seed, "cpu", False)


def chain_values() -> Tensor:
    """Return the value of every place and choice, by value iteration. Shape: (5, 3)."""
    values = torch.zeros(PLACES, 3)
    for _ in range(50):
        for place in range(PLACES - 1):
            for choice in range(3):
                after = min(max(place + choice - 1, 0), PLACES - 1)
                values[place, choice] = 1.0 if after == PLACES - 1 else GAMMA * values[after].max()
    return values[:-1]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


HORIZON = 20
RULES = {"features": ("signal",), "initial_cash": 1_000.0, "commission": 0.0, "whole_shares": False}
RULES |= {"episode_length": HORIZON, "feature_scale": 1.0, "compile": False}
SMALL_PPO = PPOConfig(num_steps=8, total_frames=4 * 8 * 16, epochs=2, minibatches=2, hidden=(8, 8))


def planted_env(num_envs=16, market_seed=0, seed=0, num_symbols=1, **overrides: object) -> VecEnv:
    tape = MarketTape.from_bars(planted_bars(32, 200, num_symbols, seed=market_seed), features=("signal",))
    return vecenv.make("stock_trading", num_envs, market=tape, seed=seed, **(RULES | overrides))


def episode_returns(env: VecEnv, policy: object) -> Tensor:
    """Return each row's return over its first episode. Shape: (N,)."""
    FusedCollector(env, policy, HORIZON).rollout()
    info = env.info()
    return info["portfolio_value"] / info["start_value"] - 1


def planted_growth(num_steps: int, num_symbols: int, strength: float, flip: float) -> float:
    """Return the exact expected final wealth, per unit, after some steps of the best orders by a planted signal.

    The number of symbols with a positive signal is a Markov chain from its stationary binomial law; a step multiplies
    the expected wealth by 1 + strength unless that number is zero.
    """
    counts = range(num_symbols + 1)
    transition = np.array([np.convolve(_binomial(n, 1 - flip), _binomial(num_symbols - n, flip)) for n in counts])
    gain, growth = np.array([1.0, *[1 + strength] * num_symbols]), np.ones(num_symbols + 1)
    for _ in range(num_steps):
        growth = gain * (transition @ growth)
    return float(_binomial(num_symbols, 0.5) @ growth)


def _binomial(trials: int, probability: float) -> np.ndarray:
    return np.array(
        [math.comb(trials, n) * probability**n * (1 - probability) ** (trials - n) for n in range(trials + 1)]
    )
