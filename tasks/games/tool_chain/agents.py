"""Agents of the tool chain that do not learn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.tasks.games.tool_chain.config import LONGEST
from vecenv.tasks.games.tool_chain.scenario import ANSWER, Chain, ToolChain
from vecenv.tasks.games.tool_chain.text import WANTED
from vecenv.tasks.games.tool_chain.tools import called, read_thing, thing
from vecenv.text.interaction import Interaction


class Explorer:
    """Calls the first tool that tells anything new, and answers once it can."""

    def __init__(self) -> None:
        # By row what was told, and the kind that was asked for last.
        self._known: dict[int, Tensor] = {}
        self._asked: dict[int, int] = {}

    def choice(self, state: Chain) -> Tensor:
        """Return the next choice of each row. Shape: (N,), int64."""
        new = (state.known < 0) & (ToolChain.arguments(state)[:, :ANSWER] >= 0)
        found = state.known.gather(1, state.target.unsqueeze(1)).squeeze(1) >= 0
        return torch.where(found | ~new.any(1), ANSWER, new.long().argmax(1))

    def act(self, env: VecEnv) -> Tensor:
        choice = self.choice(env.state)
        assert isinstance(env.scenario, ToolChain)
        if env.scenario.config.action == "tool":
            return choice.unsqueeze(1)
        argument = ToolChain.arguments(env.state).gather(1, choice.unsqueeze(1)).clamp(min=0)
        return torch.cat([choice.unsqueeze(1), argument], 1)

    def answer(self, world: Interaction, ids: Sequence[int], shown: Sequence[str]) -> list[str]:
        """Return the next messages where the tools are those of `ChainTools`: what is no thing is no reply.

        After the last call it answers what it knows, or with a guess.
        """
        state = world.env.state[torch.tensor(ids)]  # type: ignore[attr-defined]
        for row, text, first in zip(ids, shown, state.known, strict=True):
            if text.startswith(WANTED):
                self._known[row] = first.clone()
            elif (found := read_thing(text)) is not None and found[0] == self._asked[row]:
                self._known[row][found[0]] = found[1]
        state = state.replace(known=torch.stack([self._known[row] for row in ids]))
        chosen, arguments = self.choice(state), ToolChain.arguments(state).clamp(min=0)
        said = []
        for row, text, choice, own, taken, target in zip(
            ids, shown, chosen.tolist(), arguments.tolist(), state.takes.tolist(), state.target.tolist(), strict=True
        ):
            if choice == ANSWER or "no call is left" in text or "no call was left" in text:
                said.append(thing(target, own[ANSWER]))
                continue
            self._asked[row] = choice
            given = {"of": thing(taken[choice], own[choice])}
            said.append(json.dumps({"name": called(choice), "arguments": given}))
        return said


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


AGENTS: dict[str, Callable[[], Explorer]] = {"explorer": Explorer, "planner": Planner}
