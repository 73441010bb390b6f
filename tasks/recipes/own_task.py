"""My task: reach zero against the wind, written for one agent; `vecenv` makes thousands of it and checks its rules."""

from dataclasses import dataclass

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Bounded

import vecenv
from vecenv.core.random import uniform
from vecenv.testing import check_task


@dataclass(frozen=True)
class WalkConfig:
    speed: float = 0.1


class Walk(TensorClass):
    position: Tensor
    day: Tensor


class ReachZero(vecenv.Scenario[Walk]):
    longest = 50

    def __init__(self, config):
        self.shared, self.params = {}, {"speed": torch.tensor(config.speed)}
        self.action_spec = Bounded(-1.0, 1.0, (1,))

    def reset(self, key, params, shared):
        return Walk(position=2 * uniform(key, stream=0) - 1, day=0 * key.episode, batch_size=[])

    def step(self, state, action, params, shared):
        return Walk(position=state.position + params["speed"] * action[0], day=state.day + 1, batch_size=[])

    def observation(self, state, params, shared):
        return (state.position.unsqueeze(-1),)

    def reward(self, state, action, next_state, params, shared):
        return -next_state.position.abs()

    def terminated(self, state, params, shared):
        return state.position.abs() < 0.01

    def truncated(self, state, params, shared):
        return state.day >= self.longest

    def grade(self, state, params, shared):
        return (1 - state.position.abs()).clamp(0, 1)


vecenv.register(vecenv.Task(name="walk_to_zero", version="1", scenario=ReachZero, config=WalkConfig))

if __name__ == "__main__":
    check_task("walk_to_zero", compiled=False)  # names the first rule that is broken
    env = vecenv.make("walk_to_zero", num_envs=2048, speed=0.2, compile=False)
    print(vecenv.FusedCollector(env, num_steps=32).rollout()["next", "reward"].mean())
