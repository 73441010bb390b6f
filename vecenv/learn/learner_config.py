"""Common settings of learners: optimiser, run and networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vecenv.system.settings import Count, Items, Positive, PositiveShare, Settings, Share, Within

HeadName = Literal["gaussian", "dirichlet", "tanh_normal"]
"""Distributions of continuous actions: see `vecenv.learn.actor_policy.make_network`."""


Frames = Annotated[int, Within(1, limit=2**53)]
"""Numbers of steps."""

RunSeed = Annotated[int, Within(0, 2**32, below=True)]
"""Seeds of runs."""


@dataclass(frozen=True)
class RunConfig(Settings):
    """Settings of the optimiser and the run."""

    total_frames: Frames = 1_250_000
    """Total environment steps over all sub-environments; rounded up to whole rollouts."""
    epochs: Count = 4
    """Passes over each batch."""
    minibatches: Count = 8
    """Number of equal parts of a batch; one optimiser step each."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    anneal: bool = True
    """Lower the learning rate linearly to zero over the run."""
    max_grad_norm: Positive = 0.5
    """Gradient clipping: largest global norm."""
    seed: RunSeed = 0
    """Seed of the initial weights and the minibatches; the environment has another."""
    checkpoint_every: Count = 10
    """Updates between checkpoints."""
    tensorboard: bool = False
    """Also write TensorBoard's event files."""


@dataclass(frozen=True)
class NetworkConfig(RunConfig):
    """Settings of a run with actor and critic networks."""

    policy: Literal["flat", "symbol", "attention"] = "flat"
    """Network on the whole observation, one scorer shared by all symbols, or one in which symbols see each other."""
    head: HeadName = "gaussian"
    """Distribution of continuous actions: normal, or Dirichlet where actions are target weights; choices need none.
    tanh_normal: normal with a deviation of its own in every state, squashed into the bounds."""
    hidden: Annotated[tuple[Annotated[int, Within(1, 2**14)], ...], Items(most=64)] = (64, 64)
    """Widths of the hidden layers of each network."""
    initial_std: Positive = 0.5
    """Initial standard deviation of continuous actions, relative to half the width of their bounds; dirichlet: that of
    a weight, relative to the weight."""
    bf16: bool = False
    """Multiply in bfloat16 in the hidden layers."""
    normalise_observations: bool = True
    """Scale observations by their running mean and standard deviation, clipped to 10 deviations."""


@dataclass(frozen=True)
class LearnerConfig(NetworkConfig):
    """Settings of a learner that samples its actions."""

    head: Literal["gaussian", "dirichlet"] = "gaussian"
    """Distribution of continuous actions: normal, or Dirichlet where actions are target weights; choices need none."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""


@dataclass(frozen=True)
class OnPolicyConfig(LearnerConfig):
    """Settings of a learner that estimates advantages of its own rollouts."""

    num_steps: Count = 64
    """Steps per rollout and sub-environment."""
    gamma: Share = 0.99
    """Discount per step."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimation."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    by_reference: bool | None = None
    """Keep of an observation what is a row's own and the day of the market, whose part of the first layer is computed
    once per update; flat policies only. By default where a batch has twice as many steps as the market has days."""
    normalise_rewards: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""
    normalise_advantages: bool = True
    """Scale the advantages of each batch to mean 0 and standard deviation 1."""


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

    def inapplicable(self) -> dict[str, str]:
        """Return the settings without effect, with what each requires."""
        return {"epochs": "a learner that reuses its batch"}

    def check_rollout(self, num_envs: int) -> None:
        """Raise ValueError unless the buffer holds a rollout."""
        if self.buffer_size < self.num_steps * num_envs:
            raise ValueError(
                f"buffer_size must be at least a rollout, num_steps {self.num_steps} x num_envs {num_envs}, "
                f"got {self.buffer_size}"
            )
