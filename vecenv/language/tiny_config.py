"""Sizes of a model that is built from nothing."""

from __future__ import annotations

from dataclasses import dataclass

TINY_RATE = 3e-3
"""Step size of supervised training from random weights."""


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of the tiny model."""

    hidden: int = 64
    """Width."""
    layers: int = 2
    """Layers."""
    heads: int = 4
    """Heads of attention."""
    vocabulary: int = 1024
    """Tokens at most: 256 bytes, 5 of the chat, and pieces that are frequent in the texts."""
    longest: int = 8192
    """Tokens of the longest context."""

    def __post_init__(self) -> None:
        for name, least in (("hidden", 1), ("layers", 1), ("heads", 1), ("vocabulary", 261), ("longest", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden {self.hidden} must be a multiple of twice the heads, {2 * self.heads}")
