"""Settings of Sokoban; those that ROLL has are called as there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from vecenv.system.settings import NotNegative, Settings, Share, When, Within

Part = Literal["train", "validation", "test", "all"]

MAX_CELLS = 100
"""Most cells of a board, its outer walls included."""

MAX_BOXES = 8
"""Most boxes of a generated board."""


@dataclass(frozen=True, kw_only=True)
class SokobanConfig(Settings):
    """Settings of boards and rules; see ``tasks/games/sokoban/rules.md`` for the exact meaning."""

    dim_room: tuple[Annotated[int, Within(5, 10)], Annotated[int, Within(5, 10)]] = (6, 6)
    """Height and width of a board, its outer walls included."""
    num_boxes: Annotated[int, Within(1, MAX_BOXES)] = 3
    """Boxes of a board; a parameter, so that it may differ by row, up to this number."""
    max_steps: Annotated[int, Within(1, 10_000)] = 100
    """Moves of an episode."""
    search_depth: Annotated[int, Within(1, 1_000)] = 300
    """Moves of the walk back that makes a board, at most `max_steps`, so that its proof fits into an episode."""
    max_pulls: Annotated[int, Within(1, 1_000)] = 1_000
    """Most pulls of that walk; a parameter, so that it may differ by row."""
    layout: Literal["rooms", "walls", "open"] = "rooms"
    """Rooms are carved by a walk; walls are scattered over the floor; or there are only the outer ones."""
    wall_density: Annotated[Share, When("layout", "walls")] = 0.15
    """Share of the inner cells that are walls, about."""
    boards: Annotated[int, Within(1, 2**22)] = 2**14
    """Boards that are made for each number of boxes, from which episodes draw."""
    board_seed: Annotated[int, Within(0, 2**63, below=True)] = 0
    """Seed of these boards."""
    part: Part = "all"
    """Boards of training, validation and test are different ones."""
    levels: Path | None = None
    """File of levels as text, from which episodes draw in place of generated boards."""
    box_reward: NotNegative = 1.0
    """Reward of a box that comes onto a target, and minus that of one that leaves it; with 0 only the solution pays."""
    end_on_deadlock: bool = False
    """A deadlock ends the episode."""
    observation: Literal["around", "planes", "bits"] = "planes"
    """What is around the player, floor, targets and boxes, in a row; planes of the cells inside of the outer walls; or
    the words of the bit sets."""
    answer_moves: Annotated[int, Within(0, 16)] = 0
    """Most moves of an action, for agents that act by text; 0 for one move of a tensor agent."""

    @property
    def depth(self) -> int:
        """Moves of the walk back."""
        return min(self.search_depth, self.max_steps)
