"""Base class of learners from a replay buffer: transitions, scaled rewards and target networks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Generic, TypeVar

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import ReplayBuffer, TensorStorage

from vecenv.core.device import check_memory
from vecenv.core.env import VecEnv
from vecenv.learn.learner import Learner
from vecenv.learn.learner_config import OffPolicyConfig
from vecenv.learn.reward_scale import RewardScale
from vecenv.learn.runs import Metrics

Config = TypeVar("Config", bound=OffPolicyConfig)


class OffPolicyLearner(Learner[Config], Generic[Config]):
    """A learner from TorchRL's replay buffer, with target networks that follow the learned ones; `run` runs it.

    Raises:
        ValueError: the buffer does not hold a rollout or does not fit into memory, or the network does not fit the
            task.
    """

    def __init__(self, env: VecEnv, config: Config, with_critic: bool) -> None:
        config.check_rollout(env.num_envs)
        # Twice: the state of the last update is kept for an interruption.
        check_memory(16 * config.buffer_size * sum(env.block_widths), env.device, f"{config.buffer_size:,} kept steps")
        units = config.minibatches * config.minibatch_size
        super().__init__(env, config, config.num_steps, units, with_critic)
        self.target = [parameter.clone() for parameter in self.followed()]
        self.reward_scale = RewardScale(env.num_envs, config.gamma, env.device)
        size = config.buffer_size
        kept = {name: part.new_zeros(size, *part.shape[2:]) for name, part in self._steps().items()}
        storage = TensorStorage(TensorDict(kept, [size], device=env.device), device=env.device)
        self.replay = ReplayBuffer(storage=storage, generator=self.generator)
        self.replay.empty()

    @abstractmethod
    def taken(self) -> Tensor:
        """Return the actions of the rollout, as the buffer keeps them. Shape: (T, N, A)."""

    def followed(self) -> list[Tensor]:
        """Return the parameters that the target networks follow: by default all."""
        return self.parameters

    def noise(self) -> list[Tensor]:
        """Return random numbers of the drawn steps, further tensors of `objective`. Shape of each: (units, ...)."""
        return []

    def state_dict(self) -> dict[str, Any]:
        replay = {"storage": self.replay.storage.state_dict(), "writer": self.replay.writer.state_dict()}
        own = {"target": [parameter.clone() for parameter in self.target], "replay": deepcopy(replay)}
        return super().state_dict() | self.reward_scale.state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.reward_scale.load_state_dict(state)
        for own, saved in zip(self.target, state["target"], strict=True):
            own.copy_(saved)
        self.replay.storage.load_state_dict(state["replay"]["storage"])
        self.replay.writer.load_state_dict(state["replay"]["writer"])

    def prepare(self) -> None:
        """Collect a rollout for moments and scale of the rewards alone, and set the target to an initial policy."""
        super().prepare()
        self._move_target(1.0)

    def collect(self) -> None:
        self.collector.rollout()

    def learn(self) -> Metrics:
        self.replay.extend(self._transitions())
        drawn = self.replay.sample(self.units)
        reward = self.reward_scale.scaled(drawn["reward"]) if self.config.normalise_rewards else drawn["reward"]
        batch = [drawn["observation"], drawn["action"], reward, drawn["terminated"], drawn["next_observation"]]
        return self.minimise([*batch, *self.noise()])

    def update_moments(self) -> None:
        super().update_moments()
        if self.config.normalise_rewards:
            self.reward_scale.update(self.collector)

    def _transitions(self) -> TensorDict:
        """Return the steps of the rollout. Batch size: [T * N]."""
        collector, steps = self.collector, self._steps()
        # A step's next observation is that of the next step, except at ends of episodes and of the rollout.
        observation = steps["observation"]
        following = torch.cat([observation[1:], observation[-1:]])
        cut = collector.terminated | collector.truncated
        cut[-1] = True
        step, ids = cut.nonzero(as_tuple=True)
        following[step, ids] = collector.final_observations(step, ids)
        steps["next_observation"] = following
        return TensorDict(steps, collector.reward.shape, device=self.env.device).flatten()

    def _steps(self) -> dict[str, Tensor]:
        """Return what the buffer keeps of the rollout's steps. Shape of each: (T, N, ...)."""
        collector = self.collector
        (observation,) = collector.seen
        return {
            "observation": observation,
            "action": self.taken(),
            "reward": collector.reward.float(),
            "terminated": collector.terminated,
            "next_observation": observation,
        }

    def constants(self) -> list[Tensor]:
        return [*self.moments, *self.target]

    def after_step(self, number: int) -> None:
        if number % self.config.target_every == 0:
            self._move_target(self.config.target_rate)

    def _move_target(self, rate: float) -> None:
        torch._foreach_lerp_(self.target, self.followed(), rate)

    def pick(self, tensor: Tensor, index: Tensor) -> Tensor:
        return tensor[index]
