"""Interface of market models: log-densities of history, and generation of future days."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vecenv.market.bars import Bars


class MarketModel(ABC):
    """Conditional distribution of the next day's bars of all symbols, given the previous days.

    Attributes:
        name: in tables and pictures.
        has_density: whether `log_density` is defined.
        has_joint_density: whether `joint_log_density` is defined.
    """

    name: str
    has_density: bool = True
    has_joint_density: bool = True

    @abstractmethod
    def log_density(self, bars: Bars) -> Tensor:
        """Return log p of each close-to-close log-return given all previous days, in nats.

        Args:
            bars: one path of history.

        Returns:
            NaN where a symbol has no return on the day. Shape: (T, K), float64.

        Raises:
            ValueError: the model does not know a symbol.
            NotImplementedError: it has no density.
        """

    def joint_log_density(self, bars: Bars) -> Tensor:
        """Return the joint log p of all symbols' returns of a day, in nats; by default of independent symbols.

        Returns:
            NaN on days without any return. Shape: (T,), float64.

        Raises:
            ValueError: the model does not know a symbol.
            NotImplementedError: it has no joint density.
        """
        density = self.log_density(bars)
        some = density.isfinite().any(-1)
        return torch.where(some, density.nan_to_num(0.0).sum(-1), float("nan"))

    @abstractmethod
    def generate(self, history: Bars, num_paths: int, num_days: int, seed: int = 0) -> Tensor:
        """Draw the days after the last one of a history.

        Path p depends only on the seed and p, not on the number of paths; its first days not on the number of days.

        Args:
            history: one path, whose symbols all have a bar on the last day.
            num_paths: P.
            num_days: days to draw.
            seed: integer in [0, 2^64).

        Returns:
            Open, high, low, close, volume. Shape: (P, num_days, K, 5), float64.

        Raises:
            ValueError: the model does not know a symbol, or a symbol has no bar on the last day.
        """

    def generate_after(
        self, bars: Bars, days: Sequence[int], num_paths: int, num_days: int, seeds: Sequence[int]
    ) -> Iterator[Tensor]:
        """Draw the days after each of several days, as `generate` after the bars up to that day.

        Args:
            bars: one path, whose symbols all have a bar on these days.
            days: positions of the days.
            num_paths: P after each.
            num_days: days to draw.
            seeds: one per day.

        Yields:
            The result of `generate` for each day.

        Raises:
            ValueError: as `generate`.
        """
        for day, seed in zip(days, seeds, strict=True):
            yield self.generate(bars.days(0, day + 1), num_paths, num_days, seed)
