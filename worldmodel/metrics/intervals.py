"""Confidence intervals by block bootstrap over origins."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.learn.intervals import DRAWS, Interval

BLOCK = 3
"""Block length in origins: neighbouring windows overlap, and volatility persists beyond them."""


def block_bootstrap(
    metric: Callable[[Tensor], float], num_origins: int, block: int = BLOCK, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """Return a metric with the 95% percentile interval of a circular block bootstrap over origins.

    The blocks wrap around the end, so that every origin is drawn equally often (Politis and Romano, "A circular
    block-resampling procedure for stationary data", 1992). The metric is given positions of origins, which may repeat,
    int64 on the CPU. With fewer than three blocks bounds are NaN.

    Raises:
        ValueError: a count is below one.
    """
    if min(num_origins, block, draws) < 1:
        raise ValueError(f"num_origins, block and draws must be at least 1, got {num_origins}, {block} and {draws}")
    value = metric(torch.arange(num_origins))
    if num_origins < 3 * block:
        return Interval(value, math.nan, math.nan)
    drawn = drawn_origins(num_origins, block, draws, seed)
    again = torch.tensor([metric(origins) for origins in drawn], dtype=torch.float64)
    low, high = again.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(value, low, high)


def drawn_origins(num_origins: int, block: int = BLOCK, draws: int = DRAWS, seed: int = 0) -> Tensor:
    """Return the origins of each bootstrap draw, in circular blocks. Shape: (draws, O), int64."""
    starts = torch.randint(
        num_origins, (draws, math.ceil(num_origins / block), 1), generator=torch.Generator().manual_seed(seed)
    )
    return ((starts + torch.arange(block)) % num_origins).flatten(1)[:, :num_origins]
