"""Sizes of the tiny language model that is built without downloads."""

from __future__ import annotations

from dataclasses import dataclass

TINY_RATE = 3e-3
"""Default learning rate of supervised training from random weights."""


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of the tiny model."""

    hidden: int = 64
    """Hidden size."""
    layers: int = 2
    """Number of layers."""
    heads: int = 4
    """Number of attention heads."""
    vocabulary: int = 1024
    """Largest vocabulary: 256 bytes, 5 chat tokens, and frequent pieces of the texts."""
    longest: int = 8192
    """Maximum context length in tokens."""

    def __post_init__(self) -> None:
        for name, least in (("hidden", 1), ("layers", 1), ("heads", 1), ("vocabulary", 261), ("longest", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden {self.hidden} must be a multiple of twice the heads, {2 * self.heads}")
