"""Registration record of the race."""

from __future__ import annotations

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.tasks.games.figures import grid_figures
from vecenv.tasks.games.grid import GridRecording, GridText
from vecenv.tasks.games.race.agents import AGENTS, Planner
from vecenv.tasks.games.race.scenario import Race, RaceConfig

RACE = Task(
    name="race",
    version="1",
    scenario=Race,
    config=RaceConfig,
    agents=AGENTS,
    outcomes={"success": "share", "paid": "count", "moves": "count", "invalid": "count"},
    actions=lambda config: "one choice" if config.answer_moves == 1 else "other",
    domain=Domain(
        scale="1 where the finish is reached, however it is paid",
        reference="to_the_finish",
        best=lambda env: Planner(),
        pictures=grid_figures,
    ),
    text=GridText,
    recording=GridRecording(),
)
"""The record of the race."""
