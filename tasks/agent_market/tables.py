"""Tables that random words of a market read: thresholds of numbers of wakes, normal numbers, order sizes, growth."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from statistics import NormalDist

import torch
from torch import Tensor

from vecenv.kernels.order_book.book import max_quantity

TABLE_BITS = 12
"""Random words read tables of 2^12 entries by their highest bits."""

LOG_BITS = 20
"""Logarithms of volatility are in 2^-20."""

LARGEST_LOG = 8
"""Largest logarithm of volatility, of either sign."""

GROWTH_BITS = 6
"""The table of growth has 2^6 entries for each unit of a logarithm."""

_ONE_SIZE_SHARES = {100: 0.7, 200: 0.06, 300: 0.004, 400: 0.0329, 500: 0.001, 600: 0.0006, 700: 0.0004, 800: 0.0005}
_ONE_SIZE_SHARES |= {900: 0.0003, 1000: 0.0003}
_LOG_SIZE = NormalDist(2.9, 1.2)
"""Order sizes of rmsc04: a lognormal size in 20% of orders, round lots in the others."""


def arrival_thresholds(rate: float, entries: int) -> Tensor:
    """Return thresholds of random words: as many as a word reaches is a Poisson number of mean ``rate``."""
    reached, share, thresholds = 0.0, math.exp(-rate), []
    for number in range(entries):
        reached += share
        share *= rate / (number + 1)
        thresholds.append(min(2**32, round(reached * 2**32)))
    return torch.tensor(thresholds, dtype=torch.int64)


def least_entries(rate: float) -> int:
    """Return after how many thresholds a word of 32 bits never goes further."""
    entries = 4
    while int(arrival_thresholds(rate, entries)[-1]) < 2**32 - 1 and entries < 4 * rate + 64:
        entries += 1
    return entries


def normal_table() -> Tensor:
    """Return normal quantiles at the middles of 2^12 equal cells, of variance 1, in 2^-16. Shape: (4096,), int32."""
    cells = 1 << TABLE_BITS
    values = torch.tensor([NormalDist().inv_cdf((cell + 0.5) / cells) for cell in range(cells)], dtype=torch.float64)
    return (values / values.square().mean().sqrt() * 2**16).round().to(torch.int32)


def size_table(room: int) -> Tensor:
    """Return quantiles of the order sizes of rmsc04, in shares, 1 at least. Shape: (4096,), int32."""
    cells = 1 << TABLE_BITS
    round_lots = list(accumulate(_ONE_SIZE_SHARES.values(), initial=1 - sum(_ONE_SIZE_SHARES.values())))
    sizes = []
    for cell in range(cells):
        level = (cell + 0.5) / cells
        if level < round_lots[0]:
            sizes.append(math.exp(_LOG_SIZE.inv_cdf(level / round_lots[0])))
        else:
            sizes.append(list(_ONE_SIZE_SHARES)[bisect_right(round_lots[:-1], level) - 1])
    return torch.tensor(sizes).round().clamp(1, max_quantity(room)).to(torch.int32)


def growth_table() -> Tensor:
    """Return exp(x) for abs(x) <= `LARGEST_LOG` in steps of 2^-`GROWTH_BITS`, in 2^-16. Shape: (1025,), int32."""
    places = range(-LARGEST_LOG << GROWTH_BITS, (LARGEST_LOG << GROWTH_BITS) + 1)
    return torch.tensor([round(math.exp(place / (1 << GROWTH_BITS)) * 2**16) for place in places], dtype=torch.int32)


def table_normal(normal: Tensor, word: Tensor, scale: Tensor) -> Tensor:
    """Return the normal number of a random word times a scale, in the unit of the scale. Shapes: ()."""
    return (normal[word >> (32 - TABLE_BITS)].to(torch.int64) * scale + 2**15) >> 16


def kept_log(log: Tensor) -> Tensor:
    """Return a logarithm in 2^-20 within what `growth_table` holds."""
    return log.clamp(-LARGEST_LOG << LOG_BITS, LARGEST_LOG << LOG_BITS)
