"""Pictures of Sokoban: an episode as a strip of boards, and the share of boards that are solved after each move."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent
from vecenv.learn.report import COLOURS, empty_figure, seen_in_play
from vecenv.tasks.games.grid import colour_table, picture
from vecenv.tasks.games.sokoban.agents import game_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS, ROWS = 8, 3
"""Boards of a strip, at most: of a longer episode some are left out."""


def sokoban_figures(env: VecEnv, agents: Mapping[str, Agent], seed: int) -> dict[str, Figure]:
    """Draw an episode of the first agent, and the share of boards that each agent has solved after each move."""
    game = game_of(env)

    def seen(steps: int) -> tuple[Tensor, ...]:
        return game.board(env.state[:1]), game.solved(env.state)

    played = {name: seen_in_play(env, agent, seed, seen) for name, agent in agents.items()}
    first = next(iter(played))
    solved = {name: share.mean(1) for name, (_, share) in played.items()}
    return {"episode": episode_figure(env, played[first][0][:, 0], first), "solved": solved_figure(solved)}


def episode_figure(env: VecEnv, boards: np.ndarray, name: str) -> Figure:
    """Draw the boards of an episode, each once. Shape: (T + 1, H, W)."""
    changed = [True, *(before.tobytes() != after.tobytes() for before, after in pairwise(boards))]
    moves = np.flatnonzero(changed)
    shown = moves[np.unique(np.linspace(0, len(moves) - 1, min(len(moves), COLUMNS * ROWS)).round().astype(int))]
    rows = -(-len(shown) // COLUMNS)
    figure, axes = empty_figure(rows, COLUMNS, (9.5, 0.6 + 1.35 * rows), "x")
    colours = colour_table(game_of(env))
    for axis in axes:
        axis.axis("off")
    for axis, move in zip(axes, shown, strict=False):
        axis.imshow(picture(torch.from_numpy(boards[move]), colours, 1).movedim(0, -1).numpy())
        axis.set_title(f"{move}", fontsize=8)
    figure.suptitle(f"An episode of {name}, by moves; orange boxes, red targets, green boxes on targets, blue player")
    return figure


def solved_figure(solved: Mapping[str, np.ndarray]) -> Figure:
    """Plot the share of the boards that agents have solved after each move."""
    figure, (axis,) = empty_figure(1, 1, (9.5, 4.0), "x")
    for number, (name, share) in enumerate(solved.items()):
        axis.plot(100 * share, label=name, color=COLOURS[number % len(COLOURS)])
    axis.set(xlabel="Move", ylabel="Boards solved, %", ylim=(-2, 102))
    axis.legend(frameon=False)
    figure.suptitle("Boards solved by agent")
    return figure
