"""Fixed-effort multilevel splitting: the probability that a path reaches a rare score, and paths that do.

Garvels, "The splitting method in rare event simulation", thesis, University of Twente, 2000; levels are quantiles of
the paths as in Cérou and Guyader, "Adaptive multilevel splitting for rare event analysis", Stochastic Analysis and
Applications 25(2), 2007. A path that reaches a level is stopped on that day. As many paths as before go on from stopped
ones, drawn with replacement, each in its own way. The probability is the product of the shares that reach each level.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

KEPT = 4
"""A level is reached by one path in this number, if the target lies beyond."""

LEAST_PROBABILITY = 1e-12
"""Rarer targets are given up, which bounds the number of levels."""

NORMAL_QUANTILE = 1.96
"""Of a two-sided 95% interval."""


class Trajectories(NamedTuple):
    """Paths from their beginning to the horizon.

    Attributes:
        days: what happened. Shape: (P, H, ...).
        scores: of each day. Shape: (P, H).
        origins: number of each path's beginning, for the process. Shape: (P,), int64.
        parents: stopped path that each goes on from, by position; of first paths their own number. Shape: (P,), int64.
    """

    days: Tensor
    scores: Tensor
    origins: Tensor
    parents: Tensor

    def only(self, chosen: Tensor) -> Trajectories:
        return Trajectories(*(part[chosen] for part in self))


class Process(Protocol):
    """A Markov process over days whose paths can be stopped and continued."""

    def begin(self, num_paths: int, seed: int) -> Trajectories: ...

    def go_on(self, stopped: Trajectories, last: Tensor, num_paths: int, seed: int) -> Trajectories:
        """Draw paths that each copy one of the stopped ones, chosen uniformly with replacement, up to its last day."""
        ...


class Level(NamedTuple):
    """A level of the splitting: the score that paths have to reach, how many do, and the number of paths."""

    score: float
    reached: int
    paths: int

    @property
    def share(self) -> float:
        return self.reached / self.paths


class Split(NamedTuple):
    """Result of a splitting.

    Attributes:
        probability: that a path reaches the target.
        relative_error: standard error over the probability.
        levels: the last one is the target.
        paths: that reach the target and then go on; each has the same share of the probability.
    """

    probability: float
    relative_error: float
    levels: tuple[Level, ...]
    paths: Trajectories

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the probability, normal in its logarithm; at most 1."""
        factor = math.exp(NORMAL_QUANTILE * self.relative_error)
        return self.probability / factor, min(1.0, self.probability * factor)


class TargetNotReached(ValueError):
    """No path reaches the target; `highest` is the score of the best."""

    def __init__(self, highest: float) -> None:
        super().__init__(f"no path reaches the target; the highest score is {highest:g}")
        self.highest = highest


def split(
    process: Process, target: float, num_paths: int, seed: int, show: Callable[[Level], None] = lambda level: None
) -> Split:
    """Estimate the probability that a path reaches a score, and draw paths that do.

    Levels are chosen from the paths themselves. The bias this causes falls as 1 / P, faster than the error (Cérou and
    Guyader 2007).

    Raises:
        TargetNotReached: paths come no nearer to the target, or its probability is below `LEAST_PROBABILITY`.
    """
    paths = process.begin(num_paths, seed)
    families = torch.arange(num_paths, device=paths.scores.device)
    levels: list[Level] = []
    while not levels or levels[-1].score < target:
        highest = paths.scores.amax(1)
        # Copies of one path tie at its score: the level is then the next higher one.
        higher = highest[highest > levels[-1].score] if levels else highest
        if len(higher) == 0 or math.prod(level.share for level in levels) < LEAST_PROBABILITY:
            raise TargetNotReached(float(highest.max()))
        quantile = highest.topk(max(1, num_paths // KEPT)).values[-1]
        score = min(target, float(higher.min().maximum(quantile)))
        reached = highest >= score
        levels.append(Level(score, int(reached.sum()), num_paths))
        show(levels[-1])
        stopped, survivors = paths.only(reached), families[reached]
        last = (stopped.scores >= score).long().argmax(1)
        paths = process.go_on(stopped, last, num_paths, stage_seed(seed, len(levels)))
        families = survivors[paths.parents]
    probability = math.prod(level.share for level in levels)
    return Split(probability, relative_error(levels, survivors), tuple(levels), paths)


def relative_error(levels: list[Level], families: Tensor) -> float:
    """Return the standard error of the product of shares, over the product.

    The estimate of Lee and Whiteley, "Variance estimation in the particle filter", Biometrika 105(3), 2018,
    for paths that are drawn with replacement: paths of different first ancestors are independent, those of the same one
    are not. It is noisy where few paths are left, so that the error of independent levels (delta method) is the least.
    """
    paths = levels[0].paths
    shares = families.bincount().double() / len(families)
    different = 1.0 - float(shares.square().sum())
    genealogy = 1.0 - (paths / (paths - 1)) ** len(levels) * different
    independent = sum((1.0 - level.share) / (level.share * level.paths) for level in levels)
    return math.sqrt(max(genealogy, independent))


def stage_seed(seed: int, stage: int) -> int:
    """Return an independent seed of a part of a seed's draws, in [0, 2^64)."""
    return int(np.random.SeedSequence([seed, stage]).generate_state(1, np.uint64)[0])
