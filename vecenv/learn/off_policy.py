"""The base class of learners from a replay buffer, with target networks; critics of continuous actions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import ReplayBuffer, TensorStorage

from vecenv.core.env import VecEnv
from vecenv.learn.heads import Bounds
from vecenv.learn.learner import Learner
from vecenv.learn.networks import FlatNetwork, Network
from vecenv.learn.returns import RewardScale
from vecenv.learn.settings.off_policy import ContinuousConfig, OffPolicyConfig
from vecenv.learn.settings.run import check_shards
from vecenv.learn.shards import Shards
from vecenv.system.memory import check_memory

Config = TypeVar("Config", bound=OffPolicyConfig)


class OffPolicyLearner(Learner[Config], Generic[Config]):
    """A learner from TorchRL's replay buffer, with target networks that follow the learned ones; `run` runs it.

    Each shard has a buffer of its own, and draws its part of a minibatch of it.

    Raises:
        ValueError: the buffer does not hold a rollout or does not fit into memory, or the network does not fit the
            task.
    """

    of_rows = ("discounted_return", "replay")
    corrects_lag = True

    def __init__(self, env: VecEnv, config: Config, with_critic: bool) -> None:
        shards = Shards(config.shards)
        config.check_rollout(env.num_envs * shards.ranks.count)
        check_shards(shards.count, shards.ranks.count, config.minibatch_size, "steps of a minibatch")
        # Before and after each step; twice: the state of the last update is kept for an interruption.
        needed = 4 * config.buffer_size // shards.ranks.count * env.observation_form.nbytes
        check_memory(needed, env.device, f"{config.buffer_size:,} kept steps")
        units = config.minibatches * config.minibatch_size // shards.count * shards.own
        super().__init__(env, config, config.num_steps, with_critic, units)
        self.target = [parameter.clone() for parameter in self.followed()]
        self.reward_scale = RewardScale(env.num_envs, config.gamma, env.device)
        self.replays = [self._replay(generator) for generator in self.generators]

    def _replay(self, generator: torch.Generator) -> ReplayBuffer:
        """Return the empty buffer of a shard, which draws from a generator."""
        size = [self.config.buffer_size // self.shards.count]
        kept = self._steps().apply(lambda part: part.new_zeros(*size, *part.shape[2:]), batch_size=size)
        replay = ReplayBuffer(storage=TensorStorage(kept, device=self.env.device), generator=generator)
        replay.empty()
        return replay

    @abstractmethod
    def taken(self) -> Tensor:
        """Return the actions of the rollout, as the buffer keeps them. Shape: (T, N, A)."""

    def followed(self) -> list[Tensor]:
        """Return the parameters that the target networks follow: by default all."""
        return self.parameters

    def own_state(self) -> dict[str, Any]:
        own = {"target": [parameter.clone() for parameter in self.target], "replay": self._kept()}
        return super().own_state() | self.reward_scale.state_dict() | own

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        super().load_own_state(state)
        self.reward_scale.load_state_dict(state)
        for own, saved in zip(self.target, state["target"], strict=True):
            own.copy_(saved)
        kept = state["replay"]["storage"]
        for number, replay in enumerate(self.replays):
            parts = {name: self.shards.parts(steps, 0)[number] for name, steps in kept["_storage"].items()}
            # Blocks by name are a tensordict in it, which a state of plain names does not tell.
            steps = TensorDict(parts, [self.config.buffer_size // self.shards.count]).unflatten_keys(".")
            replay.storage.load_state_dict({**kept, "_storage": steps.state_dict()})
            replay.writer.load_state_dict(state["replay"]["writer"])

    def _kept(self) -> dict[str, Any]:
        """Return copies of the kept steps, of one own shard after the other: their buffers are equally full."""
        states = [replay.storage.state_dict() for replay in self.replays]
        steps = {name: torch.cat([one["_storage"][name] for one in states]) for name in states[0]["_storage"]}
        return {"storage": {**states[0], "_storage": steps}, "writer": dict(self.replays[0].writer.state_dict())}

    def prepare(self) -> None:
        """Collect a rollout for moments and scale of the rewards alone, and set the target to an initial policy."""
        super().prepare()
        self._move_target(1.0)

    def drawn(self) -> list[Tensor]:
        """Keep the rollout's steps, and return drawn ones, whose tensors `observed` makes vectors of.

        They are what was observed, action, reward, terminated, and what was observed next. Shape of each: (units, ...).
        """
        each, kept = self.units // self.shards.own, self._transitions()
        for replay, rows in zip(self.replays, self.shards.slices(self.env.num_envs), strict=True):
            replay.extend(kept[:, rows].flatten())
        samples = [replay.sample(each) for replay in self.replays]
        drawn: Any = samples[0] if len(samples) == 1 else torch.cat(samples)
        form = self.env.observation_form
        reward = self.reward_scale.scaled(drawn["reward"]) if self.config.normalise_rewards else drawn["reward"]
        before, after = (form.parts(drawn[name]) for name in ("observation", "next_observation"))
        return [*before, drawn["action"], reward, drawn["terminated"], *after]

    def places(self, order: Tensor, shard: int) -> Tensor:
        return shard * len(order) + order

    def standard_normal(self, size: int) -> Tensor:
        """Return so many numbers for each drawn unit. Shape: (units, size)."""
        each, device = self.units // self.shards.own, self.env.device
        return torch.cat([torch.randn(each, size, generator=one, device=device) for one in self.generators])

    def observed(self, picked: list[Tensor], market: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the flat observations of a minibatch; action, reward, terminated, the next ones, and what follows."""
        count, whole = len(self.collector.seen), self.collector.whole
        outcome, after = picked[count : count + 3], picked[count + 3 : 2 * count + 3]
        return whole(picked[:count]), [*outcome, whole(after), *picked[2 * count + 3 :]]

    def optimise(self, batch: list[Tensor], **how: Any) -> Tensor:  # noqa: ANN401
        """Extend `Learner.optimise`: `objective` reads moments and target networks last, which follow each step."""
        return super().optimise(batch, constants=[*self.moments, *self.target], after=self.after_step, **how)

    def update_moments(self) -> None:
        super().update_moments()
        if self.config.normalise_rewards:
            self.reward_scale.update(self.collector, self.shards)

    def _transitions(self) -> TensorDict:
        """Return the steps of the rollout. Batch size: [T, N]."""
        collector = self.collector
        # A step's next observation is that of the next step, except at ends of episodes and of the rollout.
        cut = collector.terminated | collector.truncated
        cut[-1] = True
        step, ids = cut.nonzero(as_tuple=True)
        final, following = self.env.observation_form.parts(collector.final_observations(step, ids)), []
        for seen, last in zip(collector.seen, final, strict=True):
            following.append(torch.cat([seen[1:], seen[-1:]]))
            following[-1][step, ids] = last
        return self._steps(following)

    def _steps(self, following: Sequence[Tensor] | None = None) -> TensorDict:
        """Return what the buffer keeps of the rollout's steps, observations as they are seen. Batch size: [T, N]."""
        collector, whole = self.collector, self.env.observation_form.whole
        steps = {
            "observation": whole(collector.seen),
            "action": self.taken(),
            "reward": collector.reward.float(),
            "terminated": collector.terminated,
            "next_observation": whole(collector.seen if following is None else following),
        }
        return TensorDict(steps, collector.reward.shape, device=self.env.device)

    def after_step(self, number: int) -> None:
        """Let the target networks follow, by the number of the optimiser step in the run, from 1."""
        if number % self.config.target_every == 0:
            self._move_target(self.config.target_rate)

    def _move_target(self, rate: float) -> None:
        torch._foreach_lerp_(self.target, self.followed(), rate)


class CriticLosses(NamedTuple):
    """The critics' summed mean squared error; mean absolute error, value and target of all. Shape of each: ()."""

    loss: Tensor
    error: Tensor
    value: Tensor
    target: Tensor


def critic_losses(values: Sequence[Tensor], target: Tensor) -> CriticLosses:
    """Return the losses of each critic's values against a constant target. Shape of values and target: (B,)."""
    errors = torch.stack(list(values)) - target
    return CriticLosses(
        loss=errors.square().mean(-1).sum(),
        error=errors.abs().mean(),
        value=torch.stack(list(values)).mean(),
        target=target.mean(),
    )


class ActionCritics:
    """Critics of states and actions, of which the smaller value counts: pure functions of a list of parameters.

    They see actions in half widths of their bounds, from the centre, as the environment takes them: clamped.
    """

    def __init__(self, network: Network, config: ContinuousConfig, bounds: Bounds, count: int) -> None:
        self.count = count
        self.each = FlatNetwork(
            network.moments_size + bounds.size, network.head, config.hidden, network.kind, network.mask
        )

    def initial_parameters(self, generator: torch.Generator, device: torch.device) -> list[Tensor]:
        """Return the parameters of all critics, one after the other."""
        made = (self.each.initial_parameters(generator, device)[1] for _ in range(self.count))
        return [parameter for critic in made for parameter in critic]

    def values(self, critics: Sequence[Tensor], inputs: Tensor, units: Tensor) -> list[Tensor]:
        """Return each critic's values of actions in half widths. Shapes: (B, D), (B, A) -> (B,) each."""
        seen, count = torch.cat([inputs, units], dim=-1), len(critics) // self.count
        each = (critics[first : first + count] for first in range(0, count * self.count, count))
        return [self.each.value(critic, seen) for critic in each]
