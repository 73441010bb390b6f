"""Windows of quarterly selection: train on all days so far, validate on a quarter, trade the next with the best agent.

The ensemble strategy of Yang, Liu, Zhong and Walid, "Deep reinforcement learning for automated stock trading: an
ensemble strategy", ICAIF 2020, section 4.1: a growing training window, three months of validation by the Sharpe ratio,
three months of trading, and liquidation while the turbulence index is above a threshold of the training window. Here an
embargo of some days lies between the windows: no return is in two of them, and what is serially dependent fades.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from vecenv.system.settings import CountFromZero, PositiveShare, Settings, Within


class Span(NamedTuple):
    """Days of a market, from ``start`` to ``stop`` (exclusive). An account has a return on each but the first."""

    start: int
    stop: int


@dataclass(frozen=True)
class Quarter:
    """Windows of one quarter, one after the other; training starts with the market.

    The first day of trading is the last of the quarter before, whose close both accounts share.
    """

    training: Span
    validation: Span
    trading: Span


@dataclass(frozen=True)
class QuarterConfig(Settings):
    """Lengths of the windows, in trading days."""

    min_training: Annotated[int, Within(2)] = 504
    """Days after the warm-up that the first training has at least."""
    validation: Annotated[int, Within(2)] = 63
    """Daily returns of a validation: three months."""
    trading: Annotated[int, Within(2)] = 63
    """Daily returns of a quarter of trading; the windows move by as many days."""
    embargo: CountFromZero = 5
    """Days between training and validation, and between validation and trading, which none of them sees."""
    turbulence_quantile: PositiveShare = 0.99
    """Quantile of the turbulence in the training window above which everything is sold."""


def quarters(first_day: int, num_days: int, config: QuarterConfig) -> list[Quarter]:
    """Return the windows of all whole quarters of a market from its first day after the warm-up; ValueError of none."""
    found: list[Quarter] = []
    before = config.embargo + config.validation + 1 + config.embargo
    start = first_day + config.min_training + before
    while start + config.trading < num_days:
        validated = start - config.embargo
        validation = Span(validated - config.validation - 1, validated)
        training = Span(0, validation.start - config.embargo)
        found.append(Quarter(training, validation, Span(start, start + config.trading + 1)))
        start += config.trading
    if not found:
        needed = first_day + config.min_training + before + config.trading + 1
        raise ValueError(f"a quarter of trading needs {needed} days, {first_day} of them warm-up; there are {num_days}")
    return found


def turbulence_threshold(turbulence: Tensor, config: QuarterConfig) -> float:
    """Return the threshold of liquidation: a quantile of the index in a training window; ValueError without values.

    The index is 0 on days on which it has no full window. Shape: (T,).
    """
    known = turbulence[turbulence > 0].double()
    if not len(known):
        raise ValueError("the turbulence index has no value in the training window: it needs a year of returns before")
    return float(torch.quantile(known, config.turbulence_quantile))
