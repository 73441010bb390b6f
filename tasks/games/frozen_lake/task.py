"""Registration record of FrozenLake."""

from __future__ import annotations

from dataclasses import replace

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.tasks.games.figures import grid_figures
from vecenv.tasks.games.frozen_lake.agents import AGENTS, Planner
from vecenv.tasks.games.frozen_lake.scenario import FrozenLake, FrozenLakeConfig
from vecenv.tasks.games.grid import GridRecording, GridText

FROZEN_LAKE = Task(
    name="frozen_lake",
    version="1",
    scenario=FrozenLake,
    config=FrozenLakeConfig,
    agents=AGENTS,
    outcomes={"success": "share", "drowned": "share", "moves": "count"},
    actions=lambda config: "other" if config.answer_moves else "one choice",
    domain=Domain(
        scale="1 where the goal is reached",
        reference="shortest_way",
        best=lambda env: Planner(),
        pictures=grid_figures,
    ),
    text=GridText,
    spoken=lambda config: replace(config, answer_moves=max(1, config.answer_moves)),
    text_config=lambda: FrozenLakeConfig(answer_moves=5),
    recording=GridRecording(),
)
"""The record of FrozenLake."""
