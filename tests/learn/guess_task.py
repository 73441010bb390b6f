"""A task that asks for two numbers that are shown, with choices for actions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Categorical, MultiCategorical, TensorSpec

from vecenv import VecEnv
from vecenv.core.random import EpisodeKey, randint
from vecenv.core.scenario import Scenario


class GuessState(TensorClass):
    """Numbers to be named.

    Attributes:
        target: Shape: (2,).
        previous: Shape: (2,).
        steps: Shape: ().
    """

    target: Tensor
    previous: Tensor
    steps: Tensor


class Guess(Scenario[GuessState]):
    """Name the two numbers that are shown, of 3 and of 4; reward 1/2 for each. The eighth step terminates."""

    name, version = "guess", "1"

    def __init__(self, choices: tuple[int, ...] = (3, 4)) -> None:
        self.shared: Mapping[str, Tensor] = {"choices": torch.tensor(choices)}
        self.params: Mapping[str, Tensor] = {"reward": torch.tensor(1.0 / len(choices))}
        self.choices = choices
        self.action_spec: TensorSpec = MultiCategorical(choices) if len(choices) > 1 else Categorical(choices[0])

    def reset(self, key: EpisodeKey, params: Mapping, shared: Mapping) -> GuessState:
        target = randint(key, 0, shared["choices"], torch.arange(len(self.choices)))
        return GuessState(target=target, previous=target, steps=torch.zeros_like(key.episode), batch_size=[])

    def step(self, state: GuessState, action: Tensor, params: Mapping, shared: Mapping) -> GuessState:
        following = (state.target + 1 + state.steps) % shared["choices"]
        return GuessState(target=following, previous=state.target, steps=state.steps + 1, batch_size=[])

    def observation(self, state: GuessState, params: Mapping, shared: Mapping) -> tuple[Tensor, ...]:
        shown = [
            (state.target[component, None] == torch.arange(count)).float()
            for component, count in enumerate(self.choices)
        ]
        return (*shown, torch.full((1,), 0.3))

    def reward(
        self, state: GuessState, action: Tensor, next_state: GuessState, params: Mapping, shared: Mapping
    ) -> Tensor:
        return (action.reshape(-1) == next_state.previous).float().sum() * params["reward"]

    def terminated(self, state: GuessState, params: Mapping, shared: Mapping) -> Tensor:
        return state.steps >= 8

    def truncated(self, state: GuessState, params: Mapping, shared: Mapping) -> Tensor:
        return state.steps < 0

    def grade(self, state: GuessState, params: Mapping, shared: Mapping) -> Tensor:
        return torch.ones(())


def guess_env(num_envs: int, seed: int = 0, choices: tuple[int, ...] = (3, 4)) -> VecEnv:
    return VecEnv(Guess(choices), num_envs, seed, "cpu", False)
