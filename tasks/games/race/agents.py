"""Agents of the race: at random, straight to the finish, and whatever is paid most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent, Random
from vecenv.tasks.games.grid import one_move
from vecenv.tasks.games.race.config import RaceConfig
from vecenv.tasks.games.race.scenario import Race, Track

HARDLY_LESS = 1 - 1e-6
"""A discount by which of ways that are paid alike the shortest counts, and which changes no other choice."""


def best_moves(
    track: Track, gains: Sequence[float], horizon: int, discount: float = 1.0, over: Sequence[float] | None = None
) -> tuple[list[list[int]], list[float]]:
    """Return the moves that are paid most, by moves left, from 1, and cell, and what they are paid from each cell.

    Exact, by backward induction. ``over`` is paid in each cell where the time is over, by default nothing.
    """
    worth, moves = list(over or [0.0] * len(track.cells)), []
    for _ in range(horizon):
        values = [
            gain + discount * (0.0 if track.cells[after] in "OF" else worth[after])
            for gain, after in zip(gains, track.after, strict=True)
        ]
        chosen = [max(range(4), key=values[4 * cell : 4 * cell + 4].__getitem__) for cell in range(len(track.cells))]
        worth = [values[4 * cell + move] for cell, move in enumerate(chosen)]
        moves.append(chosen)
    return moves, worth


class Planner:
    """Makes the moves that are paid most, one an answer, by the rules of the environment or by others."""

    def __init__(self, paid: str | None = None, discount: float = HARDLY_LESS) -> None:
        self.paid, self.discount = paid, discount

    def act(self, env: VecEnv) -> Tensor:
        game, state = env.scenario, env.state
        assert isinstance(game, Race)
        config: RaceConfig = game.config
        track, paid = game.track, self.paid or config.paid
        # The potential is 0 where the time is over: what was paid ahead is taken back.
        held = config.discount * (paid == "potential")
        over = [-held * track.potential(cell) for cell in range(len(track.cells))]
        best, _ = best_moves(track, track.gains(paid, config.discount), config.max_steps, self.discount, over)
        moves = torch.tensor(best, device=state.cell.device)
        move = moves[(config.max_steps - state.steps - 1).clamp(min=0), state.cell]
        return one_move(move, game.answer_moves)


def best(env: VecEnv) -> Planner:
    """Return the agent of the best policy, which is known."""
    return Planner()


AGENTS: dict[str, Callable[[], Agent]] = {
    "random": Random,
    # Any discount hastens to the finish.
    "to_the_finish": lambda: Planner("strict", 0.9),
}
"""Agents by name; what is paid most is `vecenv.learn.domain.BEST_RULE`."""
