"""Ids of the random streams of episodes, one per purpose, so that no two purposes share random numbers.

Generators of shared data use ids from `FIRST_OF_GENERATORS` on: an episode and a generated path may have the same
random key.
"""

from __future__ import annotations

from enum import IntEnum

FIRST_OF_GENERATORS = 0x1000_0000


class EpisodeStream(IntEnum):
    """Streams of an episode: ids below `ACTION` belong to the scenario's rules."""

    RESET = 0
    """Rules: where the episode starts."""
    LEVEL_PATH = 1
    """Curriculum: choice of a path of a level."""
    ACTION = 1 << 16
    """Agents: random actions and sampled tokens of a language model."""
    POLICY = ACTION + 1
    """Trained policies: sampled actions."""
