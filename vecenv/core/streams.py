"""Numbers of the random streams of episodes: who draws from which, so that no two purposes share a number.

Generators of what all rows share draw from numbers at and above `FIRST_OF_GENERATORS`: a seed may name an episode and a
generated path with the same key.
"""

from __future__ import annotations

from enum import IntEnum

FIRST_OF_GENERATORS = 0x1000_0000


class EpisodeStream(IntEnum):
    """Streams of an episode: its rules have all below those of its actions."""

    RESET = 0
    """Rules: where the episode lies."""
    LEVEL_PATH = 1
    """Curriculum: the path among those of a level."""
    ACTION = 1 << 16
    """Agents: random actions, and the tokens of a language model."""
    POLICY = ACTION + 1
    """Policies that are trained."""
