"""The law of Sokoban on bit sets: a set of cells is one word, or several words of fewer bits each.

All functions work on tensors of any batch shape, and on the words one after the other, so that one law serves every
size of a board. Cell (row, column) has the number ``row * width + column``. The outermost cells are always walls, and
sets hold floor, never walls; so only the inner cells have bits, row by row, with one bit of wall between two rows: what
leaves a row comes onto that bit, what leaves the board is lost or onto no floor, and the sign bit is of no cell.
Directions are 1 to 4: up, down, left, right; 0 is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add, or_
from typing import TypeVar

import torch
from torch import Tensor

Bits = tuple[Tensor, ...]
"""A set of cells: words of one type and shape."""

Row = TypeVar("Row", bound=Sequence[int])

SHORT, WORD = 31, 63
"""Most bits of a set in one word of int32, and of int64."""

SEVERAL = 60
"""Most bits of a word where there are several."""


class Grid:
    """Boards of a size as bit sets.

    Args:
        height: of the board.
        width: of the board.
        words: of a set; by default as few as hold it.

    Attributes:
        stride: bits from a cell to that below it.
        size: bits of a word.
        dtype: of a word: int32 where one is enough, of which a processor takes twice as many at a time, else int64.
        inner: numbers of the cells that are not outermost.
    """

    def __init__(self, height: int, width: int, words: int | None = None) -> None:
        self.height, self.width, self.stride = height, width, width - 1
        bits = (height - 2) * self.stride
        self.words = words or (1 if bits <= WORD else -(-bits // SEVERAL))
        self.size = -(-bits // self.words)
        self.dtype = torch.int32 if self.words == 1 and bits <= SHORT else torch.int64
        self.inner = [row * width + cell for row in range(1, height - 1) for cell in range(1, width - 1)]
        self._mask = (1 << self.size) - 1

    def bit(self, cell: int) -> int:
        """Return the bit of an inner cell, counted through all words."""
        return (cell // self.width - 1) * self.stride + cell % self.width - 1

    def place(self, cell: int) -> tuple[int, int]:
        """Return the word of an inner cell and its bit there."""
        return divmod(self.bit(cell), self.size)

    def bit_of(self, one: Bits) -> Tensor:
        """Return the `bit` of the only cell of a set. Shape: that of a word, int64."""
        numbers = (torch.where(word != 0, _count(word - 1) + at * self.size, 0) for at, word in enumerate(one))
        return reduce(add, numbers)

    def packed(self, cells: Iterable[int]) -> list[int]:
        """Return the words of a set."""
        words = [0] * self.words
        for cell in cells:
            word, bit = self.place(cell)
            words[word] |= 1 << bit
        return words

    def unpacked(self, words: Sequence[int]) -> set[int]:
        """Return the cells of a set, given its words."""
        places = ((cell, *self.place(cell)) for cell in self.inner)
        return {cell for cell, word, bit in places if words[word] >> bit & 1}

    def shifted(self, cells: Bits, by: Tensor | int, forward: Tensor | bool) -> Bits:
        """Return a set moved by a number of cells, towards greater numbers or smaller ones; both may be tensors."""
        if self.words == 1:
            (word,) = cells
            return (_either(forward, lambda: word << by, lambda: word >> by),)
        rest, last = self.size - by, self.words - 1

        def up(at: int) -> Tensor:
            carried = cells[at - 1] >> rest if at else 0
            return (cells[at] << by) & self._mask | carried

        def down(at: int) -> Tensor:
            carried = (cells[at + 1] << rest) & self._mask if at < last else 0
            return cells[at] >> by | carried

        return tuple(_either(forward, lambda at=at: up(at), lambda at=at: down(at)) for at in range(self.words))

    def beside(self, cells: Bits, direction: int) -> Bits:
        """Return a set moved by one cell in a direction, 1 to 4."""
        return self.shifted(cells, self.stride if direction <= 2 else 1, direction in (2, 4))

    def toward(self, cells: Bits, direction: Tensor) -> Bits:
        """Return a set moved by one cell in a direction, 1 to 4, by row. Shape of the direction: that of a word."""
        by = torch.where(direction <= 2, torch.full_like(direction, self.stride), 1)
        return self.shifted(cells, by, direction & 1 == 0)

    def moved(self, floor: Bits, boxes: Bits, player: Bits, direction: Tensor) -> tuple[Bits, Bits, Tensor]:
        """Return boxes and player after a move, 0 to 4, and whether it had an effect."""
        ahead = self.toward(player, direction)
        beyond = self.toward(ahead, direction)
        free = tuple(ground & ~box for ground, box in zip(floor, boxes, strict=True))
        wanted = direction > 0
        pushes = some(both(ahead, boxes)) & some(both(beyond, free)) & wanted
        moves = some(both(ahead, free)) & wanted | pushes
        parts = zip(boxes, ahead, beyond, strict=True)
        boxes = tuple(torch.where(pushes, box ^ here ^ there, box) for box, here, there in parts)
        player = tuple(torch.where(moves, here, old) for here, old in zip(ahead, player, strict=True))
        return boxes, player, moves

    def possible(self, floor: Bits, boxes: Bits, player: Bits) -> list[Tensor]:
        """Return whether a move up, down, left and right has an effect. Shape of each: that of a word, bool."""
        free, found = outside(floor, boxes), []
        for direction in range(1, 5):
            ahead = self.beside(player, direction)
            pushes = some(both(ahead, boxes)) & some(both(self.beside(ahead, direction), free))
            found.append(some(both(ahead, free)) | pushes)
        return found

    def frozen(self, floor: Bits, boxes: Bits, rounds: int) -> Bits:
        """Return the boxes that can never be moved again, by as many rounds as there are boxes.

        A box can be moved along a line if both its neighbours there are neither walls nor frozen boxes: the largest set
        of boxes none of which can be the first to move. A box in a corner is one alone.
        """
        stuck = boxes
        for _ in range(rounds):
            free = tuple(ground & ~box for ground, box in zip(floor, stuck, strict=True))
            lines = [both(self.beside(free, one), self.beside(free, one + 1)) for one in (1, 3)]
            stuck = tuple(box & ~across & ~along for box, across, along in zip(stuck, *lines, strict=True))
        return stuck

    def filled(self, floor: Bits, start: Bits) -> Bits:
        """Return the cells of the floor that can be reached from some."""
        reached = start
        for _ in range(self.height * self.width // 2):
            sides = [self.beside(reached, direction) for direction in range(1, 5)]
            reached = tuple(reduce(or_, parts) & ground for ground, *parts in zip(floor, reached, *sides, strict=True))
        return reached


def _either(forward: Tensor | bool, up: object, down: object) -> Tensor:
    if isinstance(forward, bool):
        return up() if forward else down()  # type: ignore[operator]
    return torch.where(forward, up(), down())  # type: ignore[operator]


def both(one: Bits, other: Bits) -> Bits:
    """Return the cells that two sets have in common."""
    return tuple(a & b for a, b in zip(one, other, strict=True))


def some(cells: Bits) -> Tensor:
    """Return whether a set has a cell. Shape: that of a word, bool."""
    return reduce(or_, (word != 0 for word in cells))


def outside(cells: Bits, others: Bits) -> Bits:
    """Return the cells of a set that another one has not."""
    return tuple(a & ~b for a, b in zip(cells, others, strict=True))


def count(cells: Bits) -> Tensor:
    """Return the number of cells of a set, by adding neighbouring bit fields. Shape: that of a word, int64."""
    return reduce(add, map(_count, cells))


def _count(word: Tensor) -> Tensor:
    word = word.long()
    word = word - (word >> 1 & 0x5555555555555555)
    word = (word & 0x3333333333333333) + (word >> 2 & 0x3333333333333333)
    word = word + (word >> 4) & 0x0F0F0F0F0F0F0F0F
    return word * 0x0101010101010101 >> 56


def back(direction: Tensor) -> Tensor:
    """Return the opposite directions of 1 to 4."""
    return (direction - 1 ^ 1) + 1
