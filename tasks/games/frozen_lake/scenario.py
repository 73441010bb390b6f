"""Scenario of FrozenLake, on lakes that are bits: a new one each episode, or always the same.

`rules.md` beside this file is the specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.core.capabilities import Drawing
from vecenv.core.random import EpisodeKey, uniform
from vecenv.tasks.games.frozen_lake.config import FrozenLakeConfig
from vecenv.tasks.games.frozen_lake.law import drawn_lake, has, read_lake, slid, spread, went
from vecenv.tasks.games.grid import (
    EFFECTIVE,
    MOVE,
    VALID,
    Clocked,
    GridGame,
    colour_table,
    is_valid,
    moved,
    moves_spec,
    picture,
)

Tensors = Mapping[str, Tensor]


class Lake(Clocked, TensorClass):
    """State: the lake as `Drawn` has it, where the player is, and what came of the last step. Shape of each: ().

    Holes are int64, the cells of goal and player int32.
    """

    holes: Tensor
    goal: Tensor
    place: Tensor
    slip: Tensor
    leaning: Tensor
    clock: Tensor


def _chance(key: EpisodeKey, number: int) -> Tensor:
    """Draw a number in [0, 1) for a move of a step: the words of its key are random, and serve for the first ones."""
    return (key[number] >> 8).to(torch.float32) * 2.0**-24 if number < len(key) else uniform(key, 0, number)


class FrozenLake(GridGame[Lake], Drawing[Lake]):
    """Scenario of FrozenLake."""

    name = "frozen_lake"
    version = "1"
    words = ("Left", "Down", "Right", "Up")
    symbols = "_POGX√"
    kinds = ("ice", "player", "hole", "goal", "player in a hole", "player on the goal")
    colours = ((222, 238, 246), (213, 94, 0), (23, 50, 77), (0, 158, 115), (120, 30, 30), (240, 200, 60))
    off_scale = MappingProxyType({"reward": "a goal is seldom reached by chance on large lakes"})

    def __init__(self, config: FrozenLakeConfig | None = None) -> None:
        self.config = config = config or FrozenLakeConfig()
        self.fixed = read_lake(config.lake) if config.lake else None
        self.side = self.fixed[3] if self.fixed else config.size
        self.longest, self.answer_moves = config.max_steps, config.answer_moves
        self.action_spec = moves_spec(config.answer_moves)
        self.params = {name: torch.tensor(getattr(config, name)) for name in ("density", "slip", "leaning")}
        self.shared = {"colours": colour_table(self)}

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> Lake:
        zero = torch.zeros_like(key.episode)
        if self.fixed:
            holes, place, goal = (zero + number for number in self.fixed[:3])
        else:
            holes, place, goal = drawn_lake(key, params["density"], self.side, self.config.random_ends)
        slip, leaning = (params[name] + 0.0 * zero for name in ("slip", "leaning"))
        place, goal = place.to(torch.int32), goal.to(torch.int32)
        return Lake(
            holes=holes, goal=goal, place=place, slip=slip, leaning=leaning, clock=0 * place + VALID, batch_size=[]
        )

    def drawn_step(self, state: Lake, action: Tensor, key: EpisodeKey, params: Tensors, shared: Tensors) -> Lake:
        def move(state: Lake, chosen: Tensor, number: int) -> Lake:
            direction = slid(chosen, state.slip, state.leaning, _chance(key, number))
            return state.replace(place=went(state.place, direction, self.side), clock=state.clock + MOVE)

        start = state.replace(clock=MOVE * state.steps)
        after = moved(start, action.to(torch.int32), move, self._over)
        told = EFFECTIVE * (after.place != state.place).to(torch.int32)
        if self.answer_moves:
            # The time of a move, where there is none.
            told = told + torch.where(is_valid(action), VALID, MOVE)
        else:
            told = told + VALID
        return after.replace(clock=(after.clock + told).to(torch.int32))

    def _over(self, state: Lake) -> Tensor:
        return self._ended(state) | (state.steps >= self.config.max_steps)

    def _ended(self, state: Lake) -> Tensor:
        return (state.place == state.goal) | has(state.holes, state.place)

    def observation(self, state: Lake, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        numbers = torch.stack([state.slip, state.leaning, state.steps / self.config.max_steps], -1)
        kind = self.config.observation
        if kind == "pixels":
            return {"picture": picture(self.board(state), shared["colours"]), "numbers": numbers}
        if kind == "bits":
            # Each a block of its own: compiled code does not vectorise what is put together.
            told = {"place": state.place.to(torch.uint8), "goal": state.goal.to(torch.uint8)}
            share = state.steps / self.config.max_steps
            told |= {"slip": state.slip, "leaning": state.leaning, "time": share}
            holes = state.holes.reshape(1).view(torch.uint8)[: self.side]
            return {"holes": holes} | {name: value.unsqueeze(-1) for name, value in told.items()}
        if kind == "around":
            line = torch.arange(1 - self.side, self.side, device=state.holes.device)
            row, column = (state.place >> 3) + line.unsqueeze(-1), (state.place & 7) + line
            inside = ((row >= 0) & (row < self.side)) & ((column >= 0) & (column < self.side))
            cells = (8 * row + column) & 63
            planes = torch.stack([inside & (cells == state.goal), inside & has(state.holes, cells), ~inside])
            return {"board": planes.flatten(-3), "numbers": numbers}
        line = torch.arange(self.side, device=state.holes.device)
        cells = 8 * line.unsqueeze(-1) + line
        planes = torch.stack([cells == state.place, cells == state.goal, has(state.holes, cells)])
        return {"board": planes if kind == "planes" else planes.flatten(-3), "numbers": numbers}

    def reward(self, state: Lake, action: Tensor, next_state: Lake, params: Tensors, shared: Tensors) -> Tensor:
        reached = (next_state.place == next_state.goal).to(torch.float32)
        return reached - torch.where(next_state.valid, 0.0, self.config.format_penalty)

    def terminated(self, state: Lake, params: Tensors, shared: Tensors) -> Tensor:
        return self._ended(state)

    def truncated(self, state: Lake, params: Tensors, shared: Tensors) -> Tensor:
        return state.steps >= self.config.max_steps

    def grade(self, state: Lake, params: Tensors, shared: Tensors) -> Tensor:
        return (state.place == state.goal).to(torch.float32)

    def info(self, state: Lake, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        return {
            "success": state.place == state.goal,
            "drowned": has(state.holes, state.place),
            "moves": state.steps,
            "action_is_valid": state.valid,
            "action_is_effective": state.effective,
        }

    def board(self, state: Lake) -> Tensor:
        line = torch.arange(self.side, device=state.holes.device)
        cells = 8 * line.unsqueeze(-1) + line
        player = cells == state.place[..., None, None]
        kinds = 2 * spread(state.holes, self.side) + 3 * (cells == state.goal[..., None, None])
        return torch.where(player, torch.where(kinds == 0, 1, kinds + 2), kinds)

    def told(self, state: Lake) -> list[str]:
        return [f"Moves left: {self.config.max_steps - steps}" for steps in state.steps.tolist()]

    def goal(self, state: Lake) -> list[str]:
        board = (
            "You are P on a frozen lake. Walk to the goal G; a hole O ends the game. _ is ice, X is you in a hole, √ "
            "is you on the goal. At an edge you stay where you are."
        )
        told = []
        for slip, leaning in zip(state.slip.tolist(), state.leaning.tolist(), strict=True):
            sides = f"{slip * leaning:.0%} of the moves go to the left of where they should, {slip * (1 - leaning):.0%}"
            ice = f"The ice is slippery: {sides} to the right." if slip else "The ice is not slippery."
            told.append(f"{board} {ice} Reaching the goal earns 1.")
        return told
