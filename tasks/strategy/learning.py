"""Settings and record of the learner `tokens`, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vecenv.learn import Algorithm
from vecenv.learn.settings.run import Frames, RunSeed
from vecenv.programs.limits import DEEPEST
from vecenv.system.later import later
from vecenv.system.settings import Count, NotNegative, OpenShare, Positive, Settings, Within


@dataclass(frozen=True)
class TokensConfig(Settings):
    """Settings of the policy over tokens and of its training."""

    total_frames: Frames = 12_800
    """Programs that are written and graded; rounded up to whole batches of ``num_envs``."""
    top: OpenShare = 0.1
    """Share of a batch that is learned from."""
    entropy: NotNegative = 0.02
    """Weight of the bonus for entropy."""
    learning_rate: Positive = 3e-3
    """Learning rate of Adam."""
    hidden: Count = 64
    """Size of the policy's state."""
    longest: Annotated[int, Within(4, DEEPEST - 4)] = 20
    """Tokens of a program at most: all may stand within each other, and within the operations around an output."""
    fresh: bool = True
    """Grade each batch on other paths; otherwise all on the same ones."""
    seed: RunSeed = 0
    """Seed of the initial weights, the programs and the paths."""
    checkpoint_every: Count = 10
    """Batches between checkpoints."""


ALGORITHM = Algorithm(
    name="tokens",
    summary="a small policy over tokens of the program language, which learns from the best of each batch",
    learner=later("vecenv.tasks.strategy.token_learner:beginner"),
    config=TokensConfig,
    talks=True,
)
