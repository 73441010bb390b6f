"""Pictures of games on grids: an episode as a strip of boards, and who has succeeded by each step."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent
from vecenv.learn.report import seen_in_play
from vecenv.system.figures import empty_figure, entitle, legend_below, looks
from vecenv.tasks.games.grid import GridGame, colour_table, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS, ROWS = 6, 4
"""Boards of a strip, at most: of a longer episode some are left out."""


def grid_figures(env: VecEnv, agents: Mapping[str, Agent], seed: int) -> dict[str, Figure]:
    """Draw an episode of the first agent, and the share of each agent's episodes that succeeded by each step."""
    game = env.scenario
    assert isinstance(game, GridGame)

    def seen(steps: int) -> tuple[Tensor, ...]:
        return game.board(env.state[:1]), env.info()["success"]

    played = {name: seen_in_play(env, agent, seed, seen) for name, agent in agents.items()}
    first = next(iter(played))
    succeeded = {name: share.mean(1) for name, (_, share) in played.items()}
    return {"episode": episode_figure(game, played[first][0][:, 0], first), "success": success_figure(succeeded)}


def episode_figure(game: GridGame, boards: np.ndarray, name: str) -> Figure:
    """Draw the boards of an episode, each once. Shape: (T + 1, H, W)."""
    # Here, as only reports need it.
    from matplotlib.patches import Patch

    changed = [True, *(before.tobytes() != after.tobytes() for before, after in pairwise(boards))]
    steps = np.flatnonzero(changed)
    shown = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), COLUMNS * ROWS)).round().astype(int))]
    rows = -(-len(shown) // COLUMNS)
    figure, axes = empty_figure(rows, COLUMNS, 1.0 + 1.35 * rows)
    for axis in axes:
        axis.axis("off")
    for axis, step in zip(axes, shown, strict=False):
        axis.imshow(picture(torch.from_numpy(boards[step]), colour_table(game), 1).movedim(0, -1).numpy())
        axis.set_title(f"{step}", fontsize=8)
    patches = [
        Patch(color=(red / 255, green / 255, blue / 255), label=kind)
        for (red, green, blue), kind in zip(game.colours, game.kinds, strict=True)
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), fontsize=8, frameon=False)
    entitle(figure, f"An episode of {name}, by steps")
    return figure


def success_figure(succeeded: Mapping[str, np.ndarray]) -> Figure:
    """Plot the share of the episodes of agents that have succeeded by each step."""
    figure, (axis,) = empty_figure(1, 1, 4.5)
    shown = looks(succeeded)
    for name, share in succeeded.items():
        axis.plot(100 * share, label=name, **shown[name].line())
    axis.set(xlabel="Step", ylabel="Episodes that succeeded, %", ylim=(-2, 102))
    legend_below(figure)
    entitle(figure, "Success by agent")
    return figure
