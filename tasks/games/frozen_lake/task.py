"""Registration record of FrozenLake."""

from __future__ import annotations

from dataclasses import replace

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.games.frozen_lake.config import FrozenLakeConfig

FROZEN_LAKE = Task(
    name="frozen_lake",
    version="1",
    scenario=later("vecenv.tasks.games.frozen_lake.scenario:FrozenLake"),
    config=FrozenLakeConfig,
    agents=later("vecenv.tasks.games.frozen_lake.agents:AGENTS"),
    outcomes={"success": "share", "drowned": "share", "moves": "count"},
    actions=lambda config: "other" if config.answer_moves else "one choice",
    domain=Domain(
        scale="1 where the goal is reached",
        reference="shortest_way",
        best=later("vecenv.tasks.games.frozen_lake.agents:best"),
        pictures=later("vecenv.tasks.games.figures:grid_figures"),
    ),
    text=later("vecenv.tasks.games.grid:GridText"),
    spoken=lambda config: replace(config, answer_moves=max(1, config.answer_moves)),
    text_config=lambda: FrozenLakeConfig(answer_moves=5),
    recording=later("vecenv.tasks.games.grid:RECORDING"),
)
"""The record of FrozenLake."""
