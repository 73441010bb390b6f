"""Settings and record of learning by the exact gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vecenv.learn import Algorithm
from vecenv.learn.settings.run import NetworkConfig
from vecenv.system.later import later
from vecenv.system.settings import Count, PositiveShare


@dataclass(frozen=True)
class ExactConfig(NetworkConfig):
    """Settings of learning by the exact gradient."""

    head: Literal["gaussian", "dirichlet"] = "gaussian"
    """Distribution of continuous actions, whose most probable ones are played: normal, or Dirichlet where actions are
    target weights."""
    num_steps: Count = 16
    """Steps through which the gradient flows, T; one optimiser step each."""
    worst: PositiveShare = 1.0
    """Share of the windows of each shard, the worst ones, whose mean reward is maximised: 1 for the mean, 0.1 for CVaR
    at 10%."""

    unused: ClassVar[dict[str, str]] = dict.fromkeys(("epochs", "minibatches"), "a learner that samples its actions")


EXACT = Algorithm(
    name="exact",
    summary="the gradient through the account itself, without a critic",
    learner=later("vecenv.learn.exact:Exact"),
    config=ExactConfig,
    smooth=True,
)
