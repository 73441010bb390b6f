"""Boards by reverse play: from the solved position the player walks and pulls, so the way back solves the board."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache, reduce
from operator import add
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from vecenv.core.random import EpisodeKey, episode_key, random_bits
from vecenv.system.native_library import built_library
from vecenv.tasks.games.sokoban.config import Part, SokobanConfig
from vecenv.tasks.games.sokoban.law import Bits, Grid, back, both, count, outside, some

CHUNK = 8192
"""Walks at a time: their words stay in the processor's cache."""

ATTEMPTS = 20_000
"""Walks for a board, after which there are taken to be none such."""

PARTS: dict[Part, tuple[int, ...]] = {"train": (0, 1), "validation": (2,), "test": (3,), "all": (0, 1, 2, 3)}
"""Quarters of all boards, by a hash, that are of each part."""

_PLACES, _LAYOUT, _WALK, _STREAMS = 0, 1, 2, 4
_MIX = (0x9E3779B97F4A7C15 - (1 << 64), 0x632BE59BD9B4E019)


@dataclass(frozen=True)
class Boards:
    """Boards, sorted by their pulls for each number of boxes, and how each is solved.

    Attributes:
        grid: their size.
        words: floor, targets, boxes and player of each. Shape: (L, 4 K), of the grid's type.
        moves: that solve each, 1 to 4, then zeros. Shape: (L, T), uint8.
        first: number of the first board by the number of boxes, less one. Shape: (B,), int64.
        within: how many boards of so many boxes have at most so many pulls. Shape: (B, M + 1), int64.
        num_boxes: most boxes of a board.
        names: of levels that were read, in the same order.
    """

    grid: Grid
    words: Tensor
    moves: Tensor
    first: Tensor
    within: Tensor
    num_boxes: int
    names: tuple[str, ...] = ()


class _Made(NamedTuple):
    """What walks of B rows have made, as in `Boards`, the pulls of each, and whether it is a board."""

    words: Tensor
    moves: Tensor
    pulls: Tensor
    made: Tensor


class _Walk(NamedTuple):
    """Where the walks of B rows stand: ``away`` are the boxes that are on no target, ``length`` the moves so far."""

    boxes: Bits
    player: Bits
    direction: Tensor
    pulls: Tensor
    away: Tensor
    length: Tensor


def made_boards(config: SokobanConfig, words: int | None = None) -> Boards:
    """Return the boards of a config; a board depends on seed, part, number of boxes and its own number alone.

    Raises:
        ValueError: there are no boards of so many boxes.
    """
    # What does not concern the boards must not make them again.
    plain = SokobanConfig(part="all")
    kept = {name: getattr(plain, name) for name in ("observation", "box_reward", "end_on_deadlock", "answer_moves")}
    return _made_boards(replace(config, max_steps=config.depth, search_depth=1_000, max_pulls=1_000, **kept), words)


@lru_cache(maxsize=8)
def _made_boards(config: SokobanConfig, words: int | None) -> Boards:
    grid = Grid(*config.dim_room, words)
    made = [_of_boxes(grid, config, boxes) for boxes in range(1, config.num_boxes + 1)]
    most = torch.arange(config.depth + 1)
    return Boards(
        grid=grid,
        words=torch.cat([one.words for one in made]).to(grid.dtype),
        moves=torch.cat([one.moves for one in made]),
        first=torch.arange(config.num_boxes) * config.boards,
        within=torch.stack([torch.searchsorted(one.pulls, most, right=True) for one in made]),
        num_boxes=config.num_boxes,
    )


def _of_boxes(grid: Grid, config: SokobanConfig, boxes: int) -> _Made:
    """Return the boards of a number of boxes, sorted by their pulls."""
    numbers = range(0, config.boards, CHUNK)
    parts = [_chunk(grid, config, boxes, torch.arange(low, min(low + CHUNK, config.boards))) for low in numbers]
    made = _Made(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
    order = made.pulls.argsort(stable=True)
    return _Made(*(column[order] for column in made))


def _chunk(grid: Grid, config: SokobanConfig, boxes: int, numbers: Tensor) -> _Made:
    """Return the boards of some numbers: for each that of the first attempt that made one."""
    waiting, attempts = torch.arange(len(numbers)), 0
    found = _Made(
        torch.empty(len(numbers), 4 * grid.words, dtype=torch.int64),
        torch.empty(len(numbers), config.depth, dtype=torch.uint8),
        torch.empty(len(numbers), dtype=torch.int64),
        torch.zeros(len(numbers), dtype=torch.bool),
    )
    while len(waiting):
        # Those that wait share a chunk: where they are few, each tries several times.
        rows = torch.arange(min(CHUNK, max(len(waiting), 1024)))
        attempt, row = rows // len(waiting), rows % len(waiting)
        key = episode_key(config.board_seed, numbers[waiting[row]], attempts + attempt)
        tried = (walked if (native := _library()) is None else native)(grid, config, boxes, key)
        some_made = tried.made.nonzero().squeeze(-1)
        # Written in the order of attempts from the last: the first remains.
        first = torch.full((len(waiting),), len(rows)).scatter_reduce(0, row[some_made], some_made, "amin")
        now = first < len(rows)
        for column, new in zip(found, tried, strict=True):
            column[waiting[now]] = new[first[now]]
        waiting, attempts = waiting[~now], attempts + int(attempt[-1]) + (len(rows) % len(waiting) == 0)
        if attempts > ATTEMPTS:
            raise ValueError(
                f"no boards of {boxes} boxes were found in a room of {grid.height} x {grid.width} ({config.layout}) by "
                f"{ATTEMPTS:,} walks: num_boxes is too large, or dim_room or search_depth too small"
            )
    return found


def walked(grid: Grid, config: SokobanConfig, boxes: int, key: EpisodeKey) -> _Made:
    """Return what walks of a number of boxes make, one for each key.

    The board is the latest position of the walk with the most boxes away from the targets; it counts if all are.
    """
    rows, stream = len(key.episode), _STREAMS * boxes
    wide = EpisodeKey(*(word.unsqueeze(-1) for word in key))

    def drawn(purpose: int, number: int) -> Tensor:
        """Draw 32-bit words. Shape: (B, number)."""
        return torch.cat(random_bits(wide, stream + purpose, torch.arange(-(-number // 4))), -1)[:, :number]

    inner = grid.inner
    places = torch.tensor([grid.place(cell) for cell in inner])
    single = torch.tensor([grid.packed([cell]) for cell in inner])

    def has(cells: Bits) -> Tensor:
        return torch.stack(cells, -1)[:, places[:, 0]] >> places[:, 1] & 1 == 1

    def cells_at(index: Tensor) -> Bits:
        return single[index].unbind(-1)

    def no_cells() -> Bits:
        return tuple(torch.zeros(rows, dtype=torch.int64) for _ in range(grid.words))

    floor = _floor(grid, config, drawn, single, no_cells())
    # Equal words for cells are as good as never, and the order of equal ones is that of the cells.
    chances = torch.where(has(floor), drawn(_PLACES, len(inner)) + 1, 0)
    player = cells_at(chances.argmax(-1))
    floor = grid.filled(floor, player)
    rest = torch.where(has(outside(_leavable(grid, floor), player)), chances, 0)
    best = rest.topk(boxes, -1)
    enough = best.values[:, -1] > 0
    targets = no_cells()
    for index in best.indices.unbind(-1):
        targets = tuple(old | new for old, new in zip(targets, cells_at(index), strict=True))

    zero = torch.zeros(rows, dtype=torch.int64)
    walk = kept = _Walk(targets, player, zero + 1, zero, zero, zero)
    walked: list[Tensor] = []
    for word in drawn(_WALK, config.depth).T.contiguous():
        walk, kept, direction = _walked_back(grid, floor, targets, walk, kept, word)
        walked.append(direction)
    words = torch.stack([*floor, *targets, *kept.boxes, *kept.player], -1)
    made = enough & (kept.away == boxes) & _of_part(words, config.part)
    return _Made(words, _proof(torch.stack(walked, -1), kept.length), kept.pulls, made)


@cache
def _library() -> Callable[[Grid, SokobanConfig, int, EpisodeKey], _Made] | None:
    """Return `walked` in C++; None without a compiler."""
    library = built_library(Path(__file__).with_name("walk.cpp"))
    if library is None:
        return None
    integers = [ctypes.c_int32] * 7 + [ctypes.c_int64, ctypes.c_uint32, ctypes.c_int64]
    library.walks_back.argtypes = [*integers, *[ctypes.c_void_p] * 5]
    library.walks_back.restype = None

    def native(grid: Grid, config: SokobanConfig, boxes: int, key: EpisodeKey) -> _Made:
        keys = torch.stack(torch.broadcast_tensors(*key), -1).contiguous()
        rows = len(keys)
        made = _Made(
            torch.zeros(rows, 4 * grid.words, dtype=torch.int64),
            torch.zeros(rows, config.depth, dtype=torch.uint8),
            torch.zeros(rows, dtype=torch.int64),
            torch.zeros(rows, dtype=torch.bool),
        )
        sizes = (grid.height, grid.width, grid.words, grid.size, boxes, config.depth)
        carving = _carving(grid) if config.layout == "rooms" else 0
        addresses = (tensor.data_ptr() for tensor in (keys, *made))
        library.walks_back(*sizes, carving, _least(config), _STREAMS * boxes, rows, *addresses)
        return made._replace(made=made.made & _of_part(made.words, config.part))

    return native


def _carving(grid: Grid) -> int:
    """Return the steps of the walk that carves rooms."""
    return round(2.5 * (grid.height + grid.width))


def _least(config: SokobanConfig) -> int:
    """Return the least word of 32 random bits that leaves a cell without a wall."""
    return math.ceil(config.wall_density * 2**32) if config.layout == "walls" else 0


def _walked_back(
    grid: Grid, floor: Bits, targets: Bits, walk: _Walk, kept: _Walk, word: Tensor
) -> tuple[_Walk, _Walk, Tensor]:
    """Return walks after a move, those of them that are kept, and the direction of the move.

    ``word`` has 32 random bits. A pull that takes a box from the targets is chosen in seven cases of eight, one of a
    box that is away already in three of eight, else any free cell is walked to and no box comes along; in half of the
    cases straight on, if that is among the choices.
    """
    free = outside(floor, walk.boxes)
    sides = {direction: grid.beside(walk.player, direction) for direction in range(1, 5)}
    able = {direction: some(both(sides[direction], free)) for direction in sides}
    boxes = {direction: both(sides[(direction - 1 ^ 1) + 1], walk.boxes) for direction in sides}
    nowhere = ~some(both(walk.player, targets))
    taking = {direction: able[direction] & some(both(boxes[direction], targets)) & nowhere for direction in sides}
    moving = {direction: able[direction] & some(outside(boxes[direction], targets)) & nowhere for direction in sides}
    takes, pulls, walks = (
        reduce(add, (among[direction].long() << direction - 1 for direction in sides))
        for among in (taking, moving, able)
    )
    take = (takes != 0) & (word & 7 != 0)
    pull = ~take & (pulls != 0) & (word >> 3 & 7 < 3)
    choices = torch.where(take, takes, torch.where(pull, pulls, walks))
    turn = word >> 6 & 3
    turned = (choices >> turn | choices << 4 - turn) & 15
    lowest = torch.where(turned & 1 > 0, 0, torch.where(turned & 2 > 0, 1, torch.where(turned & 4 > 0, 2, 3)))
    straight = (word >> 8 & 1 == 1) & (choices >> walk.direction - 1 & 1 == 1)
    direction = torch.where(straight, walk.direction, (lowest + turn & 3) + 1)

    moves, pulled = choices != 0, take | pull
    behind, ahead = grid.toward(walk.player, back(direction)), grid.toward(walk.player, direction)
    parts = zip(walk.boxes, behind, walk.player, strict=True)
    standing = tuple(torch.where(pulled, box ^ old ^ new, box) for box, old, new in parts)
    player = tuple(torch.where(moves, new, old) for new, old in zip(ahead, walk.player, strict=True))
    away = count(outside(standing, targets))
    walk = _Walk(standing, player, direction, walk.pulls + pulled, away, walk.length + 1)
    better = away >= kept.away
    kept = tree_map(lambda new, old: torch.where(better, new, old), walk, kept)
    return walk, kept, torch.where(moves, direction, 0)


def _floor(grid: Grid, config: SokobanConfig, drawn: Callable[[int, int], Tensor], single: Tensor, floor: Bits) -> Bits:
    """Return the floor of each row, which may be in several parts. ``single`` are the inner cells, one by one."""
    inside = tuple(single.sum(0).unbind(-1))
    if config.layout != "rooms":
        open_cells = drawn(_LAYOUT, len(single)) >= _least(config)
        return tuple((open_cells * words).sum(-1) for words in single.unbind(-1))
    # A walk carves: at each step straight on or aside, and a line or a corner of cells around it.
    words = drawn(_LAYOUT, _carving(grid) + 1).unbind(-1)
    at: Bits = tuple(single[words[0] * len(single) >> 32].unbind(-1))
    direction = (words[0] & 3) + 1
    for word in words[1:]:
        direction = torch.where(word & 0xFF < 90, (word >> 8 & 3) + 1, direction)
        ahead = both(grid.toward(at, direction), inside)
        at = tuple(torch.where(some(ahead), new, old) for new, old in zip(ahead, at, strict=True))
        one, line = grid.toward(at, side := (word >> 10 & 3) + 1), grid.toward(at, back(side))
        corner = grid.toward(at, torch.where(side <= 2, 3, 1) + (word >> 12 & 1))
        corners = word >> 13 & 1 == 1
        carved = (a | b | torch.where(corners, c, d) for a, b, c, d in zip(at, one, corner, line, strict=True))
        floor = tuple(old | new & ground for old, new, ground in zip(floor, carved, inside, strict=True))
    return floor


def _leavable(grid: Grid, floor: Bits) -> Bits:
    """Return the cells from which a box can be pulled somewhere: two cells of floor lie in line with them."""
    found: Bits = tuple(torch.zeros_like(word) for word in floor)
    for direction in range(1, 5):
        to = (direction - 1 ^ 1) + 1
        line = grid.beside(both(floor, grid.beside(floor, to)), to)
        found = tuple(old | new & ground for old, new, ground in zip(found, line, floor, strict=True))
    return found


def _of_part(words: Tensor, part: Part) -> Tensor:
    """Return whether boards, by a hash of their words, are of a part. Shapes: (B, 4 K) -> (B,)."""
    mixed = torch.zeros(len(words), dtype=torch.int64)
    for column in words.unbind(-1):
        mixed = (mixed ^ column) * _MIX[0]
        mixed = mixed ^ mixed >> 29 & 0x7FFFFFFFF
    quarter = mixed * _MIX[1] >> 40 & 3
    return torch.isin(quarter, torch.tensor(PARTS[part]))


def _proof(walk: Tensor, length: Tensor) -> Tensor:
    """Return the moves that undo walks of B rows up to a length, without the pauses. Shapes: (B, T), (B,) -> (B, T)."""
    steps = torch.arange(walk.shape[1])
    taken = (steps < length[:, None]) & (walk > 0)
    # Those taken come last first, all others after them.
    order = torch.where(taken, -steps, 1).argsort(dim=-1, stable=True)
    moves = torch.where(taken, back(walk), 0).gather(-1, order)
    return moves.to(torch.uint8)
