"""Settings of supervised fine-tuning, and validation of its conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class SupervisedConfig:
    """Settings of supervised fine-tuning."""

    epochs: int = 1
    """Epochs over the conversations."""
    batch_size: int = 16
    """Contexts per optimiser step; a context holds one or more answers."""
    learning_rate: float | None = None
    """Learning rate of AdamW, decayed linearly to zero; by default 1e-5, and 3e-3 for a tiny model."""
    max_grad_norm: float = 1.0
    """Gradient clipping norm."""
    test_fraction: float = 0.05
    """Share of the conversations, the last ones, that is for the test: nothing is learned or chosen on them."""
    tokens_at_once: int = 16_384
    """Tokens per forward pass; gradients accumulate over a step."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "tokens_at_once"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if not 0 <= self.test_fraction < 1:
            raise ValueError(f"test_fraction must be in [0, 1), got {self.test_fraction}")


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
