"""A task whose choices earn the same in the mean and differ in their lower tails, for learners that mind risk."""

from collections.abc import Mapping

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Categorical

from vecenv import VecEnv
from vecenv.core.capabilities import RiskAware
from vecenv.core.random import EpisodeKey, randint
from vecenv.core.scenario import Scenario

SAFE, RISKY = 0, 1
LOSS, GAIN = -6.0, 2.0
"""Rewards of the risky choice, at 1 : 7, so that its mean is 1, the reward of the safe one."""


class TailsState(TensorClass):
    pays: Tensor
    paid: Tensor
    choice: Tensor
    steps: Tensor
    length: Tensor


class Tails(Scenario[TailsState]):
    """The safe choice pays 1; the risky one -6 or 2, whose mean is 1 too; episodes have a random number of steps."""

    name, version = "tails", "1"

    def __init__(self, longest: int = 1, shortest: int = 1, ends: str = "terminated") -> None:
        self.shared: Mapping[str, Tensor] = {}
        self.params: Mapping[str, Tensor] = {}
        self.longest, self.shortest, self.ends = longest, shortest, ends
        self.action_spec = Categorical(2, (), dtype=torch.int64)

    def reset(self, key: EpisodeKey, params: Mapping, shared: Mapping) -> TailsState:
        eighth = randint(key, 0, 8, torch.arange(self.longest, device=key.episode.device))
        length = self.shortest + randint(key, 1, self.longest - self.shortest + 1)
        pays, zero = torch.where(eighth == 0, LOSS, GAIN), torch.zeros_like(key.episode)
        return TailsState(pays=pays, paid=pays[0], choice=zero, steps=zero, length=length, batch_size=[])

    def step(self, state: TailsState, action: Tensor, params: Mapping, shared: Mapping) -> TailsState:
        pays, steps = state.pays.roll(-1), state.steps + 1
        return TailsState(pays=pays, paid=state.pays[0], choice=action, steps=steps, length=state.length, batch_size=[])

    def observation(self, state: TailsState, params: Mapping, shared: Mapping) -> tuple[Tensor, ...]:
        return (state.paid.new_ones(1),)

    def reward(self, state: TailsState, action, next_state, params, shared) -> Tensor:
        return torch.where(action == RISKY, next_state.paid, 1.0)

    def terminated(self, state: TailsState, params: Mapping, shared: Mapping) -> Tensor:
        return (state.steps >= state.length) & (self.ends == "terminated")

    def truncated(self, state: TailsState, params: Mapping, shared: Mapping) -> Tensor:
        return (state.steps >= state.length) & (self.ends == "truncated")

    def grade(self, state: TailsState, params: Mapping, shared: Mapping) -> Tensor:
        return state.paid.new_ones(())


class RatedTails(RiskAware, Tails):
    """The same with risk levels: 2 for the risky choice, and for the safe one 1 plus the share of the steps taken."""

    name = "rated_tails"

    def risk_level(self, state: TailsState, next_state: TailsState, params: Mapping, shared: Mapping) -> Tensor:
        return torch.where(next_state.choice == RISKY, 2.0, 1.0 + next_state.steps / state.length)


def tails_env(num_envs: int = 16, seed: int = 0, scenario: Tails | None = None) -> VecEnv:
    return VecEnv(scenario or Tails(), num_envs, seed, "cpu", False)
