"""Common settings of learners: optimiser, run and networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RunConfig:
    """Settings of the optimiser and the run."""

    total_frames: int = 1_250_000
    """Total environment steps over all sub-environments; rounded up to whole rollouts."""
    epochs: int = 4
    """Passes over each batch."""
    minibatches: int = 8
    """Number of equal parts of a batch; one optimiser step each."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    anneal: bool = True
    """Lower the learning rate linearly to zero over the run."""
    max_grad_norm: float = 0.5
    """Gradient clipping: largest global norm."""
    seed: int = 0
    """Seed of the initial weights and the minibatches; the environment has another."""
    checkpoint_every: int = 10
    """Updates between checkpoints."""
    tensorboard: bool = False
    """Also write TensorBoard's event files."""

    def __post_init__(self) -> None:
        self._check_least(1, "total_frames", "epochs", "minibatches", "checkpoint_every")
        self._check_positive("learning_rate", "max_grad_norm")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in [0, 2^32), got {self.seed}")

    def _check_least(self, least: float, *names: str) -> None:
        for name in names:
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def _check_positive(self, *names: str) -> None:
        for name in names:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    def _check_share(self, *names: str) -> None:
        for name in names:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")


@dataclass(frozen=True)
class NetworkConfig(RunConfig):
    """Settings of a run with actor and critic networks."""

    policy: Literal["flat", "symbol", "attention"] = "flat"
    """Network on the whole observation, one scorer shared by all symbols, or one in which symbols see each other."""
    head: Literal["gaussian", "dirichlet"] = "gaussian"
    """Distribution of continuous actions: normal, or Dirichlet where actions are target weights; choices need none."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of each network."""
    initial_std: float = 0.5
    """Initial standard deviation of continuous actions, relative to half the width of their bounds; dirichlet: that of
    a weight, relative to the weight."""
    bf16: bool = False
    """Multiply in bfloat16 in the hidden layers."""
    normalise_observations: bool = True
    """Scale observations by their running mean and standard deviation, clipped to 10 deviations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("initial_std")


@dataclass(frozen=True)
class LearnerConfig(NetworkConfig):
    """Settings of a learner that samples its actions."""

    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
