"""Settings of supervised fine-tuning, and validation of its conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vecenv.system.settings import Count, Fraction, Positive, Settings

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class SupervisedConfig(Settings):
    """Settings of supervised fine-tuning."""

    epochs: Count = 1
    """Epochs over the conversations."""
    batch_size: Count = 16
    """Contexts per optimiser step; a context holds one or more answers."""
    learning_rate: Positive | None = None
    """Learning rate of AdamW, decayed linearly to zero; by default 1e-5, and 3e-3 for a tiny model."""
    max_grad_norm: Positive = 1.0
    """Gradient clipping norm."""
    test_fraction: Fraction = 0.05
    """Share of the conversations, the last ones, that is for the test: nothing is learned or chosen on them."""
    tokens_at_once: Count = 16_384
    """Tokens per forward pass; gradients accumulate over a step."""


def checked_messages(messages: object, name: str) -> Messages:
    """Return a conversation: an optional system message, then alternating users and assistants; else ValueError."""
    if not isinstance(messages, list) or not all(
        isinstance(said, dict) and isinstance(said.get("role"), str) and isinstance(said.get("content"), str)
        for said in messages
    ):
        raise ValueError(f"{name}: messages must be a list of objects with role and content, both texts")
    roles = [said["role"] for said in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if not turns or turns != ["user", "assistant"] * (len(turns) // 2):
        raise ValueError(f"{name}: users and assistants must alternate, but roles are {', '.join(roles[:4]) or 'none'}")
    return messages
