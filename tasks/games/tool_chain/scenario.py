"""Chains of tools: the world that is drawn, its law, what is seen, and how it is graded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Categorical, MultiCategorical

from vecenv.core.capabilities import Masked, Tensors
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.core.scenario import Observation, Scenario
from vecenv.curriculum import Levelled
from vecenv.tasks.games.tool_chain.config import KINDS, LONGEST, VALUES, ToolChainConfig

ANSWER, NOTHING = KINDS, KINDS + 1
"""Choices of an action beside the tools: the answer and, of those in words, none."""

_MASK = (1 << 32) - 1


class Chain(TensorClass):
    """State of an episode.

    Attributes:
        takes: kind that the tool that gives a kind takes, -1 where there is no such tool. Shape: (KINDS,), int64.
        known: thing that is known of each kind, -1 where none is. Shape: (KINDS,), int64.
        start: kind that is known at first. Shape: (), int64, as all below.
        target: kind that is wanted.
        truth: thing that is wanted.
        salt: of what tools return.
        level: calls that are needed.
        steps: calls and answers so far.
        answered: whether there was an answer. Shape: (), bool, as those below.
        solved: whether it was right.
        valid: whether the last action was a call or an answer that could be.
        effective: whether it told anything new, or answered.
    """

    takes: Tensor
    known: Tensor
    start: Tensor
    target: Tensor
    truth: Tensor
    salt: Tensor
    level: Tensor
    steps: Tensor
    answered: Tensor
    solved: Tensor
    valid: Tensor
    effective: Tensor


def reply(salt: Tensor, gives: Tensor, argument: Tensor) -> Tensor:
    """Return the thing that a tool returns: a mix of its kind and its argument. Shape of each: (...), int64.

    Two rounds of multiplication and shift, of 32 bits each, as hashes of integers have them.
    """
    word = (salt + gives * 0x9E3779B9 + argument * 0x85EBCA6B) & _MASK
    for factor, shift in ((0x2C1B3C6D, 15), (0x297A2D39, 12)):
        word = ((word ^ (word >> shift)) * factor) & _MASK
    return ((word ^ (word >> 15)) * VALUES) >> 32


class ToolChain(Masked, Levelled, Scenario[Chain]):
    """The rules of ``rules.md``."""

    levels = range(1, LONGEST + 1)

    def __init__(self, config: ToolChainConfig) -> None:
        self.config = config
        self.params = {name: torch.tensor(getattr(config, name)) for name in ("level", "num_tools", "call_cost")}
        self.shared = {"kinds": torch.arange(KINDS)}
        if config.action == "tool":
            self.action_spec = Categorical(KINDS + 1, (1,), dtype=torch.int64)
        else:
            self.action_spec = MultiCategorical([KINDS + 2, VALUES], (2,), dtype=torch.int64)
        self.longest = self.most_steps = LONGEST + config.spare_calls + 1

    def metadata(self) -> dict[str, Any]:
        return {**super().metadata(), "config": asdict(self.config)}

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> Chain:
        kinds = shared["kinds"]
        order_word, parent_word, salts, values = random_bits(key, EpisodeStream.RESET, kinds)
        level = params["level"].clamp(1, LONGEST)
        tools = torch.maximum(params["num_tools"].clamp(max=KINDS - 1), level)
        # The chain comes first in the drawn order of the kinds; each further tool takes any kind before its own, so
        # that one way alone leads anywhere.
        order = order_word.argsort(-1)
        before = torch.where(kinds <= level, kinds - 1, (parent_word * kinds) >> 32)
        taken = torch.where((kinds > 0) & (kinds <= tools), order.gather(-1, before.clamp(min=0)), -1)
        takes = torch.full_like(kinds, -1).scatter(-1, order, taken)
        start, salt = order[0], salts[0]
        thing = (values[0] * VALUES) >> 32
        truth = thing
        for place in range(1, LONGEST + 1):
            truth = torch.where(level >= place, reply(salt, order[place], truth), truth)
        no = key.episode < 0
        return Chain(
            takes=takes, known=torch.where(kinds == start, thing, -1), start=start, truth=truth, salt=salt, level=level,
            target=order.gather(-1, level.reshape(1)).squeeze(-1), steps=0 * level, answered=no, solved=no, valid=~no,
            effective=no, batch_size=[],
        )  # fmt: skip

    @staticmethod
    def arguments(state: Chain) -> Tensor:
        """Return what is known for the tool of each kind, and for the answer; -1: nothing. Shape: (…, KINDS + 1)."""
        wanted = torch.cat([state.takes, state.target.unsqueeze(-1)], -1)
        return torch.where(wanted >= 0, state.known.gather(-1, wanted.clamp(min=0)), -1)

    def step(self, state: Chain, action: Tensor, params: Tensors, shared: Tensors) -> Chain:
        choice = action[0]
        there = torch.cat([state.takes, state.target.reshape(1)])
        at = choice.clamp(max=ANSWER).reshape(1)
        argument = action[1] if len(action) > 1 else self.arguments(state).gather(-1, at).squeeze(-1)
        valid = (choice <= ANSWER) & (there.gather(-1, at).squeeze(-1) >= 0) & (argument >= 0)
        answers = valid & (choice == ANSWER)
        # The last step is for the answer alone.
        calls = valid & ~answers & (state.steps < self.budget(state))
        told = reply(state.salt, choice, argument)
        known = torch.where((shared["kinds"] == choice) & calls, told, state.known)
        return state.replace(
            known=known,
            steps=state.steps + 1,
            answered=state.answered | answers,
            solved=answers & (argument == state.truth),
            valid=valid,
            effective=answers | (known != state.known).any(-1),
        )

    def budget(self, state: Chain) -> Tensor:
        """Return the calls that an episode allows. Shape: that of the batch, int64."""
        return state.level + self.config.spare_calls

    def observation(self, state: Chain, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        """Return what each tool takes, (KINDS, KINDS), and the rest.

        By kind: the start, the target, what is known, which tools can be called, and the things that are known, from
        above 0 to 1; and the share of the steps that are left.
        """
        kinds, known = shared["kinds"], state.known >= 0
        return (
            (state.takes.unsqueeze(-1) == kinds).float().flatten(),
            (kinds == state.start).float(),
            (kinds == state.target).float(),
            known.float(),
            (self.arguments(state)[:KINDS] >= 0).float(),
            (state.known + 1) / VALUES,
            ((self.budget(state) + 1 - state.steps) / self.most_steps).reshape(1).float(),
        )

    def action_mask(self, observation: Observation) -> Tensor | None:
        """Return which tools there are: one that there is may be called too early. The answer is always allowed."""
        if self.config.action == "call":
            return None
        there = observation[..., : KINDS * KINDS].unflatten(-1, (KINDS, KINDS)).any(-1)
        return torch.cat([there, torch.ones_like(there[..., :1])], -1)

    def reward(self, state: Chain, action: Tensor, next_state: Chain, params: Tensors, shared: Tensors) -> Tensor:
        return next_state.solved.float() - params["call_cost"] * ~next_state.answered

    def terminated(self, state: Chain, params: Tensors, shared: Tensors) -> Tensor:
        return state.answered | (state.steps > self.budget(state))

    def truncated(self, state: Chain, params: Tensors, shared: Tensors) -> Tensor:
        return torch.zeros_like(state.solved)

    def grade(self, state: Chain, params: Tensors, shared: Tensors) -> Tensor:
        return state.solved.float()

    def info(self, state: Chain, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outcomes, and of the last action whether it was valid and had an effect."""
        return {
            "success": state.solved.float(),
            "calls": state.steps - state.answered.long(),
            "calls_needed": state.level,
            "tools_offered": (state.takes >= 0).sum(-1),
            "action_is_valid": state.valid.float(),
            "action_is_effective": state.effective.float(),
        }
