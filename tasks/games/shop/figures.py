"""Pictures of the shop: the way of an episode through its pages, and what the purchases of agents match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from vecenv.core.env import VecEnv
from vecenv.system.figures import empty_figure, entitle, legend_below, looks
from vecenv.tasks.games.shop.scenario import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vecenv.learn.evaluation import Agent

PARTS = ("bought", "type", "attributes", "options", "price", "success")
"""Outcomes that the picture of agents shows."""


def path_figure(record: Any, reference: Any, other: str, scenario: Any) -> Figure:  # noqa: ANN401
    """Draw the page after every action, of an episode and of the same one as another agent played it."""
    figure, (axis,) = empty_figure(1, 1, 4.0)
    shown = looks(("agent", other))
    pages = [page.name.lower() for page in Page]
    for name, own in {other: reference, "agent": record}.items():
        places = [0, *(pages.index(turn.page) for turn in own.turns)]
        label = f"{name}: {own.total_return:.2f}"
        axis.step(range(len(places)), places, where="post", marker="o", label=label, **shown[name].line())
    axis.set_yticks(range(len(pages)), pages)
    axis.set_xlabel("Action")
    legend_below(figure)
    return figure


def agents_figures(env: VecEnv, agents: Mapping[str, Agent], seed: int) -> dict[str, Figure]:
    """Draw what the purchases of agents match on average, on the episodes of an evaluation."""
    figure, (axis,) = empty_figure(1, 1, 4.5)
    width, shown = 0.8 / len(agents), looks(agents)
    for number, (name, agent) in enumerate(agents.items()):
        shares = _shares(env, agent, seed)
        places = [place + (number - (len(agents) - 1) / 2) * width for place in range(len(PARTS))]
        axis.bar(places, shares, width, color=shown[name].colour, label=name)
    axis.set_xticks(range(len(PARTS)), PARTS)
    axis.set_ylabel("Share matched, 0 where nothing was bought")
    legend_below(figure)
    entitle(figure, f"Purchases in {env.num_envs} test episodes")
    return {"purchases": figure}


@torch.no_grad()
def _shares(env: VecEnv, agent: Agent, seed: int) -> list[float]:
    env.reset_starts(torch.arange(env.num_envs, device=env.device), seed)
    while not bool(env.rows.done.all()):
        env.advance(agent.act(env), eager=not env.compiled)
    info = env.engine.bound().info(env.rows)
    return [float(info[name].mean()) for name in PARTS]
