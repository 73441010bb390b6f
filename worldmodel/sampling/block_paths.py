"""Paths are generated in blocks of fixed size, so that they do not depend on the requested number.

A matrix product may round differently for another number of rows, so a path is only reproducible in a block of the same
size. A day is drawn for a whole block, its returns sequentially over symbols, then all bars at once; the trunk, which
costs most, runs in smaller chunks of fixed size, and only for chunks with requested paths.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, box_muller, episode_key, open_uniform, random_bits
from vecenv.market.streams import NeuralStream
from vecenv.worldmodel.data.bar_moves import Move, bounded_moves, decode_bar
from vecenv.worldmodel.data.calendar import WEEKDAYS
from vecenv.worldmodel.data.correlation_level import LEVEL_STRIDE, level_change, mean_correlation, rescaled
from vecenv.worldmodel.data.features import FeatureState, observe_day
from vecenv.worldmodel.network.bar_heads import MATRICES, BarHeads, BarNoise
from vecenv.worldmodel.network.gaussian_copula import CommonShocks, CopulaDraws, CopulaNoise
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_chain import ReturnDraws
from vecenv.worldmodel.network.trunk import TrunkCache

MAX_SYMBOLS = 1 << 12


class DayDraws(NamedTuple):
    """Samplers of the days of some paths: of returns, and of bars given the returns.

    Antithetic draws reflect every return about the location of its component, and the number of the common shock, from
    the same numbers.
    """

    returns: ReturnDraws
    bars: BarHeads
    copula: CopulaDraws
    shocks: CommonShocks
    antithetic: bool = False

    def draw(
        self,
        known: Tensor,
        scales: Tensor,
        key: EpisodeKey,
        day: int | Tensor,
        drift: Tensor,
        weekday_move: Tensor,
        temperature: float,
    ) -> Tensor:
        """Draw the scaled moves of one day. Shape: (P, K, 5), float64.

        The drift, scaled as the returns, is added after the chain, so that no symbol is conditioned on the previous
        symbols' drift.
        """
        everyone = torch.arange(known.shape[1], device=known.device)
        stream = NeuralStream.DAY + torch.arange(1 + len(MATRICES), device=known.device)[:, None, None]
        words = random_bits(key, stream, day * MAX_SYMBOLS + everyone)
        uniform = open_uniform(torch.stack(words, dim=1), torch.float32)
        if self.antithetic:
            # Half a turn of the noise's angle, the third number, changes its sign.
            uniform[0, 2] = (uniform[0, 2] + 0.5) % 1.0
            # Above 0, for which there is no state.
            uniform[0, 3] = (1.0 - uniform[0, 3]).clamp(min=2.0**-33)
        returns = self.returns.draw(known, uniform[0], temperature) + drift
        # What a day's symbols have in common; its shocks are chosen by numbers that the first bar has no use for.
        of_day = random_bits(key, NeuralStream.DAY + len(MATRICES) + 1, day * MAX_SYMBOLS)
        common = torch.cat(box_muller(*open_uniform(torch.stack(of_day), torch.float32).squeeze(-1).chunk(2)))
        copula = CopulaNoise(*box_muller(uniform[1:, 0], uniform[1:, 1]), common, uniform[1:, 3, ..., 0])
        noise = BarNoise(copula, uniform[1:, 2])
        given = (self.copula, noise, temperature, self.shocks, weekday_move)
        return self.bars.draw(known, returns, scales, *given).double()


class Starts(NamedTuple):
    """Start states of paths: the ends of S histories of the same symbols.

    Shapes: known (S, K, width), state (S, K), cache S K; correlations of returns, gaps, wicks and volumes before the
    level of the state is mixed into them (S, 4, K, K); number of the first drawn weekday, of `weekday_after`, (S,).
    `follows` is whether any level is mixed in: else correlations are those of the starts, on all days. `place` is the
    row of each history that paths choose from, where only those of the drawn paths were read; by default all were.
    """

    known: Tensor
    cache: TrunkCache
    state: FeatureState
    matrices: Tensor
    weekday: Tensor
    follows: bool
    place: Tensor | None = None


def chosen_starts(key: EpisodeKey, count: int) -> Tensor:
    """Return which of a number of starts each path goes on from. Shape: that of the key's words, without the last."""
    word = random_bits(key, NeuralStream.START, 0)[0]
    return (open_uniform(word) * count).long().squeeze(-1)


class BlockPaths:
    """The paths of a block after the last drawn day. All tensors are updated in place.

    `rows` is the start of each symbol-path; the caller writes `known`, the trunk's output for the next day, (rows,
    width).
    """

    def __init__(
        self,
        network: MarketNetwork,
        starts: Starts,
        market: str,
        block: Block,
        seed: int,
        temperature: float,
        antithetic: bool = False,
    ) -> None:
        (read, symbols), device = starts.known.shape[:2], starts.known.device
        paths = torch.arange(block.first, block.first + block.paths, device=device)
        self._network, self._market, self._temperature = network, market, temperature
        self._key = episode_key(seed, paths[:, None], 0)
        place = torch.arange(read, device=device) if starts.place is None else starts.place
        own = place[chosen_starts(self._key, len(place))]
        self.rows = (own[:, None] * symbols + torch.arange(symbols, device=device)).flatten()
        self.known = starts.known[own].flatten(0, 1)
        self._index = network.settings.markets.index(market)
        self._weekday, self._weekday_moves = starts.weekday[own], network.bars.weekday_moves(self._index)
        self._state = starts.state.taken(lambda part: part[own])
        # By path, not by start: on a GPU the rounding of sums and factors depends on how many there are.
        matrices = starts.matrices[own]
        self._shares, self._means = network.level_shares_of(market), mean_correlation(matrices)
        self._of_returns, self._follows = matrices[:, 0].contiguous(), starts.follows
        factor, variances = self._correlations()
        copula = CopulaDraws(network.bars.estimated_factor(matrices[:, 1:]), variances)
        shocks = network.bars.shocks(self._index)
        self._draws = DayDraws(network.draws(factor, market), network.bars, copula, shocks, antithetic)
        self._drift = network.drift_of(market, symbols)
        self._valid = torch.ones(block.paths, symbols, dtype=torch.bool, device=device)

    @property
    def shape(self) -> torch.Size:
        return self._valid.shape

    def _correlations(self) -> tuple[Tensor, Tensor]:
        """Return the factor of returns, (P, K, K), and variances of `CopulaDraws`, at the levels of the days so far."""
        scale, offset = level_change(self._means, self._state.common.level(), self._shares)
        factor = torch.linalg.cholesky(rescaled(self._of_returns, scale[:, 0], offset[:, 0]))
        return factor, self._network.bars.variances(scale[:, 1:], offset[:, 1:], self._index)

    def renew(self, day: int) -> None:
        """Follow the levels of correlations before every `LEVEL_STRIDE`-th day; a captured day has no part of it."""
        if self._follows and day and day % LEVEL_STRIDE == 0:
            factor, variances = self._correlations()
            self._draws.returns.renew(factor)
            self._draws.copula.variances.copy_(variances)

    def draw(self, day: int | Tensor) -> tuple[Tensor, Tensor]:
        """Draw a day's moves and decode them to bars; the day is a tensor in a captured graph. Shape: (paths, K, 5)."""
        known = self.known.unflatten(0, self.shape)
        volatility = self._state.volatility
        drift = (self._drift / volatility).to(known.dtype)
        weekday_move = self._weekday_moves[(self._weekday + day) % WEEKDAYS]
        given = (self._state.scales.features(), self._key, day, drift, weekday_move, self._temperature)
        scaled = self._draws.draw(known, *given)
        move = torch.cat([scaled[..., : Move.VOLUME] * volatility.unsqueeze(-1), scaled[..., Move.VOLUME :]], dim=-1)
        move = bounded_moves(self._state.moves, move)
        return move, decode_bar(self._state.moves, move)

    def observe(self, move: Tensor) -> Tensor:
        """Update the state by a day's moves; return the trunk's inputs. Shape: (rows, F)."""
        features, after = observe_day(self._state, move, self._valid)
        self._state.write(after)
        return self._network.inputs(features.to(self.known.dtype), self._market).flatten(0, 1)


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
