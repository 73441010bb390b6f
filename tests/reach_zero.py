"""A task as a stranger would write it: no market, no account, a line of text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Bounded

from vecenv import Scenario, Task, TextInterface
from vecenv.core.random import uniform
from vecenv.learn.domain import Domain

_NUMBER = re.compile(r"-?(0?\.[0-9]{1,9}|[01]|1\.0{1,9})")


@dataclass(frozen=True)
class WalkConfig:
    speed: float = 0.1


class Walk(TensorClass):
    position: Tensor
    day: Tensor


class ReachZero(Scenario[Walk]):
    shared = MappingProxyType({})
    longest = 20

    def __init__(self, config: WalkConfig) -> None:
        self.params = {"speed": torch.tensor(config.speed)}
        self.action_spec = Bounded(-1.0, 1.0, (1,))

    def reset(self, key, params, shared):
        return Walk(position=2 * uniform(key, stream=0) - 1, day=0 * key.episode, batch_size=[])

    def step(self, state, action, params, shared):
        moved = params["speed"] * action[0].clamp(-1, 1)
        return Walk(position=state.position + moved, day=state.day + 1, batch_size=[])

    def observation(self, state, params, shared):
        return (state.position.unsqueeze(-1),)

    def reward(self, state, action, next_state, params, shared):
        return -next_state.position.abs()

    def terminated(self, state, params, shared):
        return state.position.abs() < 0.01

    def truncated(self, state, params, shared):
        return state.day >= 20

    def grade(self, state, params, shared):
        return (1 - state.position.abs()).clamp(0, 1)

    def info(self, state, params, shared):
        return {"distance": state.position.abs()}


class WalkText(TextInterface):
    def __init__(self, scenario: ReachZero) -> None:
        self.scenario = scenario

    def render(self, observations: Tensor, state: Walk) -> list[str]:
        return [f"You are at {position:+.2f}." for (position,) in observations.tolist()]

    def instructions(self, state: Walk) -> list[str]:
        return ["Reach zero: answer with a number from -1 to 1."] * len(state.day)

    def parse(self, texts: Sequence[object], state: Walk) -> tuple[Tensor, Tensor]:
        read = [self._number(text) for text in texts]
        return torch.tensor([[number or 0.0] for number in read]), torch.tensor([number is not None for number in read])

    @staticmethod
    def _number(text: object) -> float | None:
        return float(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else None

    def random_answer(self, draw: Random) -> str:
        return f"{draw.uniform(-1, 1):.2f}"


class Homewards:
    def act(self, env) -> Tensor:
        return -(env.state.position / 0.1).clamp(-1, 1).unsqueeze(-1)


class Stand:
    def act(self, env) -> Tensor:
        return torch.zeros(env.num_envs, 1)


REACH_ZERO = Task(
    name="reach_zero",
    version="1",
    scenario=ReachZero,
    config=WalkConfig,
    agents={"stand": Stand, "homewards": Homewards},
    domain=Domain(reference="stand"),
    outcomes={"distance": "count"},
    text=WalkText,
)
