"""Registration record of Countdown."""

from __future__ import annotations

from dataclasses import replace

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.games.countdown.config import CountdownConfig

COUNTDOWN = Task(
    name="countdown",
    version="1",
    scenario=later("vecenv.tasks.games.countdown.scenario:Countdown"),
    config=CountdownConfig,
    agents=later("vecenv.tasks.games.countdown.agents:AGENTS"),
    outcomes={"success": "share", "formed": "share", "invalid_actions": "count"},
    actions=lambda config: "one choice" if config.action == "move" else "other",
    domain=Domain(
        reference="greedy",
        hindsight="hindsight",
        teachers=("solver",),
        scale="1 for the target, 0.1 for an expression of the given numbers, else 0",
    ),
    text=later("vecenv.tasks.games.countdown.text:CountdownText"),
    spoken=lambda config: replace(config, action="expression"),
    recording=later("vecenv.tasks.games.countdown.records:RECORDING"),
)
