"""Sizes of the tiny language model that is built without downloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vecenv.system.settings import Count, Settings, Within

TINY = "tiny"
"""Name of the model that is built without downloads."""

TINY_RATE = 3e-3
"""Default learning rate of supervised training from random weights."""


@dataclass(frozen=True)
class TinyConfig(Settings):
    """Sizes of the tiny model."""

    hidden: Annotated[int, Within(1, 2**14)] = 64
    """Hidden size."""
    layers: Annotated[int, Within(1, 2**10)] = 2
    """Number of layers."""
    heads: Count = 4
    """Number of attention heads."""
    vocabulary: Annotated[int, Within(261, 2**20)] = 1024
    """Largest vocabulary: 256 bytes, 5 chat tokens, and frequent pieces of the texts."""
    longest: Annotated[int, Within(2)] = 8192
    """Maximum context length in tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden {self.hidden} must be a multiple of twice the heads, {2 * self.heads}")
