"""Settings of Countdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vecenv.system.settings import Fraction, Settings, Within

LARGEST_NUMBER, LARGEST_TARGET = 100, 10_000


@dataclass(frozen=True)
class CountdownConfig(Settings):
    """Rules of Countdown; see ``tasks/games/countdown/README.md``."""

    slots: Annotated[int, Within(2, 6)] = 6
    """Places for numbers, which bound the level; observations and actions have room for as many."""
    level: Annotated[int, Within(2, 6)] = 4
    """Numbers of a puzzle; a parameter that may differ per row."""
    largest: Annotated[int, Within(2, LARGEST_NUMBER)] = 50
    """Numbers are drawn from 1 to this one."""
    lowest_target: Annotated[int, Within(1, LARGEST_TARGET)] = 10
    highest_target: Annotated[int, Within(1, LARGEST_TARGET)] = 100
    use_all: bool = False
    """A solution must use every number, instead of each at most once."""
    format_reward: Fraction = 0.1
    """Of an expression of the given numbers that is not the target."""
    attempts: Annotated[int, Within(1, 100)] = 1
    """Expressions that may be tried in an episode."""
    action: Literal["move", "expression"] = "move"
    """A step combines two numbers, or is a whole expression."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level > self.slots:
            raise ValueError(f"level must be at most slots, {self.slots}, got {self.level}")
        if self.lowest_target > self.highest_target:
            raise ValueError(f"lowest_target must be at most highest_target, {self.highest_target}")
