"""Scenario of Countdown: steps, what is seen, reward and grade."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Categorical, MultiCategorical

from vecenv.core.capabilities import Masked, Tensors
from vecenv.core.random import EpisodeKey
from vecenv.core.scenario import Observation, Scenario
from vecenv.curriculum import Levelled
from vecenv.tasks.games.countdown.config import CountdownConfig
from vecenv.tasks.games.countdown.law import (
    DIVIDE,
    Puzzle,
    combined,
    draw,
    is_target,
    move_tables,
    moved,
)


class Countdown(Masked, Levelled, Scenario[Puzzle]):
    """Numbers and a target: make the target of the numbers.

    An action is a move (`vecenv.tasks.games.countdown.law.moves_of`), shape (1,), or the moves of an expression of S
    slots, shape (S - 1,), of which 0 is none.
    """

    def __init__(self, config: CountdownConfig) -> None:
        self.config, self.levels = config, range(2, config.slots + 1)
        self.params = {"level": torch.tensor(config.level), "format_reward": torch.tensor(config.format_reward)}
        self.shared = move_tables(config.slots)
        self.choices = len(self.shared["moves"])
        if config.action == "move":
            self.action_spec = Categorical(self.choices, (1,), dtype=torch.int64)
        else:
            self.action_spec = MultiCategorical([self.choices] * (config.slots - 1), dtype=torch.int64)
        self.longest = config.attempts * (config.slots - 1 if config.action == "move" else 1)

    def metadata(self) -> dict[str, Any]:
        return {**super().metadata(), "config": asdict(self.config)}

    def randomise(self, params: Mapping[str, Tensor], num_envs: int) -> None:
        super().randomise(params, num_envs)
        if bool((self.params["level"] > (slots := self.config.slots)).any()):
            raise ValueError(f"level must be at most slots, {slots}, in every row")

    def level_of(self, state: Puzzle) -> Tensor:
        return (state.given > 0).sum(-1)

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> Puzzle:
        level = params["level"].clamp(2, self.config.slots)
        given, target, proof = draw(key, level, self.config, shared["move_number"])
        zero, no = 0 * key.episode, key.episode < 0
        return Puzzle(
            given=given, target=target, proof=proof, top=given, bottom=torch.ones_like(given), there=given > 0,
            formed=no, solved=no, valid=~no, invalid=zero, steps=zero, batch_size=[],
        )  # fmt: skip

    @staticmethod
    def moves_of_attempt(state: Puzzle) -> Tensor:
        """Return how many moves an attempt has. Shape: (), int64."""
        return (state.given > 0).sum(-1) - 1

    def step(self, state: Puzzle, action: Tensor, params: Tensors, shared: Tensors) -> Puzzle:
        before = numbers = (state.top, state.bottom, state.there)
        valid, value = (action > 0).any(), (torch.zeros_like(state.target), torch.zeros_like(state.target))
        for move in action.unbind(-1):
            numbers, known, made = moved(numbers, move, shared["moves"])
            valid = valid & (known | (move == 0))
            value = (torch.where(known, made[0], value[0]), torch.where(known, made[1], value[1]))
        # Where all numbers are to be used, an expression that leaves some out is none; after a move others may follow.
        whole = (numbers[2].sum() == 1) | (not self.config.use_all)
        single, moves = self.config.action == "move", self.moves_of_attempt(state)
        if not single:
            valid = valid & whole
        solved = valid & whole & is_target(*value, state.target)
        steps = state.steps + 1 if single else (torch.div(state.steps, moves, rounding_mode="floor") + 1) * moves
        over = steps % moves == 0
        top, bottom, there = (torch.where(valid, after, old) for after, old in zip(numbers, before, strict=True))
        again = over & ~solved
        return state.replace(
            top=torch.where(again, state.given, top),
            bottom=torch.where(again, 1, bottom),
            there=torch.where(again, state.given > 0, there),
            formed=state.formed | (valid & whole),
            solved=state.solved | solved,
            valid=valid,
            invalid=state.invalid + ~valid,
            steps=steps,
        )

    def observation(self, state: Puzzle, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        """Return four vectors, which follow one another.

        They are numbers v, as v / (abs(v) + highest target), and which slots have one; the target t and the share of
        moves to go; of each move whether it can be made, 2 where it makes the target; and how far off what it makes
        is, as (v - t) / (abs(v - t) + t), 0 where it cannot be made.
        """
        left, right, operator = shared["moves"].unbind(-1)
        made = combined((state.top[left], state.bottom[left]), (state.top[right], state.bottom[right]), operator)
        can = state.there[left] & state.there[right] & (left != right)
        can = can & ((operator != DIVIDE) | (state.top[right] != 0))
        hit = is_target(*made, state.target)
        if self.config.use_all:
            hit = hit & (state.there.sum() == 2)
        # Where nothing can be done, nothing can.
        can = torch.cat([~can.any(-1, keepdim=True), can[1:]])
        scale = self.config.highest_target
        values, target = ratio(state.top, state.bottom), state.target.float()
        far = ratio(*made) - target
        numbers = torch.where(state.there, values / (values.abs() + scale), 0.0)
        tries = self.config.attempts * self.moves_of_attempt(state)
        return (
            torch.cat([numbers, state.there.float()]),
            torch.stack([target / scale, ((tries - state.steps) / tries).float()]),
            torch.where(can, 1.0 + (hit & can), 0.0),
            torch.where(can, far / ((far + target).abs() + target), 0.0),
        )

    def action_mask(self, observation: Observation) -> Tensor | None:
        if self.config.action == "expression":
            return None
        start = 2 * self.config.slots + 2
        return observation[..., start : start + self.choices] > 0.5

    def reward(self, state: Puzzle, action: Tensor, next_state: Puzzle, params: Tensors, shared: Tensors) -> Tensor:
        """Return by how much the grade rose."""
        return self.grade(next_state, params, shared) - self.grade(state, params, shared)

    def terminated(self, state: Puzzle, params: Tensors, shared: Tensors) -> Tensor:
        return state.solved | (state.steps >= self.config.attempts * self.moves_of_attempt(state))

    def truncated(self, state: Puzzle, params: Tensors, shared: Tensors) -> Tensor:
        return torch.zeros_like(state.solved)

    def grade(self, state: Puzzle, params: Tensors, shared: Tensors) -> Tensor:
        """Return 1 if the target was made, a little if any expression was, else 0."""
        return torch.where(state.solved, 1.0, torch.where(state.formed, params["format_reward"], 0.0))

    def info(self, state: Puzzle, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        """Return whether it is solved, and of the last action whether it was valid and had an effect."""
        return {
            "success": state.solved.float(),
            "formed": state.formed.float(),
            "action_is_valid": state.valid.float(),
            "action_is_effective": (state.valid & (state.steps > 0)).float(),
            "invalid_actions": state.invalid,
            "level": self.level_of(state),
            "target": state.target,
        }


def ratio(top: Tensor, bottom: Tensor) -> Tensor:
    """Return numbers as float32, 0 for a quotient by zero. Shape: any."""
    return torch.where(bottom != 0, top / torch.where(bottom != 0, bottom, 1), 0.0).float()
