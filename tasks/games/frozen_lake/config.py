"""Settings of FrozenLake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vecenv.system.settings import Settings, When, Within
from vecenv.tasks.games.frozen_lake.limits import LEAST, MOST

_DRAWN = When("lake", "", told="lakes that are drawn, without --env.lake")


@dataclass(frozen=True)
class FrozenLakeConfig(Settings):
    """Rules of FrozenLake; see ``tasks/games/frozen_lake/rules.md`` for their exact meaning."""

    size: Annotated[int, Within(LEAST, MOST), _DRAWN] = 4
    """Cells of a side."""
    density: Annotated[float, Within(0, 1), _DRAWN] = 0.2
    """Probability of a hole, for each cell but start and goal."""
    random_ends: Annotated[bool, _DRAWN] = False
    """Draw the cells of start and goal; else they are the first and the last corner."""
    lake: str = ""
    """The lake of all episodes, 4x4 or 8x8 as in Gymnasium, or rows of S, F, H and G separated by slashes; by default
    each episode has a lake of its own."""
    slip: Annotated[float, Within(0, 1)] = 2 / 3
    """Probability that a move goes to a side."""
    leaning: Annotated[float, Within(0, 1)] = 0.5
    """Share of these that goes to the left of where the move was meant to go."""
    max_steps: Annotated[int, Within(1, 10_000)] = 100
    """Moves of an episode; an invalid answer counts as one."""
    answer_moves: Annotated[int, Within(0, 10)] = 0
    """Most moves of an answer in words; 0 for actions of tensor agents, one move each."""
    format_penalty: Annotated[float, Within(0, 1)] = 0.0
    """Taken from the reward for an invalid answer."""
    observation: Literal["around", "cells", "planes", "bits", "pixels"] = "around"
    """What is around the player, goal, holes and edge, in a row; cells of player, goal and holes, in a row; the same as
    planes, for convolutions; a byte for each row of holes, and the cells of the others; or a picture."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lake:
            # Here, as the settings are told of without PyTorch.
            from vecenv.tasks.games.frozen_lake.law import read_lake

            read_lake(self.lake)
