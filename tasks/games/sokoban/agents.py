"""Agents that do not learn: greedy, the solver, and hindsight, which knows how the board was made."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.tasks.games.grid import one_move
from vecenv.tasks.games.sokoban.scenario import Sokoban, SokobanState
from vecenv.tasks.games.sokoban.solver import Board, solution


def game_of(env: VecEnv) -> Sokoban:
    """Return the rules of an environment; ValueError if it plays another game."""
    if not isinstance(env.scenario, Sokoban):
        raise ValueError(f"{env.scenario.name} is not sokoban")
    return env.scenario


def boards_of(game: Sokoban, state: SokobanState) -> list[Board]:
    """Return the boards of states, batch (B,), as the solver reads them."""
    grid = game.grid
    boards = []
    parts = (state.ground, state.targets, state.boxes, state.player)
    for row in zip(*(cells.tolist() for cells in parts), strict=True):
        floor, targets, boxes, player = (frozenset(grid.unpacked(cells)) for cells in row)
        boards.append(Board(grid.width, floor, targets, boxes, min(player)))
    return boards


def _action(env: VecEnv, moves: Tensor) -> Tensor:
    """Return actions of one move each, 1 to 4; what is 0 goes up. Shape of the moves: (N,)."""
    return one_move((moves.to(env.device, torch.int64) - 1).clamp(min=0), game_of(env).answer_moves)


class Hindsight:
    """Plays the proof of every board, from its start."""

    def act(self, env: VecEnv) -> Tensor:
        moves, state = game_of(env).boards.moves, env.state
        step = state.steps.cpu().long().clamp(max=moves.shape[1] - 1)
        return _action(env, moves[state.board.cpu(), step])


class Planned:
    """Plays plans that are made for each position that the last one does not lead to, on the host.

    Args:
        plan: returns the next moves on a board, 1 to 4, of which there may be none.
    """

    def __init__(self, plan: Callable[[Board], list[int]]) -> None:
        self._plan = plan
        self._plans: dict[Board, list[int]] = {}

    def act(self, env: VecEnv) -> Tensor:
        going, moves = ~env.rows.done, torch.zeros(env.num_envs, dtype=torch.int64)
        chosen = going.nonzero().squeeze(-1)
        following: dict[Board, list[int]] = {}
        for row, board in zip(chosen.tolist(), boards_of(game_of(env), env.state[chosen]), strict=True):
            moving = self._plans.get(board)
            moving = self._plan(board) if moving is None else moving
            moves[row] = moving[0] if moving else 0
            if len(moving) > 1:
                following[after(board, moving[0])] = moving[1:]
        self._plans = following
        return _action(env, moves)


def after(board: Board, move: int) -> Board:
    """Return a board after a move that has an effect."""
    player = board.player + board.steps[move - 1]
    boxes = board.boxes
    if player in boxes:
        boxes = boxes - {player} | {player + board.steps[move - 1]}
    return Board(board.width, board.floor, board.targets, boxes, player)


def greedy_plan(board: Board) -> list[int]:
    """Return the walk to the nearest push that brings a box nearer to the target that is nearest to it, and the push.

    Distances are those of a lone box. Without such a push the player walks to the nearest other one that kills no box.
    """
    distances = list(board.distances().values())

    def far(cell: int) -> int:
        return min((own[cell] for own in distances if cell in own), default=1_000)

    entered, best = board.reached(board.boxes, board.player), None
    for box in sorted(board.boxes):
        for number, step in enumerate(board.steps, 1):
            new, behind = box + step, box - step
            if behind in entered and new in board.floor and new not in board.boxes:
                walk = board.walk(board.boxes, board.player, behind)
                worse = (far(new) >= far(box)) + (far(new) >= 1_000)
                best = min(best or ((9, 0), []), ((worse, len(walk)), [*walk, number]))
    return best[1] if best else []


AGENTS: dict[str, Callable[[], Hindsight | Planned]] = {
    "greedy": lambda: Planned(greedy_plan),
    "solver": lambda: Planned(lambda board: solution(board) or []),
    "hindsight": Hindsight,
}
"""Agents by name."""
