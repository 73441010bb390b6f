"""Blocks of paths that are drawn together, always the same ones, whatever the number of paths asked for.

A matrix product may round differently for another number of rows, so a path is only the same in a block of the same
size. A day is drawn for a whole block, which costs little more than for a few paths; the trunk, which costs most, reads
it in smaller chunks of fixed size, and only those that hold paths asked for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch


class BlockLimits(NamedTuple):
    """How much runs together on a kind of device.

    Attributes:
        first_paths: in the first block, which few paths are drawn in.
        growth: factor by which each of the next blocks makes the paths so far more.
        fewest_paths: in the blocks after those.
        most_paths: in a block.
        rows: symbol-paths of a block, between these numbers of paths; their caches are in memory together.
        chunk_rows: symbol-paths that the trunk reads together, at least one path.
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
"""By device type; of a GPU whose memory has room for the rows."""

MEMORY_PER_ROW = 1 << 19
"""Bytes of a GPU's memory for each row of a block: five times a row's cache in the network that is shipped."""


class Block(NamedTuple):
    """Paths that run together.

    Attributes:
        first: number of the first one.
        paths: how many, whole chunks.
        chunk: paths whose rows the trunk reads together.
    """

    first: int
    paths: int
    chunk: int


def limits_of(device: torch.device) -> BlockLimits:
    """Return how much runs together on a device."""
    limits = LIMITS[device.type]
    if device.type != "cuda" or not torch.cuda.is_available():
        return limits
    fitting = _power_of_two(torch.cuda.get_device_properties(device).total_memory // MEMORY_PER_ROW)
    return limits._replace(rows=min(limits.rows, fitting), chunk_rows=min(limits.chunk_rows, fitting))


def blocks_of(device: torch.device, symbols: int, num_paths: int) -> list[Block]:
    """Return the blocks that some paths of a number of symbols run in; more paths are more of the same blocks."""
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
    """Return the largest power of two that is not larger, as numbers of paths usually are; at least 1."""
    return 1 << max(0, number.bit_length() - 1)
