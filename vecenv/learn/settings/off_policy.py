"""Settings and records of the learners from a replay buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vecenv.learn import Algorithm
from vecenv.learn.settings.run import NetworkConfig
from vecenv.system.later import later
from vecenv.system.settings import Count, NotNegative, Positive, PositiveShare, Share


@dataclass(frozen=True)
class OffPolicyConfig(NetworkConfig):
    """Settings of a learner from a replay buffer, with a target network."""

    epochs: Count = 1
    """Passes over the steps drawn after a rollout; further steps cost as little to draw anew."""
    minibatches: Count = 16
    """Optimiser steps after each rollout, each on a minibatch of its own."""
    minibatch_size: Count = 1024
    """Steps of the replay buffer in a minibatch, drawn uniformly."""
    num_steps: Count = 16
    """Steps per rollout and sub-environment."""
    gamma: Share = 0.99
    """Discount per step."""
    buffer_size: Count = 131_072
    """Steps that the replay buffer holds, the last ones of all sub-environments; checkpoints hold them too."""
    target_rate: PositiveShare = 0.01
    """Share of the way to the learned network that the target network goes: 1 copies it."""
    target_every: Count = 1
    """Optimiser steps from one move of the target network to the next."""
    normalise_rewards: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""

    unused: ClassVar[dict[str, str]] = {"epochs": "a learner that reuses its batch"}

    def check_rollout(self, num_envs: int) -> None:
        """Raise ValueError unless the buffer holds a rollout."""
        if self.buffer_size < self.num_steps * num_envs:
            raise ValueError(
                f"buffer_size must be at least a rollout, num_steps {self.num_steps} x num_envs {num_envs}, "
                f"got {self.buffer_size}"
            )


@dataclass(frozen=True)
class ContinuousConfig(OffPolicyConfig):
    """Settings of a learner of continuous actions from replay."""

    learning_rate: Positive = 3e-3
    """Learning rate of Adam."""
    num_steps: Count = 4
    """Steps per rollout and sub-environment."""
    target_rate: PositiveShare = 0.005
    """Share of the way to the learned networks that the target networks go."""

    unused: ClassVar[dict[str, str]] = {"head": "a learner with a choice of heads"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy != "flat":
            raise ValueError(
                f"the critics of actions see the whole observation: policy must be flat for this learner, got "
                f"{self.policy}"
            )


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """Settings of deep Q-learning."""

    double: bool = False
    """Double: of what follows, the learned network chooses the action, and the target network values it."""
    duelling: bool = False
    """Duelling: one network for the value of what is seen, one for the advantages of the choices."""
    epsilon_start: Share = 1.0
    """Share of random actions at the start."""
    epsilon_end: Share = 0.05
    """Share of random actions after the exploration."""
    exploration_fraction: Share = 0.3
    """Share of the frames over which the share of random actions falls along a line."""

    unused: ClassVar[dict[str, str]] = dict.fromkeys(("head", "initial_std"), "a learner of continuous actions")

    def epsilon(self, progress: float) -> float:
        """Return the share of random actions after a share ``progress`` of the frames."""
        fallen = min(1.0, progress / self.exploration_fraction) if self.exploration_fraction else 1.0
        return self.epsilon_start + fallen * (self.epsilon_end - self.epsilon_start)


@dataclass(frozen=True)
class SACConfig(ContinuousConfig):
    """Settings of SAC."""

    head: Literal["tanh_normal"] = "tanh_normal"
    """Actions are normal numbers, with a deviation of their own in every state, squashed into their bounds by tanh."""
    initial_std: Positive = 0.5
    """Initial standard deviation of actions before they are squashed, in half widths of their bounds."""
    initial_temperature: Positive = 0.1
    """Initial weight of the entropy; it is learned."""
    target_entropy: float = -1.0
    """Entropy that the temperature holds, for each number of an action, in half widths of its bounds."""


@dataclass(frozen=True)
class DDPGConfig(ContinuousConfig):
    """Settings of DDPG."""

    initial_std: Positive = 1.0
    """Standard deviation of the noise on collected actions, relative to half the width of their bounds."""


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Settings of TD3."""

    target_every: Count = 2
    """Optimiser steps from one move of the target networks to the next."""
    policy_every: Count = 2
    """Optimiser steps from one move of the actor to the next; the critics move at every one."""
    target_std: NotNegative = 0.2
    """Standard deviation of the noise on the target actor's actions, relative to half the width of their bounds."""
    target_noise_clip: NotNegative = 0.5
    """Largest magnitude of that noise, in the same unit."""


DQN = Algorithm(
    name="dqn",
    summary="values of a single choice, with replay",
    learner=later("vecenv.learn.dqn:DQN"),
    config=DQNConfig,
    actions="one choice",
)

SAC = Algorithm(
    name="sac",
    summary="random actions with as much entropy as is asked for, with replay",
    learner=later("vecenv.learn.sac:SAC"),
    config=SACConfig,
    actions="numbers",
)

TD3 = Algorithm(
    name="td3",
    summary="two critics of actions and an actor that moves less often, with replay",
    learner=later("vecenv.learn.td3:TD3"),
    config=TD3Config,
    actions="numbers",
)

DDPG = Algorithm(
    name="ddpg",
    summary="a critic of actions and an actor that climbs it, with replay",
    learner=later("vecenv.learn.td3:TD3"),
    config=DDPGConfig,
    actions="numbers",
)
