"""Solutions of boards that know nothing of how they were made: A* over pushes, and the shortest walks between them.

Boards are sets of cell numbers here, with one for each row of text: for level files, difficulty and agents.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count as counted

MOST_STATES = 200_000
"""Positions of boxes and player that a search opens, by default."""


@dataclass(frozen=True)
class Board:
    """A board: the numbers of its cells, ``row * width + column``; what is no floor is wall."""

    width: int
    floor: frozenset[int]
    targets: frozenset[int]
    boxes: frozenset[int]
    player: int

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """What a move Up, Down, Left and Right adds to a cell's number."""
        return -self.width, self.width, -1, 1

    def reached(self, boxes: frozenset[int], player: int) -> dict[int, int]:
        """Return the cells that the player can walk to, and the move that enters each on a shortest way (0 first)."""
        found, waiting = {player: 0}, deque([player])
        while waiting:
            cell = waiting.popleft()
            for number, step in enumerate(self.steps, 1):
                new = cell + step
                if new in self.floor and new not in boxes and new not in found:
                    found[new] = number
                    waiting.append(new)
        return found

    def walk(self, boxes: frozenset[int], player: int, goal: int) -> list[int]:
        """Return the moves of a shortest walk to a cell that can be reached."""
        entered, moves = self.reached(boxes, player), []
        while goal != player:
            moves.append(entered[goal])
            goal -= self.steps[entered[goal] - 1]
        return moves[::-1]

    def distances(self) -> dict[int, dict[int, int]]:
        """Return by target the pushes that a lone box needs from each cell; cells without a way are left out."""
        found = {}
        for target in self.targets:
            own, waiting = {target: 0}, deque([target])
            while waiting:
                cell = waiting.popleft()
                for step in self.steps:
                    # Pulled back by one step, the player stands one further.
                    if (new := cell - step) in self.floor and new - step in self.floor and new not in own:
                        own[new] = own[cell] + 1
                        waiting.append(new)
            found[target] = own
        return found


def solution(board: Board, most: int = MOST_STATES) -> list[int] | None:
    """Return moves, 1 to 4, that solve a board by the fewest pushes; None if there are none.

    A* over the boxes and the region of the player. The rest of the way is at least the sum over the boxes of the pushes
    to the nearest target, by which a box on a dead cell is never left there.

    Raises:
        TimeoutError: more than ``most`` positions were opened before either was known.
    """
    by_target = board.distances()
    nearest = {
        cell: min(own[cell] for own in by_target.values() if cell in own)
        for cell in board.floor
        if any(cell in own for own in by_target.values())
    }
    if not board.boxes <= nearest.keys():
        return None
    order, opened = counted(), 0
    cost = {(board.boxes, min(board.reached(board.boxes, board.player))): 0}
    came: dict[tuple[frozenset[int], int], tuple[tuple[frozenset[int], int], int, int, int]] = {}
    heap = [(sum(nearest[box] for box in board.boxes), next(order), 0, board.boxes, board.player)]
    while heap:
        _, _, pushes, boxes, player = heapq.heappop(heap)
        reach = board.reached(boxes, player)
        state = boxes, min(reach)
        if pushes > cost[state]:
            continue
        if boxes <= board.targets:
            return _moves(board, came, state)
        opened += 1
        if opened > most:
            raise TimeoutError(f"no solution was found among {most:,} positions")
        for box in boxes:
            for number, step in enumerate(board.steps, 1):
                new = box + step
                if box - step not in reach or new not in nearest or new in boxes:
                    continue
                after = boxes - {box} | {new}
                following = after, min(board.reached(after, box))
                if pushes + 1 < cost.get(following, pushes + 2):
                    cost[following], came[following] = pushes + 1, (state, box, number, player)
                    rest = sum(nearest[one] for one in after)
                    heapq.heappush(heap, (pushes + 1 + rest, next(order), pushes + 1, after, box))
    return None


def _moves(board: Board, came: dict, state: tuple[frozenset[int], int]) -> list[int]:
    """Return the moves of the pushes that led to a position, with walks between them."""
    pushes = []
    while state in came:
        state, box, number, _ = came[state]
        pushes.append((state[0], box, number))
    moves, player = [], board.player
    for boxes, box, number in reversed(pushes):
        moves += [*board.walk(boxes, player, box - board.steps[number - 1]), number]
        player = box
    return moves


def pushes_of(board: Board, moves: Iterable[int]) -> int:
    """Return how many of a solution's moves push a box."""
    return sum(before != after for before, after in _boxes_along(board, moves))


def _boxes_along(board: Board, moves: Iterable[int]) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    boxes, player = board.boxes, board.player
    for number in moves:
        step = board.steps[number - 1]
        player += step
        before = boxes
        if player in boxes:
            boxes = boxes - {player} | {player + step}
        yield before, boxes
