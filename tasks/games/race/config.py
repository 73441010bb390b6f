"""Settings of the race."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vecenv.system.settings import Settings, When, Within


@dataclass(frozen=True)
class RaceConfig(Settings):
    """Rules of the race; see ``tasks/games/race/rules.md`` for their exact meaning."""

    paid: Literal["strict", "partial", "potential", "gate"] = "strict"
    """For the finish alone; also for moves and for avoiding oil; for the same as a potential; or for the finish if
    every answer before it was valid."""
    discount: Annotated[float, Within(0, 1), When("paid", "potential", told="--env.paid potential")] = 0.99
    """Of the potential: that of the learner, whose best policy is then that of the finish alone."""
    max_steps: Annotated[int, Within(1, 1_000)] = 60
    """Moves of an episode; an invalid answer counts as one."""
    answer_moves: Annotated[int, Within(1, 10)] = 1
    """Most moves of an answer."""
