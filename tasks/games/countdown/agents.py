"""Baselines of Countdown, which choose moves; where an action is an expression, all of one at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.learn.evaluation import Agent
from vecenv.tasks.games.countdown.law import ADD, combined, is_target, move_tables, moved
from vecenv.tasks.games.countdown.scenario import Countdown, ratio
from vecenv.tasks.games.countdown.search import Tree, solution

Numbers = tuple[Tensor, Tensor, Tensor]
"""Numerators, denominators and slots in use. Shape of each: (N, S)."""

PUZZLES = 256
"""Puzzles that a blind rule is fitted to."""


def scenario_of(env: VecEnv) -> Countdown:
    """Return the scenario of an environment of the task."""
    assert isinstance(env.scenario, Countdown)
    return env.scenario


class Mover(ABC):
    """Chooses moves one after the other, until the target is made or one number is left."""

    @abstractmethod
    def move(self, env: VecEnv, numbers: Numbers, made: int) -> Tensor:
        """Return the next move of each row, after so many of the same action. Shape: (N,), int64."""

    def act(self, env: VecEnv) -> Tensor:
        scenario, state = scenario_of(env), env.state
        numbers: Numbers = (state.top, state.bottom, state.there)
        if scenario.config.action == "move":
            return self.move(env, numbers, 0).unsqueeze(-1)
        chosen, solved = [], torch.zeros_like(state.solved)
        for made in range(scenario.config.slots - 1):
            move = torch.where(solved, 0, self.move(env, numbers, made))
            numbers, hit = after(scenario, numbers, move, state.target)
            solved = solved | hit
            chosen.append(move)
        return torch.stack(chosen, -1)


def after(scenario: Countdown, numbers: Numbers, move: Tensor, target: Tensor) -> tuple[Numbers, Tensor]:
    """Return the numbers of N rows after a move of each, and whether it made the target. Shape of moves: (N,)."""
    numbers, known, value = torch.vmap(moved, (0, 0, None))(numbers, move, scenario.shared["moves"])
    whole = (numbers[2].sum(-1) == 1) | (not scenario.config.use_all)
    return numbers, known & is_target(*value, target) & whole


def made_of(env: VecEnv, numbers: Numbers) -> Tensor:
    """Return how many moves of the attempt of each row are made. Shape: (N,), int64."""
    return (env.state.given > 0).sum(-1) - numbers[2].sum(-1)


def outlook(env: VecEnv, numbers: Numbers) -> tuple[Tensor, Tensor]:
    """Return which moves can be made without dividing by zero, and how far from the target what they make is.

    Shape of both: (N, M + 1), bool and float32.
    """
    (top, bottom, there), (left, right, operator) = numbers, scenario_of(env).shared["moves"].unbind(-1)
    value = combined((top[:, left], bottom[:, left]), (top[:, right], bottom[:, right]), operator)
    can = there[:, left] & there[:, right] & (left != right) & (value[1] != 0)
    return can, (ratio(*value) - env.state.target.unsqueeze(-1)).abs()


class Random(Mover):
    """Makes any possible move, reproducible by the episodes' keys."""

    def move(self, env: VecEnv, numbers: Numbers, made: int) -> Tensor:
        can, _ = outlook(env, numbers)
        index = torch.arange(can.shape[1], device=can.device) + can.shape[1] * (made + env.rows.elapsed.unsqueeze(-1))
        wide = EpisodeKey(*(word.unsqueeze(-1) for word in env.episode_keys))
        word = random_bits(wide, EpisodeStream.ACTION, index)[0]
        return torch.where(can, word + 1, 0).argmax(-1)


class Blind(Mover):
    """Makes the same moves of any puzzle: a rule that fits the first ones at hand."""

    def __init__(self) -> None:
        self._moves: Tensor | None = None

    def move(self, env: VecEnv, numbers: Numbers, made: int) -> Tensor:
        if self._moves is None:
            self._moves = blind_moves(scenario_of(env), env.state.given[:PUZZLES], env.state.target[:PUZZLES])
        move = self._moves[made_of(env, numbers).clamp(max=len(self._moves) - 1)]
        can, _ = outlook(env, numbers)
        return torch.where(can.gather(1, move.unsqueeze(-1)).squeeze(-1), move, 0)


def blind_moves(scenario: Countdown, given: Tensor, target: Tensor) -> Tensor:
    """Return moves, the same of P puzzles: none that differ in one move solve more of them.

    Found move by move, from the sum of the first two numbers, and the next. Shape: (S - 1,), int64.
    """
    count, puzzles = len(scenario.shared["moves"]), len(target)
    moves = scenario.shared["move_number"].view(len(given[0]), -1, 4)[0, 1:, ADD].clone()
    fewer, most = -1, 0
    while most > fewer:
        fewer = most
        for place in range(len(moves)):
            # A rule for each move at this place.
            rules = moves.repeat(count, 1)
            rules[:, place] = torch.arange(count, device=moves.device)
            start = given.repeat(count, 1)
            numbers: Numbers = (start, torch.ones_like(start), start > 0)
            aim, solved = target.repeat(count), torch.zeros(count * puzzles, dtype=torch.bool, device=moves.device)
            for move in rules.repeat_interleave(puzzles, 0).unbind(-1):
                numbers, hit = after(scenario, numbers, move, aim)
                solved = solved | hit
            found = solved.view(count, puzzles).sum(-1)
            if int(found.max()) > int(found[moves[place]]):
                moves[place] = found.argmax()
            most = int(found.max())
    return moves


class Greedy(Mover):
    """Makes the move whose result is nearest to the target."""

    def move(self, env: VecEnv, numbers: Numbers, made: int) -> Tensor:
        can, far = outlook(env, numbers)
        return torch.where(can, far, torch.inf).argmin(-1) * can.any(-1)


class Hindsight(Mover):
    """Knows the moves by which the target was made when the puzzle was drawn."""

    def move(self, env: VecEnv, numbers: Numbers, made: int) -> Tensor:
        step = made_of(env, numbers).clamp(max=env.state.proof.shape[1] - 1)
        return env.state.proof.gather(1, step.unsqueeze(-1)).squeeze(-1)


class Solver(Mover):
    """Searches for a solution with as few numbers as possible (`solution`); knows no more than is shown."""

    def move(self, env: VecEnv, numbers: Numbers, made: int) -> Tensor:
        scenario, state = scenario_of(env), env.state
        table = scenario.shared["move_number"].tolist()
        columns = (state.given, state.target, made_of(env, numbers))
        chosen = []
        for given, target, step in zip(*(column.tolist() for column in columns), strict=True):
            tree = solution(tuple(number for number in given if number), target, scenario.config.use_all)
            moves = [] if tree is None else moves_of_tree(tree, scenario.config.slots, table)
            chosen.append(moves[step] if step < len(moves) else 0)
        return torch.tensor(chosen, device=env.device)


def moves_of_tree(tree: Tree, slots: int, move_number: list[int]) -> list[int]:
    """Return the moves of a tree over slots, whose table is of `move_tables`."""
    moves: list[int] = []

    def carry_out(tree: Tree) -> int:
        if isinstance(tree, int):
            return tree
        left, right = carry_out(tree[0]), carry_out(tree[2])
        moves.append(move_number[(left * slots + right) * 4 + tree[1]])
        return min(left, right)

    carry_out(tree)
    return moves


def tree_of_moves(moves: list[int], slots: int) -> Tree | None:
    """Return what the last of some moves makes of slots as a tree; None of moves that cannot be made, and of none."""
    table = move_tables(slots)["moves"].tolist()
    trees: dict[int, Tree] = {slot: slot for slot in range(slots)}
    last: Tree | None = None
    for left, right, operator in (table[move] for move in moves if move):
        if left not in trees or right not in trees:
            return None
        last = trees[min(left, right)] = (trees[left], operator, trees[right])
        del trees[max(left, right)]
    return last


AGENTS: dict[str, Callable[[], Agent]] = {
    "random": Random,
    "blind": Blind,
    "greedy": Greedy,
    "solver": Solver,
    "hindsight": Hindsight,
}
