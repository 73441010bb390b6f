"""Picture of what the scores are worth: by the strength of the rule, beside shuffled scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.finance.accounts import tape_of
from vecenv.finance.metrics import independent_groups, sums_interval
from vecenv.learn.evaluation import Agent
from vecenv.learn.intervals import Interval
from vecenv.registry import task_of
from vecenv.system.figures import COLOURS, empty_figure, entitle, legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRENGTHS = (0.0, 0.001, 0.01, 0.05, 0.1)
"""Strengths of the rule that sentiment moves actions."""

MOVED = "equal_weight_moved"
"""The agent that reads no news, and whose actions they move."""


class Worth(NamedTuple):
    """Mean log-return of an agent above buy and hold, in percent a year, for each of `STRENGTHS`.

    With the scores as they are, and with the same ones in random order.
    """

    scores: list[Interval]
    shuffled: list[Interval]


def figures(env: VecEnv, agents: Mapping[str, Agent], seed: int) -> dict[str, Figure]:
    """Draw what the first agent and one that reads no news make of the scores, on the episodes of an evaluation."""
    first = dict(islice(agents.items(), 1))
    shown = first | {MOVED: task_of(env).agents[MOVED]()}
    return {"signal_worth": worth_figure(worth_of_scores(env, shown, seed), env.num_envs)}


@torch.no_grad()
def worth_of_scores(env: VecEnv, agents: Mapping[str, Agent], seed: int) -> dict[str, Worth]:
    """Play the episodes of a seed with every strength, with scores and with shuffled ones."""
    record, count = task_of(env), env.num_envs
    reference = _growth(env, record.agents[record.domain.reference](), torch.arange(count), seed)
    groups = independent_groups(env.state.path, env.state.start_day, len(reference))
    lived = torch.arange(len(reference), device=groups.device)[:, None] < env.rows.elapsed
    scale = 100.0 * tape_of(env).periods_per_year / float(env.rows.elapsed.double().mean())
    found: dict[str, list[list[Interval]]] = {name: [] for name in agents}
    for shuffled in (False, True):
        other = _with_all_strengths(env, shuffled)
        starts = torch.arange(count).repeat(len(STRENGTHS))
        for name, agent in agents.items():
            growth = _growth(other, agent, starts, seed).view(-1, len(STRENGTHS), count)
            above = scale * (growth - reference[:, None])
            found[name].append([sums_interval(daily, lived, groups) for daily in above.unbind(1)])
    return {name: Worth(*told) for name, told in found.items()}


def _with_all_strengths(env: VecEnv, shuffled: bool) -> VecEnv:
    """Return an environment on the same market with the rows of ``env`` once for every strength."""
    rules = replace(env.scenario.config, shuffled=shuffled)  # type: ignore[attr-defined]
    strengths = torch.tensor(STRENGTHS, device=env.device).repeat_interleave(env.num_envs)
    scenario = task_of(env).build(tape_of(env), rules)
    return VecEnv(scenario, len(strengths), 0, env.device, False, {"sentiment_strength": strengths})


def _growth(env: VecEnv, agent: Agent, starts: Tensor, seed: int) -> Tensor:
    """Return the daily log-returns of an episode of each row, 0 after its end. Shape: (longest episode, N).

    Rows of equal starts see the same days.
    """
    env.reset_starts(starts.to(env.device), seed)
    values = [env.state.portfolio_value.clone()]
    for _ in range(env.scenario.longest or 0):
        if not bool(env.rows.done.all()):
            env.advance(agent.act(env), eager=not env.compiled)
        values.append(env.state.portfolio_value.clone())
    return torch.log((torch.stack(values) / values[0]).double().clamp(min=1e-6)).diff(dim=0)


def worth_figure(worth: Mapping[str, Worth], episodes: int) -> Figure:
    """Draw the worth of scores against shuffled ones, a panel for each agent."""
    figure, axes = empty_figure(len(worth), 1, 1.5 + 2.6 * len(worth))
    for axis, (name, told) in zip(axes, worth.items(), strict=True):
        _draw(axis, told.scores, "scores", COLOURS[0], -0.08)
        _draw(axis, told.shuffled, "the same, shuffled", COLOURS[1], 0.08)
        axis.axhline(0.0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(STRENGTHS)), [f"{100 * strength:g}%" for strength in STRENGTHS])
        axis.set_ylabel(f"{name}: log-return\nabove buy_and_hold,\n% a year")
    axes[-1].set_xlabel("Change of an action per point of sentiment")
    # Below the panels: within one it would lie on an interval.
    legend_below(figure)
    entitle(figure, f"What the scores are worth: {episodes} test episodes, 95% intervals")
    return figure


def _draw(axis: Axes, intervals: list[Interval], label: str, colour: str, shift: float) -> None:
    places = [place + shift for place in range(len(intervals))]
    means = [interval.mean for interval in intervals]
    spread = [[one.mean - one.low for one in intervals], [one.high - one.mean for one in intervals]]
    axis.errorbar(places, means, yerr=spread, fmt="o-", color=colour, capsize=3, label=label)
