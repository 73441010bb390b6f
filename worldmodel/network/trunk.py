"""What every trunk can do: read days of each symbol, all at once or one by one, and tell what is known of the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, Self, TypeVar

from torch import Tensor, nn


class TrunkCache(Protocol):
    """What a trunk keeps of the days that it has read, for each of B sequences."""

    def chosen(self, rows: Tensor) -> Self:
        """Return a copy for some of the sequences, any of them more than once. Shape of the numbers: (N,)."""
        ...

    def repeatable(self) -> Self | None:
        """Return the cache as one of tensors alone, whose steps are the same operations; None while days differ."""
        ...


CacheT = TypeVar("CacheT", bound=TrunkCache)


class Trunk(nn.Module, ABC, Generic[CacheT]):
    """Maps the features of each day to what is known of the next day; no day sees a later one."""

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Read whole sequences. Shape: (B, T, F) -> (B, T, width)."""

    @abstractmethod
    def prefill(self, features: Tensor) -> tuple[Tensor, CacheT]:
        """Read a history; return what is known after its last day, and the cache. Shape: (B, T, F) -> (B, width)."""

    def day_weights(self, cache: CacheT) -> Any:  # noqa: ANN401, each trunk has its own
        """Return what `step` makes of the weights on the next day, the same for all sequences of one length."""
        return None

    @abstractmethod
    def step(self, features: Tensor, cache: CacheT, day_weights: Any = None) -> tuple[Tensor, CacheT]:  # noqa: ANN401
        """Read one more day; the cache given may be written to. Shape: (B, F) -> (B, width).

        Args:
            features: of the day.
            cache: of the days before.
            day_weights: from `day_weights` of any part of the sequences, which makes them once for all parts.
        """
