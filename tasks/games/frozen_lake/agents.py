"""Agents of FrozenLake: at random, without a look at the lake, by the shortest way, and the best policy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent, Random
from vecenv.tasks.games.frozen_lake.law import Drawn, best_moves, blind_moves
from vecenv.tasks.games.frozen_lake.scenario import FrozenLake
from vecenv.tasks.games.grid import one_move

LAKES = 256
"""Lakes that a blind rule is fitted to."""


class Planner:
    """Plays the best policy of each lake, one move an answer; ``careless``: as if the ice were not slippery."""

    def __init__(self, careless: bool = False) -> None:
        self.careless = careless
        self._known: list[Tensor] = []
        self._moves = torch.empty(0)

    def act(self, env: VecEnv) -> Tensor:
        state, game = env.state, env.scenario
        assert isinstance(game, FrozenLake)
        lakes = [state.holes, state.goal, 0 * state.slip if self.careless else state.slip, state.leaning]
        if not self._known or not all(map(torch.equal, self._known, lakes)):
            self._known = [part.clone() for part in lakes]
            drawn = Drawn(state.holes, state.place, state.goal)
            self._moves = best_moves(drawn, lakes[2], state.leaning, game.side, game.config.max_steps)[0]
        left = (game.config.max_steps - state.steps - 1).clamp(min=0)
        cell = (state.place >> 3) * game.side + (state.place & 7)
        move = self._moves[torch.arange(len(cell), device=cell.device), left, cell].long()
        return one_move(move, game.answer_moves)


class Blind:
    """Makes the same move in a cell on any lake: a rule that fits the first lakes at hand, from their starts."""

    def __init__(self) -> None:
        self._moves: Tensor | None = None

    def act(self, env: VecEnv) -> Tensor:
        state, game = env.state, env.scenario
        assert isinstance(game, FrozenLake)
        if self._moves is None:
            parts = (state.holes, state.place, state.goal, state.slip, state.leaning)
            *lake, slip, leaning = (part[:LAKES] for part in parts)
            self._moves = blind_moves(Drawn(*lake), slip, leaning, game.side, game.config.max_steps)
        return one_move(self._moves[(state.place >> 3) * game.side + (state.place & 7)], game.answer_moves)


def best(env: VecEnv) -> Planner:
    """Return the agent of the best policy, which is known."""
    return Planner()


AGENTS: dict[str, Callable[[], Agent]] = {
    "random": Random,
    "blind": Blind,
    "shortest_way": lambda: Planner(careless=True),
}
"""Agents by name; the best policy is `vecenv.learn.domain.BEST_RULE`."""
