"""Settings of runs of any learner, and of the networks of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro import conf

from vecenv.system.settings import Count, Items, Positive, Settings, Within

Frames = Annotated[int, Within(1, limit=2**53)]
"""Numbers of steps."""


CHECKPOINT, METRICS, RESULTS = "checkpoint.pt", "metrics.csv", "metrics.json"
"""Files of a run's folder: its state, the metrics of its updates, and what it was found to be worth."""

RunSeed = Annotated[int, Within(0, 2**32, below=True)]
"""Seeds of runs."""

HeadName = Literal["gaussian", "dirichlet", "tanh_normal"]
"""Distributions of continuous actions: see `vecenv.learn.policies.make_network`."""

Trackers = Literal["none", "tensorboard", "wandb", "mlflow", "trackio"]
"""What shows runs elsewhere, see `vecenv.learn.trackers`."""

Precision = Literal["auto", "float32", "bfloat16"]
"""Types of the numbers that hidden layers multiply."""

AUTO: Precision = "float32"
"""What ``auto`` means on every processor; why, is told in benchmarks/results/learners.md."""


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
    shards: Count = 1
    """Equal parts of the rows, each with minibatches and gradients of its own, which are added in their order: what is
    learned is the same on any number of processes that divides it. 1 for one process, 8 by default for several."""
    checkpoint_every: Count = 10
    """Updates between checkpoints."""


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
    precision: Annotated[Precision, conf.arg(aliases=("--precision",))] = "auto"
    """Numbers that the hidden layers multiply, --precision for short. float32, bfloat16, or auto, which is float32 so
    far: settings and checkpoints have the word that it came to."""
    normalise_observations: bool = True
    """Scale observations by their running mean and standard deviation, clipped to 10 deviations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision == "auto":
            object.__setattr__(self, "precision", AUTO)


@dataclass(frozen=True)
class LearnerConfig(NetworkConfig):
    """Settings of a learner that samples its actions."""

    head: Literal["gaussian", "dirichlet"] = "gaussian"
    """Distribution of continuous actions: normal, or Dirichlet where actions are target weights; choices need none."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""


def with_present_names(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings of a learner of this version.

    Earlier ones had ``bf16``, true or false, instead of ``precision``, and ``tensorboard``, which is a tracker now.
    """
    own = {name: value for name, value in stored.items() if name != "tensorboard"}
    if "bf16" in own:
        own["precision"] = "bfloat16" if own.pop("bf16") else "float32"
    return own


def check_shards(count: int, ranks: int, units: int, what: str) -> None:
    """Raise ValueError unless S shards split over the ranks, and ``units``, called ``what``, over the shards."""
    if count > units or units % count:
        raise ValueError(f"{units} {what} cannot be split into {count} equal shards: {_nearest(count, units)}")
    if count == 1 and ranks > 1:
        raise ValueError(
            f"a run of one shard is one process's, not that of {ranks}: a run that several can share begins with "
            "--processes, or with learner.shards above 1"
        )
    if ranks > count or count % ranks:
        told = _nearest(ranks, count, "processes")
        raise ValueError(f"{count} shards cannot be shared evenly by {ranks} processes: {told}")


def _nearest(asked: int, whole: int, what: str = "shards") -> str:
    """Tell the divisors of a number that are next to another one."""
    divisors = [number for number in range(1, whole + 1) if whole % number == 0]
    below = [number for number in divisors if number < asked][-1:]
    above = [number for number in divisors if number > asked][:1]
    return f"take {' or '.join(map(str, below + above))} {what}"
