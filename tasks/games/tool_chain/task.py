"""Agents of the tool chain that do not learn, and its registration record."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.tasks.games.tool_chain.scenario import ANSWER, LONGEST, Chain, ToolChain, ToolChainConfig
from vecenv.tasks.games.tool_chain.text import ToolChainText


class Explorer:
    """Calls the first tool that tells anything new, and answers once it can."""

    def choice(self, state: Chain) -> Tensor:
        """Return the next choice of each row. Shape: (N,), int64."""
        new = (state.known < 0) & (torch.vmap(ToolChain.arguments)(state)[:, :ANSWER] >= 0)
        found = state.known.gather(1, state.target.unsqueeze(1)).squeeze(1) >= 0
        return torch.where(found | ~new.any(1), ANSWER, new.long().argmax(1))

    def act(self, env: VecEnv) -> Tensor:
        choice = self.choice(env.state)
        assert isinstance(env.scenario, ToolChain)
        if env.scenario.config.action == "tool":
            return choice.unsqueeze(1)
        argument = torch.vmap(ToolChain.arguments)(env.state).gather(1, choice.unsqueeze(1)).clamp(min=0)
        return torch.cat([choice.unsqueeze(1), argument], 1)


class Planner(Explorer):
    """Goes back from what is wanted to what is known: the fewest calls, of what is shown alone."""

    def choice(self, state: Chain) -> Tensor:
        wanted = state.target
        for _ in range(LONGEST):
            taken = state.takes.gather(1, wanted.unsqueeze(1)).squeeze(1).clamp(min=0)
            known = state.known.gather(1, torch.stack([wanted, taken], 1)) >= 0
            wanted = torch.where(known.any(1), wanted, taken)
        found = state.known.gather(1, wanted.unsqueeze(1)).squeeze(1) >= 0
        return torch.where(found, ANSWER, wanted)


TOOL_CHAIN = Task(
    name="tool_chain",
    version="1",
    scenario=ToolChain,
    config=ToolChainConfig,
    agents={"explorer": Explorer, "planner": Planner},
    outcomes={"success": "share", "calls": "count", "calls_needed": "count", "tools_offered": "count"},
    actions=lambda config: "one choice" if config.action == "tool" else "other",
    domain=Domain(
        reference="explorer",
        hindsight="planner",
        teachers=("planner",),
        scale="1 for the right answer, else 0",
    ),
    text=ToolChainText,
    spoken=lambda config: replace(config, action="call"),
)
