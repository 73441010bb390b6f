"""Levels as text, in the usual notation: ``#`` wall, ``@`` player, ``$`` box, ``.`` target, ``*`` and ``+`` on one."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from vecenv.tasks.games.sokoban.boards import Boards
from vecenv.tasks.games.sokoban.config import MAX_CELLS, SokobanConfig
from vecenv.tasks.games.sokoban.law import Grid
from vecenv.tasks.games.sokoban.solver import Board, pushes_of, solution

NOTATION = "#@$.*+ "
"""Characters of a level; ``-`` and ``_`` are floor too."""


def levels_of(text: str) -> list[tuple[str, list[tuple[int, str]]]]:
    """Return the levels of a file: name, and rows with their line numbers.

    A level is a run of lines that hold a wall and nothing but `NOTATION`. Its name is the last line before it that
    is none of a level, without a leading ``;``.
    """
    levels: list[tuple[str, list[tuple[int, str]]]] = []
    name, inside = "", False
    for number, line in enumerate(text.splitlines(), 1):
        row = line.rstrip().replace("-", " ").replace("_", " ")
        if "#" in row and not set(row) - set(NOTATION):
            if not inside:
                levels.append((name or f"level {len(levels) + 1}", []))
            levels[-1][1].append((number, row))
            name, inside = "", True
            continue
        if inside and row.strip() and row.lstrip()[0] == "#":
            wrong = min(set(row) - set(NOTATION))
            raise ValueError(f"{levels[-1][0]}, row {number}: {wrong!r} is none of {NOTATION!r}")
        inside = False
        name = line.strip().lstrip(";").strip() or name
    return levels


def board_of(name: str, rows: list[tuple[int, str]]) -> tuple[int, Board]:
    """Return height and board of a level; ValueError, with name and row, if it is none."""
    first, width = rows[0][0], max(len(row) for _, row in rows)
    if len(rows) * width > MAX_CELLS:
        raise ValueError(f"{name}, row {first}: {len(rows)} x {width} cells, at most {MAX_CELLS} are possible")
    found: dict[str, set[int]] = {mark: set() for mark in NOTATION}
    for number, (line, row) in enumerate(rows):
        for column, mark in enumerate(row.ljust(width)):
            if mark in "@+" and (found["@"] or found["+"]):
                raise ValueError(f"{name}, row {line}: a second player")
            found[mark].add(number * width + column)
    boxes, targets = found["$"] | found["*"], found["."] | found["*"] | found["+"]
    players = found["@"] | found["+"]
    if not players:
        raise ValueError(f"{name}, row {first}: there is no player")
    if not boxes:
        raise ValueError(f"{name}, row {first}: there is no box")
    if len(boxes) > len(targets):
        raise ValueError(f"{name}, row {first}: {len(boxes)} boxes for {len(targets)} targets")
    (player,) = players
    every = frozenset(range(len(rows) * width))
    edge = {cell for cell in every if cell % width in (0, width - 1) or cell // width in (0, len(rows) - 1)}
    # What the player could walk to without boxes: everything else is as good as wall.
    floor = frozenset(
        Board(width, every - found["#"] - edge, frozenset(), frozenset(), player).reached(frozenset(), player)
    )
    beside = {cell + step for cell in floor for step in (-width, width, -1, 1)} | {player}
    if leaks := sorted((beside & edge) - found["#"]):
        raise ValueError(
            f"{name}, row {rows[leaks[0] // width][0]}: the board is open at column {leaks[0] % width + 1}"
        )
    if lost := sorted((boxes - targets) - floor):
        raise ValueError(f"{name}, row {rows[lost[0] // width][0]}: a box that the player cannot reach")
    return len(rows), Board(width, floor, frozenset(targets) & floor, frozenset(boxes) & floor, player)


def read_boards(config: SokobanConfig, words: int | None = None) -> Boards:
    """Return the boards of the level file of a config, sorted by the pushes of their solutions.

    Raises:
        ValueError: there is no file or no level, or a level is none or has no solution within `max_steps`.
    """
    path = Path(str(config.levels))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"levels: {path} cannot be read: {error}") from error
    return _read_boards(text, config.max_steps, words)


@lru_cache(maxsize=8)
def _read_boards(text: str, max_steps: int, words: int | None) -> Boards:
    levels = levels_of(text)
    if not levels:
        raise ValueError("levels: there is no level in the file")
    solved = []
    for name, rows in levels:
        height, board = board_of(name, rows)
        try:
            moves = solution(board)
        except TimeoutError as error:
            raise ValueError(f"{name}, row {rows[0][0]}: {error}") from error
        if moves is None:
            raise ValueError(f"{name}, row {rows[0][0]}: it cannot be solved")
        if len(moves) > max_steps:
            raise ValueError(f"{name}, row {rows[0][0]}: {len(moves)} moves solve it, and max_steps is {max_steps}")
        if not moves:
            raise ValueError(f"{name}, row {rows[0][0]}: it is solved already")
        solved.append((pushes_of(board, moves), name, height, board, moves))
    solved.sort(key=lambda level: level[0])
    grid = Grid(max(level[2] for level in solved), max(level[3].width for level in solved), words)

    def packed(cells: frozenset[int], width: int) -> list[int]:
        return grid.packed(cell // width * grid.width + cell % width for cell in cells)

    table = []
    for _, _, _, board, _ in solved:
        sets = (board.floor, board.targets, board.boxes, frozenset({board.player}))
        table.append([word for cells in sets for word in packed(cells, board.width)])
    longest = max(len(moves) for *_, moves in solved)
    pushes = torch.tensor([level[0] for level in solved])
    within = torch.searchsorted(pushes, torch.arange(int(pushes[-1]) + 1), right=True)
    return Boards(
        grid=grid,
        words=torch.tensor(table, dtype=grid.dtype),
        moves=torch.tensor([[*moves, *[0] * (longest - len(moves))] for *_, moves in solved], dtype=torch.uint8),
        first=torch.zeros(1, dtype=torch.int64),
        within=within.unsqueeze(0),
        num_boxes=max(len(board.boxes) for _, _, _, board, _ in solved),
        names=tuple(name for _, name, *_ in solved),
    )
