"""What a scheduler of levels is, and two that need no model: uniform sampling, and levels that are unlocked in turn."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Share of a turn between two updates, by which the sub-environments change levels as evenly as can be."""


class Scheduler(ABC):
    """Chooses the level of each sub-environment's next episode from who succeeded at which level.

    Levels are numbers from 0, the easiest, to ``num_levels`` - 1. It draws nothing, so that its tensors are all of its
    state.

    Attributes:
        kept: names of the tensors that a checkpoint holds.
    """

    kept: ClassVar[tuple[str, ...]] = ("turn",)

    def __init__(self, num_envs: int, num_levels: int, device: torch.device | str = "cpu") -> None:
        self.num_envs, self.num_levels, self.device = num_envs, num_levels, torch.device(device)
        self.turn = torch.zeros((), dtype=torch.int64)

    @abstractmethod
    def shares(self) -> Tensor:
        """Return the share of the next episodes that each level gets. Shape: (L,), float64, of sum 1."""

    @abstractmethod
    def take(self, ids: Tensor, level: Tensor, success: Tensor, score: Tensor) -> None:
        """Take in E ended episodes, those of one sub-environment in their order. Shape of each: (E,)."""

    def levels(self) -> Tensor:
        """Return the level of each sub-environment's next episode. Shape: (N,), int64."""
        return spread(self.shares(), self.num_envs, int(self.turn)).to(self.device)

    def update(self, ids: Tensor, level: Tensor, success: Tensor, score: Tensor) -> None:
        """Take in E ended episodes, and go on to the next choice."""
        self.take(ids, level, success, score)
        self.turn += 1

    def counted(self, level: Tensor, success: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many episodes of each level there are, and how many succeeded. Shape of both: (L,), float64."""
        level, success = level.cpu(), success.double().cpu()
        return level.bincount(minlength=self.num_levels).double(), level.bincount(success, self.num_levels)

    def metrics(self) -> dict[str, float]:
        """Return figures of the choice, under the same names every time."""
        return {"mean_level": float((self.shares() * torch.arange(self.num_levels)).sum())}

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in self.kept}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        for name in self.kept:
            getattr(self, name).copy_(state_dict[name])


def spread(shares: Tensor, count: int, turn: int) -> Tensor:
    """Return the levels of ``count`` rows, each level within one row of its share. Shapes: (L,) -> (N,), int64.

    Rows stand evenly on a circle that is divided by the shares, and which moves on by `GOLDEN` with every turn: over
    the turns every row meets every level by its share.
    """
    places = ((torch.arange(count, dtype=torch.float64) + 0.5) / count + turn * GOLDEN) % 1.0
    edges = shares.double().cpu().cumsum(0)
    return torch.searchsorted(edges / edges[-1], places, right=True).clamp(max=len(shares) - 1)


def evenly(chosen: Tensor) -> Tensor:
    """Return equal shares of the chosen levels, zero if there are none. Shape: (L,), bool -> (L,), float64."""
    return chosen.double() / chosen.sum().clamp(min=1)


def mixed(new: Tensor, old: Tensor, revisit: float) -> Tensor:
    """Return the share ``revisit`` of the old levels and the rest of the new; all, where the other is empty.

    Shapes: (L,) shares or zeros, (L,) shares or zeros -> (L,).
    """
    whole = (1.0 - revisit) * new + revisit * old
    return whole / whole.sum() if whole.sum() > 0 else (new + old) / (new + old).sum()


class Uniform(Scheduler):
    """All levels alike, whatever the results: the baseline of every curriculum."""

    def shares(self) -> Tensor:
        return torch.full((self.num_levels,), 1.0 / self.num_levels, dtype=torch.float64)

    def take(self, ids: Tensor, level: Tensor, success: Tensor, score: Tensor) -> None:
        pass


class Threshold(Scheduler):
    """Unlocks the next level when the rate of success of the newest is above a threshold, and revisits the others.

    The rate is of ``trials`` episodes of the newest level, after which the count begins anew.
    """

    kept = ("turn", "newest", "count", "successes")

    def __init__(
        self,
        num_envs: int,
        num_levels: int,
        trials: int = 100,
        unlock_above: float = 0.8,
        revisit: float = 0.2,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(num_envs, num_levels, device)
        self.trials, self.unlock_above, self.revisit = trials, unlock_above, revisit
        self.newest = torch.zeros((), dtype=torch.int64)
        self.count, self.successes = (torch.zeros((), dtype=torch.float64) for _ in range(2))

    def shares(self) -> Tensor:
        level = torch.arange(self.num_levels)
        return mixed(evenly(level == self.newest), evenly(level < self.newest), self.revisit)

    def take(self, ids: Tensor, level: Tensor, success: Tensor, score: Tensor) -> None:
        count, successes = self.counted(level, success)
        self.count += count[self.newest]
        self.successes += successes[self.newest]
        if self.count < self.trials:
            return
        if self.successes / self.count > self.unlock_above and self.newest < self.num_levels - 1:
            self.newest += 1
        self.count.zero_()
        self.successes.zero_()
