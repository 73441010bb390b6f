"""Lakes as bits, how they are drawn, where a move leads, and the best policy by dynamic programming.

`rules.md` beside this file is the specification. Cell (row, column) of a lake is bit 8 · row + column of an int64, and
directions are those of the moves: left, down, right, up, so that the next one is a turn to the left.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.tasks.games.frozen_lake.limits import LEAST, MOST

MAPS = {
    "4x4": "SFFF/FHFH/FFFH/HFFG",
    "8x8": "SFFFFFFF/FFFFFFFF/FFFHFFFF/FFFFFHFF/FFFHFFFF/FHHFFFHF/FHFFHFHF/FFFHFFFG",
}
"""The two lakes of Gymnasium's FrozenLake-v1."""

_LEFT_COLUMN, _RIGHT_COLUMN = 0x0101010101010101, -0x7F7F7F7F7F7F7F80
_FINENESS = 8
"""A density is a multiple of 2⁻⁸."""


SOON, EQUAL = 0.9, 1e-12
"""Among moves whose probabilities to arrive differ by less, those count that arrive sooner by this discount."""


class Drawn(NamedTuple):
    """A lake: its holes as bits, and the cells of start and goal. Shape of each: (...), int64."""

    holes: Tensor
    start: Tensor
    goal: Tensor


def bit(cell: Tensor) -> Tensor:
    """Return a cell as bits. Shape: (...), int64."""
    return torch.ones_like(cell) << cell


def has(bits: Tensor, cell: Tensor) -> Tensor:
    """Return whether a cell is among the bits. Shape: (...), bool."""
    return ((bits >> cell) & 1) == 1


def inside(side: int) -> int:
    """Return the bits of all cells of a lake, as a number of int64."""
    bits = sum(1 << (8 * row + column) for row in range(side) for column in range(side))
    return bits - (1 << 64) if bits >> 63 else bits


def spread(bits: Tensor, side: int) -> Tensor:
    """Return bits as cells. Shape: (...) -> (..., side, side), bool."""
    line = torch.arange(side, device=bits.device)
    return has(bits[..., None, None], 8 * line.unsqueeze(-1) + line)


def drawn_bits(key: EpisodeKey, stream: int, density: Tensor, side: int) -> Tensor:
    """Draw each cell of a lake with a probability, rounded to a multiple of 2⁻⁸. Shape: as the key, int64.

    One word of random bits for each binary digit of the probability, from the last one on: where the digit is 1 the
    bits so far are joined with the word, else they are cut by it, which halves the probability and adds half the digit.
    """
    # Four rows of eight bits are half a word of 64.
    wide, count = side > 4, _FINENESS // (2 if side > 4 else 4)
    words = [word for index in range(count) for word in random_bits(key, stream, index)]
    if wide:
        words = [low | (high << 32) for low, high in zip(words[::2], words[1::2], strict=True)]
    digits = torch.round(density * 2**_FINENESS).to(torch.int64)
    bits = torch.zeros_like(words[0])
    for number, word in enumerate(words):
        one = -((digits >> number) & 1)
        bits = (word & bits) | (one & (word | bits))
    # A density of 1 has a digit of its own.
    return (bits | -(digits >> _FINENESS)) & inside(side)


def grown(bits: Tensor) -> Tensor:
    """Return bits and their neighbours, also beyond the sides of smaller lakes. Shape: (...), int64."""
    # The shift to the right copies the sign.
    up = (bits >> 8) & 0x00FFFFFFFFFFFFFF
    left = (bits >> 1) & 0x7FFFFFFFFFFFFFFF & ~_RIGHT_COLUMN
    return bits | (bits << 8) | up | ((bits << 1) & ~_LEFT_COLUMN) | left


def reached(holes: Tensor, start: Tensor, side: int) -> Tensor:
    """Return the cells that can be reached from a start without a hole, as bits. Shape: (...), int64.

    A shortest way is at most two thirds of the cells long: it has no cell beside a later one but the next.
    """
    free = ~holes & inside(side)
    bits = bit(start)
    for _ in range(2 * side * side // 3 + 1):
        bits = grown(bits) & free
    return bits


def staircase(start: Tensor, goal: Tensor, coins: Tensor, side: int) -> Tensor:
    """Return a way from start to goal without a detour, as bits; ``coins`` tell where it turns. Shape: (...), int64."""
    row, column = start >> 3, start & 7
    bits = bit(start)
    for number in range(2 * (side - 1)):
        down, across = (goal >> 3) - row, (goal & 7) - column
        vertical = (across == 0) | ((down != 0) & (((coins >> number) & 1) == 1))
        row = row + torch.where(vertical, down.sign(), 0)
        column = column + torch.where(vertical, 0, across.sign())
        bits = bits | bit(8 * row + column)
    return bits


def drawn_lake(key: EpisodeKey, density: Tensor, side: int, random_ends: bool) -> Drawn:
    """Draw a lake whose goal can be reached: where the holes are in the way, those on a `staircase` freeze over."""
    first, second, coins, _ = random_bits(key, 0)
    cells = side * side
    start, goal = 0 * first, 0 * first + 9 * (side - 1)
    if random_ends:
        one = (first * cells) >> 32
        other = (one + 1 + ((second * (cells - 1)) >> 32)) % cells
        start, goal = (8 * (cell // side) + cell % side for cell in (one, other))
    holes = drawn_bits(key, 1, density, side) & ~(bit(start) | bit(goal))
    solvable = has(reached(holes, start, side), goal)
    return Drawn(torch.where(solvable, holes, holes & ~staircase(start, goal, coins, side)), start, goal)


def read_lake(text: str) -> tuple[int, int, int, int]:
    """Return holes, start, goal and side of a lake: a name of `MAPS`, or rows of S, F, H and G separated by slashes.

    Raises:
        ValueError: it is none, or its goal cannot be reached.
    """
    rows = MAPS.get(text, text).upper().replace("\n", "/").strip("/").split("/")
    side = len(rows)
    if not LEAST <= side <= MOST or any(len(row) != side for row in rows):
        raise ValueError(
            f"a lake must have {LEAST} to {MOST} rows of as many cells, or be one of {', '.join(MAPS)}: {text!r}"
        )
    if strange := sorted({cell for row in rows for cell in row} - set("SFHG")):
        raise ValueError(f"a lake has cells S, F, H and G, not {', '.join(map(repr, strange))}: {text!r}")
    places = {cell: [8 * y + x for y in range(side) for x in range(side) if rows[y][x] == cell] for cell in "SHG"}
    for cell, name in (("S", "start"), ("G", "goal")):
        if len(places[cell]) != 1:
            raise ValueError(f"a lake must have one {name} {cell}, not {len(places[cell])}: {text!r}")
    (start,), (goal,) = places["S"], places["G"]
    holes = sum(1 << hole for hole in places["H"])
    holes -= (holes >> 63) << 64
    if not has(reached(torch.tensor(holes), torch.tensor(start), side), torch.tensor(goal)):
        raise ValueError(f"there is no way from S to G around the holes: {text!r}")
    return holes, start, goal, side


def went(cell: Tensor, direction: Tensor, side: int) -> Tensor:
    """Return the cell after a step in a direction, the same one at the edge. Shape: (...), of the cell's type."""
    row, column = cell >> 3, cell & 7
    down, up, right, left = ((direction == number).to(cell.dtype) for number in (1, 3, 2, 0))
    row = (row + down - up).clamp(0, side - 1)
    column = (column + right - left).clamp(0, side - 1)
    return 8 * row + column


def slid(move: Tensor, slip: Tensor, leaning: Tensor, chance: Tensor) -> Tensor:
    """Return the direction that a move takes, given a uniform number in [0, 1). Shape: (...), int64.

    With probability ``slip`` it is turned, and of those with ``leaning`` to the left, else to the right.
    """
    straight = 1 - slip
    turned, right = chance >= straight, chance >= straight + slip * leaning
    # A turn to the right is three to the left.
    return (move + turned.to(move.dtype) + 2 * right.to(move.dtype)) & 3


def best_moves(lake: Drawn, slip: Tensor, leaning: Tensor, side: int, horizon: int) -> tuple[Tensor, Tensor]:
    """Return the best policy of N lakes, and its probability of reaching the goal, by backward induction; exact.

    Returns:
        The best move by moves left, from 1, and cell; of equal ones that which arrives sooner. Shape: (N, horizon,
        side²), int8.
        The probability that it reaches the goal from the start. Shape: (N,), float64.
    """
    count, device = len(lake.holes), lake.holes.device
    values = _Values(lake, slip, leaning, side)
    # The probability to arrive, and the same with each move discounted, which tells how soon.
    fade = torch.tensor([1.0, SOON], dtype=torch.float64, device=device).view(2, 1, 1)
    worth = torch.zeros(2, count, side * side, dtype=torch.float64, device=device)
    moves = torch.empty(count, horizon, side * side, dtype=torch.int8, device=device)
    for left_over in range(horizon):
        value = values(fade * worth)
        best = value[0] >= value[0].amax(-1, keepdim=True) - EQUAL
        chosen = torch.where(best, value[1], -1.0).argmax(-1)
        worth = value.gather(-1, chosen.expand(2, -1, -1).unsqueeze(-1)).squeeze(-1)
        moves[:, left_over] = chosen
    return moves, worth[0].gather(1, values.start).squeeze(-1)


def blind_moves(lake: Drawn, slip: Tensor, leaning: Tensor, side: int, horizon: int) -> Tensor:
    """Return a move for each cell, the same on all of N lakes: no rule that differs in one cell arrives more often.

    Found cell by cell from a rule that goes right, and down at the edge. Shape: (side²,), int64.
    """
    values, cells = _Values(lake, slip, leaning, side), side * side
    moves = torch.where(torch.arange(cells, device=lake.holes.device) % side < side - 1, 2, 1)
    reached, known = -1.0, 0.0
    while known > reached + EQUAL:
        reached = known
        for cell in range(cells):
            # Four rules, which differ in this cell.
            rules = moves.repeat(4, 1)
            rules[:, cell] = torch.arange(4, device=moves.device)
            chosen = rules[:, None, :, None].expand(-1, len(slip), -1, -1)
            worth = torch.zeros(4, len(slip), cells, dtype=torch.float64, device=moves.device)
            for _ in range(horizon):
                worth = values(worth).gather(-1, chosen).squeeze(-1)
            arrived = worth.gather(-1, values.start.expand(4, -1, -1)).mean((1, 2)).tolist()
            if max(arrived) > arrived[int(moves[cell])] + EQUAL:
                moves[cell] = arrived.index(max(arrived))
            known = max(arrived)
    return moves


class _Values:
    """What moves are worth on N lakes, given what it is worth to be in each cell afterwards."""

    def __init__(self, lake: Drawn, slip: Tensor, leaning: Tensor, side: int) -> None:
        cells = torch.arange(side * side, device=lake.holes.device)
        bits = 8 * (cells // side) + cells % side
        after = went(bits.unsqueeze(-1), torch.arange(4, device=cells.device), side)
        self.after = (after >> 3) * side + (after & 7)
        self.holes, self.goal = spread(lake.holes, side).flatten(1), bits == lake.goal.unsqueeze(-1)
        self.straight = (1 - slip.double())[:, None, None]
        self.left = (slip.double() * leaning.double())[:, None, None]
        self.start = ((lake.start >> 3) * side + (lake.start & 7)).long().unsqueeze(-1)

    def __call__(self, worth: Tensor) -> Tensor:
        """Return the value of each move. Shapes: (..., N, side²) -> (..., N, side², 4)."""
        entered = torch.where(self.goal, 1.0, torch.where(self.holes, 0.0, worth))[..., self.after]
        right = 1 - self.straight - self.left
        return self.straight * entered + self.left * entered.roll(-1, -1) + right * entered.roll(1, -1)
