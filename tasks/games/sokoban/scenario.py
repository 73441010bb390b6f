"""Sokoban as a scenario: boards drawn from those that were made or read, the law, rewards and observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.core.capabilities import Masked
from vecenv.core.random import EpisodeKey
from vecenv.core.scenario import Observation
from vecenv.curriculum import Levelled
from vecenv.tasks.games.grid import MOVE, NO_MOVE, VALID, Clocked, GridGame, is_valid, moves_spec
from vecenv.tasks.games.sokoban.boards import Boards, made_boards
from vecenv.tasks.games.sokoban.config import SokobanConfig
from vecenv.tasks.games.sokoban.law import Bits, Grid, both, count, outside, some
from vecenv.tasks.games.sokoban.levels import read_boards

STEP, SOLVED = -0.1, 10.0
"""Rewards of a move, and of the solution."""

SHORT_DRAWS = 2**15
"""Most boards among which one is drawn in int32."""

_MURMUR = (0x85EBCA6B - (1 << 32), 0xC2B2AE35 - (1 << 32))
_PRIMES = (0x85EBCA77 - (1 << 32), 0xC2B2AE3D - (1 << 32))
"""Two of xxHash (Collet), far from multiples of each other."""
_WEYL = 0x9E3779B9 - (1 << 32)


class SokobanState(Clocked, TensorClass):
    """One episode. The sets of cells have shape (K,), of the grid's type, all others ().

    ``ground`` are the cells that are no walls; ``board`` is the number of the board, int32.
    """

    ground: Tensor
    targets: Tensor
    boxes: Tensor
    player: Tensor
    board: Tensor
    clock: Tensor


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
        self._many = int(self.boards.within.max()) > SHORT_DRAWS
        self.files = () if config.levels is None else (str(config.levels),)
        self.levels = range(1, self.boards.num_boxes + 1)
        self.grid = grid = self.boards.grid
        around = {"around": _around(grid)} if config.observation == "around" else {}
        self.shared = around | {
            "boards": self.boards.words,
            "first": self.boards.first,
            "within": self.boards.within.flatten(),
            "places": torch.tensor([grid.place(cell) for cell in grid.inner]),
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
        drawn = drawn_number(key, among, self._many)
        board = shared["first"].index_select(0, level.reshape(1)).to(drawn.dtype) + drawn
        floor, targets, boxes, player = shared["boards"].index_select(0, board).reshape(4, -1)
        zero = torch.zeros_like(key.episode, dtype=torch.int32)
        return SokobanState(
            ground=floor, targets=targets, boxes=boxes, player=player,
            board=board.squeeze(0).to(torch.int32), clock=zero + VALID, batch_size=[],
        )  # fmt: skip

    def step(
        self, state: SokobanState, action: Tensor, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> SokobanState:
        floor, targets, boxes, player = _sets(state)
        steps, effective = state.steps, torch.zeros_like(state.steps)
        for number in range(len(action)):
            direction = action[number].to(self.grid.dtype) + 1
            if self.answer_moves:
                direction = torch.where(direction > NO_MOVE, 0, direction)
            # The first counts as a move even if it is none.
            taken = torch.ones_like(steps)
            if number:
                going = some(outside(boxes, targets)) & (steps < self.config.max_steps) & (direction > 0)
                direction, taken = torch.where(going, direction, 0), going.int()
            boxes, player, moved = self.grid.moved(floor, boxes, player, direction)
            steps, effective = steps + taken, effective | moved.int()
        return state.replace(
            boxes=torch.stack(boxes),
            player=torch.stack(player),
            clock=MOVE * steps + effective + VALID * (is_valid(action).int() if self.answer_moves else 1),
        )

    def observation(
        self, state: SokobanState, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        floor, _, boxes, player = _sets(state)
        # Where nothing can be moved, every move is as good.
        mask = torch.stack(self.grid.possible(floor, boxes, player))
        mask = mask | ~mask.any()
        sets = torch.stack([state.ground, state.targets, state.boxes, state.player])
        if self.config.observation == "bits":
            return {"bits": sets.flatten(), "mask": mask}
        if self.config.observation == "around":
            return {"around": self._around(sets, shared), "mask": mask}
        word, bit = shared["places"].unbind(-1)
        words = sets[:, :1] if self.grid.words == 1 else sets.index_select(1, word)
        planes = (words >> bit & 1).bool()
        return {"planes": planes.reshape(4, self.grid.height - 2, self.grid.width - 2), "mask": mask}

    def _around(self, sets: Tensor, shared: Mapping[str, Tensor]) -> Tensor:
        """Return floor, targets and boxes of the cells around the player, in a row. Shape of the sets: (4, K)."""
        at = self.grid.bit_of(sets[3].unbind(-1))
        bits = shared["around"].index_select(0, at.reshape(1)).squeeze(0)
        if self.grid.words == 1:
            return (sets[:3] >> bits & 1).bool().flatten()
        words = sets[:3].index_select(1, bits // self.grid.size)
        return (words >> bits % self.grid.size & 1).bool().flatten()

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
        return STEP * moves + self.config.box_reward * on + SOLVED * solved

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
        word, bit = torch.tensor([self.grid.place(cell) for cell in self.grid.inner], device=cells.device).T
        inner = (cells[..., word] >> bit & 1 == 1).unflatten(-1, (self.grid.height - 2, self.grid.width - 2))
        return torch.nn.functional.pad(inner, (1, 1, 1, 1))

    def board(self, state: SokobanState) -> Tensor:
        floor, targets, boxes, player = map(self.cells, (state.ground, state.targets, state.boxes, state.player))
        kinds = torch.where(targets, 2, floor.long())
        kinds = torch.where(boxes, torch.where(targets, 3, 4), kinds)
        return torch.where(player, torch.where(targets, 6, 5), kinds)

    def told(self, state: SokobanState) -> list[str]:
        _, targets, boxes, _ = _sets(state)
        # Not the moves left, which no observation has: the time is a limit of episodes, not a rule of the game.
        counts = zip(count(both(boxes, targets)).tolist(), count(boxes).tolist(), strict=True)
        return [f"Boxes on targets: {on} of {boxes}" for on, boxes in counts]

    def goal(self, state: SokobanState) -> list[str]:
        boxes = (
            f"a box that comes onto a target earns {self.config.box_reward:g}, one that leaves it costs as much, and "
            if self.config.box_reward
            else ""
        )
        told = (
            "You are P, and S on a target. # is wall, _ floor, O a target, X a box and √ a box on a target. Push all "
            "boxes onto targets: you push a box by walking into it, if the cell behind it is free; two boxes cannot be "
            f"pushed, and none can be pulled. A move costs {-STEP:g}; {boxes}the solution earns "
            f"{SOLVED:g}. There are {self.config.max_steps} moves."
        )
        return [told] * len(state)


def _around(grid: Grid) -> Tensor:
    """Return the bits of the cells around that of each bit, that of a wall for those outside.

    Shape: ((H - 2) (W - 1), (2 H - 5) (2 W - 5)), int64.
    """
    down, along = torch.arange(3 - grid.height, grid.height - 2), torch.arange(3 - grid.width, grid.width - 2)
    bits, wall = torch.arange((grid.height - 2) * grid.stride)[:, None, None], grid.stride - 1
    row, column = bits // grid.stride + down[:, None], bits % grid.stride + along
    inside = (row >= 0) & (row < grid.height - 2) & (column >= 0) & (column < wall)
    return torch.where(inside, row * grid.stride + column, wall).flatten(1)


def drawn_number(key: EpisodeKey, among: Tensor, wide: bool = True) -> Tensor:
    """Return a whole number below ``among``, at most 2^31, by the key alone. Shapes: (1,) -> (1,), int64.

    Where it is at most 2^15 and not ``wide``, the same number is computed in int32.

    The words of the seed, then those of row and episode together, are mixed by the finaliser of MurmurHash3 (Appleby),
    a bijection of 32 bits. Starts are drawn for every row at every step, and ten rounds of Philox took half of one.
    """
    seed_low, seed_high, env_id, episode = (word.to(torch.int32) for word in key)
    mixed = torch.zeros_like(episode)
    for word in (seed_low, seed_high, env_id * _PRIMES[0] + episode * _PRIMES[1]):
        mixed = mixed + _WEYL ^ word
        for shift, factor in ((16, _MURMUR[0]), (13, _MURMUR[1]), (16, 1)):
            # The sign is shifted in, and masked away.
            mixed = (mixed ^ mixed >> shift & (1 << 32 - shift) - 1) * factor
    if wide:
        return (mixed.long() & 0xFFFFFFFF) * among >> 32
    # The upper half of the product, by halves of the word.
    among = among.to(torch.int32)
    return (mixed >> 16 & 0xFFFF) * among + ((mixed & 0xFFFF) * among >> 16) >> 16


def _sets(state: SokobanState) -> tuple[Bits, Bits, Bits, Bits]:
    """Return floor, targets, boxes and player, the words one by one."""
    floor, targets, boxes, player = (
        tuple(words.unbind(-1)) for words in (state.ground, state.targets, state.boxes, state.player)
    )
    return floor, targets, boxes, player
