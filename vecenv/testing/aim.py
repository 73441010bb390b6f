"""The tiny task on which `check_learner` makes learners run: come near a place on a line, by numbers or by choices."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Bounded, Categorical

from vecenv.core.capabilities import Differentiable, Masked, RiskAware, Tensors
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey, uniform
from vecenv.core.scenario import Scenario

LONGEST = 5
"""Steps of the longest episode; lengths are random."""

CHOICES = 3


class AimState(TensorClass):
    """Place and target on a line, steps taken and to take. Shape of each: ()."""

    place: Tensor
    target: Tensor
    steps: Tensor
    length: Tensor


class Aim(Masked, RiskAware, Differentiable, Scenario[AimState]):
    """Every step earns less, the further the place is from the target; ``actions`` are ``numbers`` or ``choices``.

    Episodes of odd length terminate, those of even length are truncated. Two numbers move the place, of unequal bounds
    and weights, so that rewards are smooth in them; or one of three choices: down, nothing, up. Of the choices one is
    always masked, which depends on the place. The risk level grows with the steps.
    """

    name, version = "aim", "1"
    longest = LONGEST

    def __init__(self, actions: str) -> None:
        self.shared: Tensors = {}
        self.params: Tensors = {"pull": torch.tensor([0.5, -0.2])}
        self.smooth = actions == "numbers"
        if self.smooth:
            self.action_spec = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]), (2,))
        else:
            self.action_spec = Categorical(CHOICES, (1,), dtype=torch.int64)

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> AimState:
        place, target, share = uniform(key, 0, torch.arange(3, device=key.episode.device)).unbind()
        length = 2 + (share * (LONGEST - 1)).long()
        return AimState(
            place=2 * place - 1, target=2 * target - 1, steps=torch.zeros_like(length), length=length, batch_size=[]
        )

    def step(self, state: AimState, action: Tensor, params: Tensors, shared: Tensors) -> AimState:
        if self.smooth:
            low, high = self.action_spec.space.low, self.action_spec.space.high
            moved = (action.clamp(low, high) * params["pull"]).sum()
        else:
            moved = 0.5 * (action[0] - 1).float()
        return AimState(
            place=state.place + moved, target=state.target, steps=state.steps + 1, length=state.length, batch_size=[]
        )

    def observation(self, state: AimState, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        return torch.stack([state.place, state.target]), (state.length - state.steps).float().unsqueeze(-1)

    def reward(self, state: AimState, action: Tensor, next_state: AimState, params: Tensors, shared: Tensors) -> Tensor:
        return 0.1 - (next_state.place - next_state.target).square()

    def risk_level(self, state: AimState, next_state: AimState, params: Tensors, shared: Tensors) -> Tensor:
        return 1.0 + next_state.steps / state.length

    def terminated(self, state: AimState, params: Tensors, shared: Tensors) -> Tensor:
        return (state.steps >= state.length) & (state.length % 2 == 1)

    def truncated(self, state: AimState, params: Tensors, shared: Tensors) -> Tensor:
        return (state.steps >= state.length) & (state.length % 2 == 0)

    def grade(self, state: AimState, params: Tensors, shared: Tensors) -> Tensor:
        return torch.exp(-(state.place - state.target).square())

    def action_mask(self, observation: Tensor) -> Tensor | None:
        if self.smooth:
            return None
        masked = (observation[:, 0].abs() * 10).long() % CHOICES
        return masked.unsqueeze(-1) != torch.arange(CHOICES, device=observation.device)


def aim_env(actions: str, num_envs: int = 8, seed: int | Tensor = 0, compiled: bool = False, **more: Any) -> VecEnv:
    """Return an environment of `Aim`; ``more`` are further arguments of `VecEnv`."""
    return VecEnv(Aim(actions), num_envs, seed, "cpu", compiled, **more)
