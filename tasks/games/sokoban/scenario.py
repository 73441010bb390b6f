"""Sokoban as a scenario: boards drawn from those that were made or read, the law, rewards and observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.core.capabilities import Masked
from vecenv.core.random import EpisodeKey, EpisodeStream, randint
from vecenv.core.scenario import Observation
from vecenv.curriculum import Levelled
from vecenv.tasks.games.grid import NO_MOVE, GridGame, is_valid, moves_spec
from vecenv.tasks.games.sokoban.boards import Boards, made_boards
from vecenv.tasks.games.sokoban.config import SokobanConfig
from vecenv.tasks.games.sokoban.law import Bits, both, count, outside, some
from vecenv.tasks.games.sokoban.levels import read_boards

STEP, ON_TARGET, SOLVED = -0.1, 1.0, 10.0
"""Rewards of a move, of a box that comes onto a target (minus it of one that leaves), and of the solution."""


class SokobanState(TensorClass):
    """One episode. The sets of cells have shape (K,), int64, all others ().

    ``ground`` are the cells that are no walls; ``board`` is the number of the board; ``steps`` counts moves;
    ``effective`` and ``valid`` are of the last step.
    """

    ground: Tensor
    targets: Tensor
    boxes: Tensor
    player: Tensor
    board: Tensor
    steps: Tensor
    effective: Tensor
    valid: Tensor


class Sokoban(Masked, Levelled, GridGame[SokobanState]):
    """The rules of ``rules.md``.

    Args:
        config: of boards and rules.
        words: of a set of cells; by default as few as hold it.
    """

    level_parameter = "num_boxes"
    words = ("Up", "Down", "Left", "Right")
    symbols = "#_O√XPS"
    kinds = ("wall", "floor", "target", "box on target", "box", "player", "player on target")
    colours = (
        (64, 68, 80), (238, 234, 222), (232, 160, 160), (70, 150, 90), (176, 120, 60), (50, 100, 200), (140, 90, 200),
    )  # fmt: skip

    def __init__(self, config: SokobanConfig, words: int | None = None) -> None:
        self.config, self.longest = config, config.max_steps
        self.boards: Boards = made_boards(config, words) if config.levels is None else read_boards(config, words)
        self.files = () if config.levels is None else (str(config.levels),)
        self.levels = range(1, self.boards.num_boxes + 1)
        self.grid = grid = self.boards.grid
        inner = [row * grid.width + cell for row in range(1, grid.height - 1) for cell in range(1, grid.width - 1)]
        self.shared = {
            "boards": self.boards.words,
            "first": self.boards.first,
            "within": self.boards.within.flatten(),
            "places": torch.tensor([grid.place(cell) for cell in inner]),
        }
        self.params = {"num_boxes": torch.tensor(config.num_boxes), "max_pulls": torch.tensor(config.max_pulls)}
        self.answer_moves = config.answer_moves
        self.action_spec = moves_spec(config.answer_moves)

    def randomise(self, params: Mapping[str, Tensor], num_envs: int) -> None:
        super().randomise(params, num_envs)
        if self.config.levels is None and bool((self.params["num_boxes"] > (most := self.config.num_boxes)).any()):
            raise ValueError(f"num_boxes must be at most the setting, {most}, in every row")

    def level_of(self, state: SokobanState) -> Tensor:
        return count(state.boxes.unbind(-1))

    def success_scores(self, score_by: str) -> Sequence[float]:
        # All boxes on targets: the grade is their share.
        return [1.0 - 0.5 / boxes for boxes in self.levels]

    def reset(self, key: EpisodeKey, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> SokobanState:
        levels, most = self.boards.within.shape
        level = params["num_boxes"].clamp(1, levels) - 1
        place = level * most + params["max_pulls"].clamp(0, most - 1)
        # Where no board has so few pulls, the one with the fewest.
        among = shared["within"].index_select(0, place.reshape(1)).clamp(min=1)
        board = shared["first"].index_select(0, level.reshape(1)) + randint(key, EpisodeStream.RESET, among)
        floor, targets, boxes, player = shared["boards"].index_select(0, board).reshape(4, -1)
        zero = (0 * key.episode).to(torch.int32)
        return SokobanState(
            ground=floor, targets=targets, boxes=boxes, player=player,
            board=board.squeeze(0), steps=zero, effective=zero > 0, valid=zero == 0, batch_size=[],
        )  # fmt: skip

    def step(
        self, state: SokobanState, action: Tensor, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> SokobanState:
        floor, targets, boxes, player = _sets(state)
        steps, effective = state.steps, torch.zeros_like(state.effective)
        for number in range(len(action)):
            direction = torch.where(action[number] == NO_MOVE, 0, action[number] + 1)
            # The first counts as a move even if it is none.
            taken = torch.ones_like(effective)
            if number:
                taken = some(outside(boxes, targets)) & (steps < self.config.max_steps) & (direction > 0)
                direction = torch.where(taken, direction, 0)
            boxes, player, moved = self.grid.moved(floor, boxes, player, direction)
            steps, effective = steps + taken, effective | moved
        return state.replace(
            boxes=torch.stack(boxes),
            player=torch.stack(player),
            steps=steps,
            effective=effective,
            valid=is_valid(action) if self.answer_moves else state.valid,
        )

    def observation(
        self, state: SokobanState, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        floor, _, boxes, player = _sets(state)
        moves = [
            self.grid.moved(floor, boxes, player, torch.full_like(state.board, direction))[2]
            for direction in range(1, 5)
        ]
        # Where nothing can be moved, every move is as good.
        mask = torch.stack(moves)
        mask = mask | ~mask.any()
        sets = torch.stack([state.ground, state.targets, state.boxes, state.player])
        if self.config.observation == "bits":
            return {"bits": sets.flatten(), "mask": mask}
        word, bit = shared["places"].unbind(-1)
        words = sets[:, :1] if self.grid.words == 1 else sets.index_select(1, word)
        planes = (words >> bit & 1).bool()
        return {"planes": planes.reshape(4, self.grid.height - 2, self.grid.width - 2), "mask": mask}

    def action_mask(self, observation: Observation) -> Tensor | None:
        return None if self.answer_moves else observation["mask"]

    def reward(
        self,
        state: SokobanState,
        action: Tensor,
        next_state: SokobanState,
        params: Mapping[str, Tensor],
        shared: Mapping[str, Tensor],
    ) -> Tensor:
        _, targets, before, _ = _sets(state)
        after = _sets(next_state)[2]
        if self.answer_moves <= 1:
            # At most one box has been pushed.
            now, earlier = both(after, targets), both(before, targets)
            gained, lost = outside(now, earlier), outside(earlier, now)
            on = some(gained).int() - some(lost).int()
        else:
            on = count(both(after, targets)) - count(both(before, targets))
        moves, solved = next_state.steps - state.steps, self.solved(next_state)
        if self.config.end_on_deadlock:
            # As much as if the episode went on: it must not pay to end it.
            dead = self.deadlocked(next_state) & ~solved
            moves = moves + (self.config.max_steps - next_state.steps) * dead
        return STEP * moves + ON_TARGET * on + SOLVED * solved

    def solved(self, state: SokobanState) -> Tensor:
        """Return whether all boxes are on targets. Shape: that of the batch, bool."""
        _, targets, boxes, _ = _sets(state)
        return ~some(outside(boxes, targets))

    def deadlocked(self, state: SokobanState) -> Tensor:
        """Return whether a box that can never be moved again is on no target. Shape: that of the batch, bool."""
        floor, targets, boxes, _ = _sets(state)
        return some(outside(self.grid.frozen(floor, boxes, self.boards.num_boxes), targets))

    def terminated(self, state: SokobanState, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        solved = self.solved(state)
        return solved | self.deadlocked(state) if self.config.end_on_deadlock else solved

    def truncated(self, state: SokobanState, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        return state.steps >= self.config.max_steps

    def grade(self, state: SokobanState, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        _, targets, boxes, _ = _sets(state)
        return count(both(boxes, targets)) / count(boxes)

    def info(
        self, state: SokobanState, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        _, targets, boxes, _ = _sets(state)
        return {
            "success": self.solved(state).float(),
            "boxes_on_target": count(both(boxes, targets)),
            "deadlock": self.deadlocked(state).float(),
            "action_is_effective": state.effective.float(),
            "action_is_valid": state.valid.float(),
        }

    def metadata(self) -> dict[str, Any]:
        config = asdict(self.config)
        return super().metadata() | {"config": config | {"levels": config["levels"] and str(config["levels"])}}

    def cells(self, cells: Tensor) -> Tensor:
        """Return sets as boards of truth values. Shapes: (..., K) -> (..., H, W)."""
        height, width = self.grid.height, self.grid.width
        word, bit = torch.tensor([self.grid.place(cell) for cell in range(height * width)], device=cells.device).T
        return (cells[..., word] >> bit & 1 == 1).unflatten(-1, (height, width))

    def board(self, state: SokobanState) -> Tensor:
        floor, targets, boxes, player = map(self.cells, (state.ground, state.targets, state.boxes, state.player))
        kinds = torch.where(targets, 2, floor.long())
        kinds = torch.where(boxes, torch.where(targets, 3, 4), kinds)
        return torch.where(player, torch.where(targets, 6, 5), kinds)

    def told(self, state: SokobanState) -> list[str]:
        _, targets, boxes, _ = _sets(state)
        counts = zip(count(both(boxes, targets)).tolist(), count(boxes).tolist(), strict=True)
        return [f"Boxes on targets: {on} of {boxes}" for on, boxes in counts]

    def goal(self, state: SokobanState) -> list[str]:
        told = (
            "You are P, and S on a target. # is wall, _ floor, O a target, X a box and √ a box on a target. Push all "
            "boxes onto targets: you push a box by walking into it, if the cell behind it is free; two boxes cannot be "
            f"pushed, and none can be pulled. A move costs {-STEP:g}; a box that comes onto a target earns "
            f"{ON_TARGET:g}, one that leaves it costs as much, and the solution earns {SOLVED:g}. There are "
            f"{self.config.max_steps} moves."
        )
        return [told] * len(state)


def _sets(state: SokobanState) -> tuple[Bits, Bits, Bits, Bits]:
    """Return floor, targets, boxes and player, the words one by one."""
    floor, targets, boxes, player = (
        tuple(words.unbind(-1)) for words in (state.ground, state.targets, state.boxes, state.player)
    )
    return floor, targets, boxes, player
