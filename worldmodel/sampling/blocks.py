"""Fixed partition of paths into blocks, so that paths do not depend on the requested number.

A matrix product may round differently for another number of rows, so a path is only reproducible in a block of the same
size. A day is drawn for a whole block, which costs little more than for a few paths; the trunk, which costs most, runs
in smaller chunks of fixed size, and only for chunks with requested paths.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch


class BlockLimits(NamedTuple):
    """Batch sizes by device type.

    Attributes:
        first_paths: paths in the first block, for small requests.
        growth: growth factor of the total number of paths per further block.
        fewest_paths: minimum paths in the blocks after those.
        most_paths: maximum paths in a block.
        rows: symbol-paths of a block, within the bounds of its paths; their caches are in memory together.
        chunk_rows: symbol-paths per trunk call, at least one path.
    """

    first_paths: int
    growth: int
    fewest_paths: int
    most_paths: int
    rows: int
    chunk_rows: int


LIMITS = {
    "cpu": BlockLimits(first_paths=32, growth=2, fewest_paths=32, most_paths=256, rows=1 << 12, chunk_rows=1 << 9),
    "cuda": BlockLimits(
        first_paths=1 << 8, growth=4, fewest_paths=32, most_paths=1 << 17, rows=1 << 17, chunk_rows=1 << 17
    ),
}
"""Limits by device type; for a GPU with enough memory for the rows."""

MEMORY_PER_ROW = 1 << 19
"""Bytes of GPU memory per row of a block: five times a row's cache in the shipped network."""


class Block(NamedTuple):
    """Paths that are generated together, from number `first` on: a multiple of `chunk`, the paths per trunk call."""

    first: int
    paths: int
    chunk: int


def limits_of(device: torch.device) -> BlockLimits:
    """Return the limits of a device."""
    limits = LIMITS[device.type]
    if device.type != "cuda" or not torch.cuda.is_available():
        return limits
    fitting = _power_of_two(torch.cuda.get_device_properties(device).total_memory // MEMORY_PER_ROW)
    return limits._replace(rows=min(limits.rows, fitting), chunk_rows=min(limits.chunk_rows, fitting))


def blocks_of(device: torch.device, symbols: int, num_paths: int) -> list[Block]:
    """Return the blocks of a number of paths; for more paths, the same blocks are followed by further ones."""
    limits = limits_of(device)
    wide = max(limits.fewest_paths, min(limits.most_paths, _power_of_two(limits.rows // symbols)))
    edges = [0]
    few = limits.first_paths
    while few < wide:
        edges.append(few)
        few *= limits.growth
    edges.extend(range(wide, num_paths + wide, wide))
    most = max(1, limits.chunk_rows // symbols)
    blocks = []
    for first, after in pairwise(edges):
        if first < min(after, num_paths):
            size = after - first
            blocks.append(Block(first, size, next(chunk for chunk in range(most, 0, -1) if size % chunk == 0)))
    return blocks


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to a number, at least 1."""
    return 1 << max(0, number.bit_length() - 1)
