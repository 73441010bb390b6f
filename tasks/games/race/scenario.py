"""Scenario of a car on a track, which is paid in one of four ways.

`rules.md` beside this file is the specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.core.random import EpisodeKey, randint
from vecenv.tasks.games.grid import GridGame, is_valid, moved, moves_spec
from vecenv.tasks.games.race.config import RaceConfig

Tensors = Mapping[str, Tensor]

TRACK = ("____O____", "__O____O_", "____O___F")
"""The track: road, oil and finish."""

MOVE, AVOID, FINISH = 0.1, 0.5, 1.0
"""What hints pay: for a move, for a move to a cell beside oil, and for the finish."""

START = 3
"""Stream of the first cell."""

STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Car(TensorClass):
    """State: the cell, moves so far, invalid answers so far, what has been paid in all and in the last step."""

    cell: Tensor
    steps: Tensor
    invalid: Tensor
    paid: Tensor
    earned: Tensor
    valid: Tensor
    effective: Tensor


class Track:
    """A track as tables of its cells, row by row; the tables of a move have 4 entries a cell."""

    def __init__(self, rows: tuple[str, ...] = TRACK) -> None:
        self.height, self.width = len(rows), len(rows[0])
        self.cells = "".join(rows)
        self.after = [self._after(cell, step) for cell in range(len(self.cells)) for step in STEPS]
        self.finish, self.roads = self.cells.index("F"), [at for at, kind in enumerate(self.cells) if kind == "_"]
        self.distance = self._distances()

    def _after(self, cell: int, step: tuple[int, int]) -> int:
        row, column = cell // self.width + step[0], cell % self.width + step[1]
        inside = 0 <= row < self.height and 0 <= column < self.width
        return row * self.width + column if inside else cell

    def _distances(self) -> list[int]:
        """Return the least number of moves from each cell to the finish, around the oil."""
        known = {self.finish: 0}
        for cell in (ahead := [self.finish]):
            for near in self.after[4 * cell : 4 * cell + 4]:
                if near not in known and self.cells[near] != "O":
                    known[near] = known[cell] + 1
                    ahead.append(near)
        return [known.get(cell, 0) for cell in range(len(self.cells))]

    def beside_oil(self, cell: int) -> bool:
        return any(self.cells[near] == "O" for near in self.after[4 * cell : 4 * cell + 4])

    def potential(self, cell: int) -> float:
        """Return what the hints pay for being in a cell: for moves saved and oil passed; 0 at the end of an episode."""
        if self.cells[cell] in "OF":
            return 0.0
        passed = sum(kind == "O" and place % self.width < cell % self.width for place, kind in enumerate(self.cells))
        return MOVE * (max(self.distance) - self.distance[cell]) + AVOID * passed

    def gains(self, paid: str, discount: float) -> list[float]:
        """Return what each move from each cell pays, if the gate is open."""
        return [self._gain(paid, discount, place // 4, after) for place, after in enumerate(self.after)]

    def _gain(self, paid: str, discount: float, cell: int, after: int) -> float:
        gain = FINISH * (self.cells[after] == "F")
        if paid == "partial" and after != cell and self.cells[after] != "O":
            gain += MOVE + AVOID * self.beside_oil(after)
        if paid == "potential":
            gain += discount * self.potential(after) - self.potential(cell)
        return gain


class Race(GridGame[Car]):
    """Scenario of the race."""

    name = "race"
    version = "1"
    words = ("Up", "Down", "Left", "Right")
    symbols = "_POFX√"
    kinds = ("road", "car", "oil", "finish", "car in oil", "car at the finish")
    colours = ((225, 225, 225), (213, 94, 0), (40, 40, 40), (0, 158, 115), (120, 30, 30), (240, 200, 60))
    off_scale = MappingProxyType({"reward": "the finish is seldom reached by chance"})

    def __init__(self, config: RaceConfig | None = None) -> None:
        self.config = config = config or RaceConfig()
        self.track = track = Track()
        self.longest, self.answer_moves = config.max_steps, config.answer_moves
        self.action_spec = moves_spec(config.answer_moves)
        # A potential is paid by answer, not by move.
        self.params, shaped = {}, config.paid == "potential"
        gains = track.gains("strict" if shaped else config.paid, config.discount)
        self.shared = {
            "roads": torch.tensor(track.roads),
            "after": torch.tensor(track.after),
            "gain": torch.tensor(gains, dtype=torch.float32),
            "potential": torch.tensor([shaped * track.potential(cell) for cell in range(len(track.cells))]),
        }

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> Car:
        zero, none = 0 * key.episode, key.episode < 0
        paid = zero.to(torch.float32)
        return Car(
            cell=shared["roads"][randint(key, START, len(self.track.roads))],
            steps=zero,
            invalid=zero,
            paid=paid,
            earned=paid,
            valid=~none,
            effective=none,
            batch_size=[],
        )

    def step(self, state: Car, action: Tensor, params: Tensors, shared: Tensors) -> Car:
        valid = is_valid(action)
        wrong = state.invalid + torch.where(valid, 0, 1)
        shut = (wrong > 0) & (self.config.paid == "gate")

        def move(state: Car, chosen: Tensor, number: int) -> Car:
            place = 4 * state.cell + chosen
            gain = torch.where(shut, 0.0, shared["gain"][place])
            return state.replace(cell=shared["after"][place], steps=state.steps + 1, earned=state.earned + gain)

        before = state.replace(earned=0 * state.earned, invalid=wrong, valid=valid)
        after = moved(before, action, move, self._over)
        steps = after.steps + torch.where(valid, 0, 1)
        # Where the time is over the potential is 0: else it would pay to stop before the finish.
        height = torch.where(steps >= self.config.max_steps, 0.0, shared["potential"][after.cell])
        earned = after.earned + self.config.discount * height - shared["potential"][state.cell]
        return after.replace(steps=steps, effective=after.cell != state.cell, earned=earned, paid=state.paid + earned)

    def _over(self, state: Car) -> Tensor:
        return self._ended(state) | (state.steps >= self.config.max_steps)

    def _ended(self, state: Car) -> Tensor:
        return (state.cell == self.track.finish) | self._crashed(state.cell)

    def _crashed(self, cell: Tensor) -> Tensor:
        crashed = cell < 0
        for place, kind in enumerate(self.track.cells):
            if kind == "O":
                crashed = crashed | (cell == place)
        return crashed

    def observation(self, state: Car, params: Tensors, shared: Tensors) -> tuple[Tensor, Tensor]:
        cells = torch.arange(len(self.track.cells), device=state.cell.device)
        wrong = (state.invalid > 0) & (self.config.paid == "gate")
        numbers = torch.stack([state.steps / self.config.max_steps, wrong.to(torch.float32)])
        return (cells == state.cell).to(torch.float32), numbers

    def reward(self, state: Car, action: Tensor, next_state: Car, params: Tensors, shared: Tensors) -> Tensor:
        return next_state.earned

    def terminated(self, state: Car, params: Tensors, shared: Tensors) -> Tensor:
        return self._over(state)

    def truncated(self, state: Car, params: Tensors, shared: Tensors) -> Tensor:
        return state.cell < 0

    def grade(self, state: Car, params: Tensors, shared: Tensors) -> Tensor:
        return (state.cell == self.track.finish).to(torch.float32)

    def info(self, state: Car, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        return {
            "success": state.cell == self.track.finish,
            "paid": state.paid,
            "moves": state.steps,
            "invalid": state.invalid,
            "action_is_valid": state.valid,
            "action_is_effective": state.effective,
        }

    def board(self, state: Car) -> Tensor:
        kinds = torch.tensor(["_-OF".index(kind) for kind in self.track.cells])
        kinds = kinds.to(state.cell.device).expand(*state.cell.shape, -1)
        player = torch.arange(kinds.shape[-1], device=kinds.device) == state.cell.unsqueeze(-1)
        shown = torch.where(player, torch.where(kinds == 0, 1, kinds + 2), kinds)
        return shown.unflatten(-1, (self.track.height, self.track.width))

    def told(self, state: Car) -> list[str]:
        return [f"Moves left: {self.config.max_steps - steps}" for steps in state.steps.tolist()]

    def goal(self, state: Car) -> list[str]:
        paid = {
            "strict": "The finish earns 1.",
            "partial": f"A move earns {MOVE}, one to a cell beside oil {AVOID} more, the finish 1.",
            "potential": "The finish earns 1; what leads to it is paid ahead, and taken back where you turn.",
            "gate": "The finish earns 1 if all your answers are valid.",
        }[self.config.paid]
        text = "You are the car P. Drive to the finish F; oil O ends the race. _ is road; at an edge you stay. " + paid
        return [text] * len(state.steps)
