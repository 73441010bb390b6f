"""Registration record of the race."""

from __future__ import annotations

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.games.race.config import RaceConfig

RACE = Task(
    name="race",
    version="1",
    scenario=later("vecenv.tasks.games.race.scenario:Race"),
    config=RaceConfig,
    agents=later("vecenv.tasks.games.race.agents:AGENTS"),
    outcomes={"success": "share", "paid": "count", "moves": "count", "invalid": "count"},
    actions=lambda config: "one choice" if config.answer_moves == 1 else "other",
    domain=Domain(
        scale="1 where the finish is reached, however it is paid",
        reference="to_the_finish",
        best=later("vecenv.tasks.games.race.agents:best"),
        pictures=later("vecenv.tasks.games.figures:grid_figures"),
    ),
    text=later("vecenv.tasks.games.grid:GridText"),
    recording=later("vecenv.tasks.games.grid:RECORDING"),
)
"""The record of the race."""
