"""Registration record of Sokoban."""

from __future__ import annotations

from dataclasses import replace

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.games.sokoban.config import Part, SokobanConfig

TEXT_MOVES = 5
"""Most moves of an answer in words, by default."""


def part(config: SokobanConfig, part: Part) -> SokobanConfig:
    """Return the config of the boards of a part; levels from a file are the same in all."""
    return replace(config, part=part)


def spoken(config: SokobanConfig) -> SokobanConfig:
    """Return the config whose actions are answers of several moves."""
    return replace(config, answer_moves=config.answer_moves or TEXT_MOVES)


SOKOBAN = Task(
    name="sokoban",
    version="1",
    scenario=later("vecenv.tasks.games.sokoban.scenario:Sokoban"),
    config=SokobanConfig,
    agents=later("vecenv.tasks.games.sokoban.agents:AGENTS"),
    actions=lambda config: "other" if config.answer_moves else "one choice",
    outcomes={
        "success": "share",
        "boxes_on_target": "count",
        "deadlock": "share",
        "action_is_effective": "share",
        "action_is_valid": "share",
    },
    domain=Domain(
        scale="the share of the boxes that are on targets: 1 is a solved board",
        reference="greedy",
        hindsight="hindsight",
        part=part,
        pictures=later("vecenv.tasks.games.figures:grid_figures"),
    ),
    text=later("vecenv.tasks.games.grid:GridText"),
    spoken=spoken,
    recording=later("vecenv.tasks.games.grid:RECORDING"),
)
