"""Interface of trunks: sequence models over a symbol's days, for whole sequences or step by step with a cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn


class TrunkCache(Protocol):
    """State of a trunk after the days read, for each of B sequences."""

    def chosen(self, rows: Tensor) -> Self:
        """Return a copy for sequences given by number, which may repeat. Shape of the numbers: (N,)."""
        ...

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the caches of sequences that have read the same number of days."""
        ...

    def repeatable(self) -> Self | None:
        """Return a tensor-only cache whose steps have the same operations every day; None if they still differ."""
        ...


CacheT = TypeVar("CacheT", bound=TrunkCache)


class Trunk(nn.Module, ABC, Generic[CacheT]):
    """Causal map from each day's features to a representation for predicting the next day."""

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Read whole sequences. Shape: (B, T, F) -> (B, T, width)."""

    @abstractmethod
    def prefill(self, features: Tensor) -> tuple[Tensor, CacheT]:
        """Read a history; return the output of its last day, and the cache. Shape: (B, T, F) -> (B, width)."""

    def day_weights(self, cache: CacheT) -> Any:  # noqa: ANN401, each trunk has its own
        """Return precomputed weights of the next day's `step`, equal for all sequences of one length."""
        return None

    @abstractmethod
    def step(self, features: Tensor, cache: CacheT, day_weights: Any = None) -> tuple[Tensor, CacheT]:  # noqa: ANN401
        """Read one more day with `day_weights` of all chunks; may write to the cache. Shape: (B, F) -> (B, width)."""


class Bfloat16Trunk(Trunk[Any]):
    """A copy of a trunk in bfloat16, with inputs and outputs in float32."""

    def __init__(self, trunk: Trunk[Any]) -> None:
        super().__init__()
        self.inner = deepcopy(trunk).to(torch.bfloat16).eval()

    def forward(self, features: Tensor) -> Tensor:
        read: Tensor = self.inner(features.bfloat16())
        return read.float()

    def prefill(self, features: Tensor) -> tuple[Tensor, Any]:
        known, cache = self.inner.prefill(features.bfloat16())
        return known.float(), cache

    def day_weights(self, cache: Any) -> Any:  # noqa: ANN401, the inner trunk's own
        return self.inner.day_weights(cache)

    def step(self, features: Tensor, cache: Any, day_weights: Any = None) -> tuple[Tensor, Any]:  # noqa: ANN401
        known, after = self.inner.step(features.bfloat16(), cache, day_weights)
        return known.float(), after
