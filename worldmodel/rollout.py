"""Draws of days to come, batched over paths and symbols, one day after the other.

Random numbers are counter-based: path p of a seed draws the same whatever the number of paths. Paths run in blocks of a
fixed size, because a matrix product may round differently for another number of rows. A day is drawn for a whole block,
which costs little more than for a few paths; the trunk, which costs most, reads it in smaller chunks of fixed size, and
only those that hold paths asked for.

On a CPU the trunk reads chunks in several threads, and several blocks are on their way at once: while the trunk reads
one block's day, this thread draws the day of another. Each operation runs in one thread, so that numbers do not depend
on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vecenv.random import EpisodeKey, episode_key, open_uniform, random_bits
from worldmodel.bar_moves import Move, bounded_moves, decode_bar
from worldmodel.day_draw import draw_day
from worldmodel.features import FeatureState, observe_day
from worldmodel.interleave import Steps, run_all
from worldmodel.network import MarketNetwork
from worldmodel.trunk import Trunk, TrunkCache

START_STREAM = 0x2100_0000
"""Random stream that chooses where a path starts."""


class BlockLimits(NamedTuple):
    """How much runs together on a kind of device.

    Attributes:
        first_paths: in the first block, which few paths are drawn in; the next blocks double the paths so far.
        fewest_paths: in the blocks after those.
        most_paths: in a block.
        rows: symbol-paths of a block, between these numbers of paths; their caches are in memory together.
        chunk_rows: symbol-paths that the trunk reads together, at least one path.
    """

    first_paths: int
    fewest_paths: int
    most_paths: int
    rows: int
    chunk_rows: int


LIMITS = {
    "cpu": BlockLimits(first_paths=32, fewest_paths=32, most_paths=256, rows=1 << 12, chunk_rows=1 << 9),
    "cuda": BlockLimits(first_paths=1 << 12, fewest_paths=32, most_paths=1 << 17, rows=1 << 17, chunk_rows=1 << 17),
}
"""By device type."""

MOST_AT_ONCE = 4
"""Blocks on their way at once, whose caches are in memory together."""


class Block(NamedTuple):
    """Paths that run together, whatever the number of paths asked for.

    Attributes:
        first: number of the first one.
        paths: how many, whole chunks.
        chunk: paths whose rows the trunk reads together.
    """

    first: int
    paths: int
    chunk: int


class Starts(NamedTuple):
    """What paths go on from: the ends of S histories of the same symbols.

    Attributes:
        known: the trunk's output on the last day. Shape: (S, K, width).
        cache: of the trunk. Batch: S K.
        state: after the last day. Batch: (S, K).
        factor: lower Cholesky factor of the symbols' correlation. Shape: (S, K, K).
    """

    known: Tensor
    cache: TrunkCache
    state: FeatureState
    factor: Tensor


@torch.no_grad()
def roll_out(
    network: MarketNetwork,
    starts: Starts,
    market: str,
    num_paths: int,
    num_days: int,
    seed: int,
    temperature: float = 1.0,
) -> Tensor:
    """Draw days to come.

    Args:
        network: in evaluation mode.
        starts: from `worldmodel.neural`; where there are several, each path draws its own.
        market: whose flag the network is shown.
        num_paths: P.
        num_days: H.
        seed: integer in [0, 2^64).
        temperature: factor on returns, about their mean, and with them on gaps and wicks; 1 draws from the model.

    Returns:
        Open, high, low, close, volume. Shape: (P, H, K, 5), float64.

    Raises:
        ValueError: a number of paths or days is below one, or the bars do not fit in memory.
    """
    for name, count in (("num_paths", num_paths), ("num_days", num_days)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    symbols = starts.known.shape[1]
    device = starts.known.device
    _refuse_too_large(num_paths, num_days, symbols, device)
    draws = []
    for block in blocks_of(device, symbols, num_paths):
        wanted = min(block.paths, num_paths - block.first)
        draws.append(_drawn(network, starts, market, block, wanted, num_days, seed, temperature))
    if device.type != "cpu":
        return torch.cat(run_all(draws, 1, 1))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return torch.cat(run_all(draws, threads, MOST_AT_ONCE))
    finally:
        torch.set_num_threads(threads)


def _refuse_too_large(num_paths: int, num_days: int, symbols: int, device: torch.device) -> None:
    """Raise if the bars, twice while blocks are joined, are more than the device's memory."""
    needed = 2 * 8 * 5 * num_paths * num_days * symbols
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise ValueError(
            f"{num_paths:,} paths of {num_days:,} days of {symbols} symbols need {needed / 1e9:,.0f} GB, "
            f"{device} has {memory / 1e9:,.0f} GB; ask for fewer paths at once"
        )


def blocks_of(device: torch.device, symbols: int, num_paths: int) -> list[Block]:
    """Return the blocks that some paths of a number of symbols run in; more paths are more of the same blocks."""
    limits = LIMITS[device.type]
    # Powers of two, as numbers of paths usually are.
    fitting = 1 << max(0, (limits.rows // symbols).bit_length() - 1)
    wide = max(limits.fewest_paths, min(limits.most_paths, fitting))
    edges = [0]
    few = limits.first_paths
    while few < wide:
        edges.append(few)
        few *= 2
    edges.extend(range(wide, num_paths + wide, wide))
    most = max(1, limits.chunk_rows // symbols)
    blocks = []
    for first, after in pairwise(edges):
        if first < min(after, num_paths):
            size = after - first
            blocks.append(Block(first, size, next(chunk for chunk in range(most, 0, -1) if size % chunk == 0)))
    return blocks


def chosen_starts(key: EpisodeKey, count: int) -> Tensor:
    """Return which of a number of starts each path goes on from. Shape: that of the key's words, without the last."""
    word = random_bits(key, START_STREAM, 0)[0]
    return (open_uniform(word) * count).long().squeeze(-1)


class _Chunks:
    """Caches of the chunks of a block that hold paths asked for.

    Args:
        trunk: of the network.
        cache: of the starts.
        rows: start of each symbol-path. Shape: (rows,).
        wanted: how many of these rows are asked for.
        size: rows of a chunk.
    """

    def __init__(self, trunk: Trunk[Any], cache: TrunkCache, rows: Tensor, wanted: int, size: int) -> None:
        self.trunk = trunk
        self.parts = [slice(first, first + size) for first in range(0, wanted, size)]
        self.caches = [cache.chosen(rows[part]) for part in self.parts]

    def readings(self, inputs: Tensor, known: Tensor) -> list[Callable[[], None]]:
        """Return what reads one more day and writes what is then known, by chunk. Shapes: (rows, F), (rows, width)."""
        weights = self.trunk.day_weights(self.caches[0])
        return [partial(self._read, place, inputs, known, weights) for place in range(len(self.parts))]

    @torch.no_grad()
    def _read(self, place: int, inputs: Tensor, known: Tensor, weights: Any) -> None:  # noqa: ANN401, the trunk's own
        part = self.parts[place]
        known[part], self.caches[place] = self.trunk.step(inputs[part], self.caches[place], weights)


def _drawn(
    network: MarketNetwork,
    starts: Starts,
    market: str,
    block: Block,
    wanted: int,
    num_days: int,
    seed: int,
    temperature: float,
) -> Steps:
    """Draw the paths of a block and return the first ones, of shape (wanted, num_days, K, 5).

    Yields the trunk's readings of each day drawn.
    """
    (total, symbols), device = starts.known.shape[:2], starts.known.device
    paths = torch.arange(block.first, block.first + block.paths, device=device)
    key = episode_key(seed, paths[:, None], 0)
    own = chosen_starts(key, total)
    rows = (own[:, None] * symbols + torch.arange(symbols, device=device)).flatten()
    chunks = _Chunks(network.trunk, starts.cache, rows, wanted * symbols, block.chunk * symbols)
    known = starts.known[own]
    draws = network.draws(starts.factor[own], market)
    state = starts.state.taken(lambda part: part[own])
    valid = torch.ones(block.paths, symbols, dtype=torch.bool, device=device)
    bars = []
    for day in range(num_days):
        scaled = draw_day(network, known, draws, key, day, temperature)
        volatility = state.volatility.unsqueeze(-1)
        move = torch.cat([scaled[..., : Move.VOLUME] * volatility, scaled[..., Move.VOLUME :]], dim=-1)
        move = bounded_moves(state.moves, move)
        bars.append(decode_bar(state.moves, move)[:wanted])
        if day + 1 < num_days:
            features, state = observe_day(state, move, valid)
            inputs = network.inputs(features.to(known.dtype), market).flatten(0, 1)
            yield chunks.readings(inputs, known.flatten(0, 1))
    return torch.stack(bars, dim=1)
