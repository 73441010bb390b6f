"""Registration record of the tool chain."""

from __future__ import annotations

from dataclasses import replace

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.games.tool_chain.config import ToolChainConfig

TOOL_CHAIN = Task(
    name="tool_chain",
    version="1",
    scenario=later("vecenv.tasks.games.tool_chain.scenario:ToolChain"),
    config=ToolChainConfig,
    agents=later("vecenv.tasks.games.tool_chain.agents:AGENTS"),
    outcomes={"success": "share", "calls": "count", "calls_needed": "count", "tools_offered": "count"},
    actions=lambda config: "one choice" if config.action == "tool" else "other",
    domain=Domain(
        reference="explorer",
        hindsight="planner",
        teachers=("planner",),
        scale="1 for the right answer, else 0",
    ),
    text=later("vecenv.tasks.games.tool_chain.text:ToolChainText"),
    spoken=lambda config: replace(config, action="call"),
)
