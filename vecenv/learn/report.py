"""Report of a run: ``metrics.json``, tables for the terminal, and pictures in one style."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.scenario import flat_view
from vecenv.learn.domain import BEST_RULE, domain_of
from vecenv.learn.intervals import interval_text
from vecenv.learn.networks import ItemNetwork
from vecenv.learn.policies import ActorPolicy
from vecenv.learn.settings.run import RESULTS
from vecenv.learn.verdict import Verdict, verdict_text
from vecenv.system.figures import TRAINED, empty_figure, entitle, legend_below, looks, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

    from vecenv.learn.evaluation import Agent, Evaluation
    from vecenv.text.interaction import Interaction


History: TypeAlias = Sequence[Mapping[str, float]]
"""Metrics of every update of a run."""


def write_run_folder(
    folder: Path | str,
    metadata: Mapping[str, Any],
    evaluation: Evaluation,
    histories: Sequence[History] = (),
    agent: str | None = None,
    beside: Sequence[str] = (),
    verdicts: Sequence[Verdict] = (),
) -> dict[str, Any]:
    """Write ``metrics.json`` and the plots of a run, and return the content of the former.

    Files of an earlier run are replaced. Holdings and worst days are those of ``agent``, by default the first; the
    agents ``beside`` are shown on those days too. Without histories there is no learning curve.

    Raises:
        ValueError: the evaluation has no such agent.
    """
    shown = next(iter(evaluation.records)) if agent is None else agent
    if shown not in evaluation.records:
        raise ValueError(f"no agent {shown!r} in the evaluation; it has {', '.join(evaluation.records)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    told, pictures = evaluation.pictures(shown, beside)
    document = {"vecenv_version": vecenv.__version__, **metadata, "evaluation": evaluation.to_json(), **told}
    document["verdicts"] = [verdict.to_json() for verdict in verdicts]
    (folder / RESULTS).write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    if histories:
        pictures["learning_curve"] = learning_curve_figure(histories, evaluation.title())
    for name, figure in pictures.items():
        save(figure, folder / f"{name}.png")
    return document


def write_task_figures(folder: Path, env: VecEnv | Interaction, agents: Mapping[str, Any], seed: int) -> None:
    """Write the pictures of a task's family, if it has any; the rows of ``env`` are overwritten."""
    draw = domain_of(env).pictures
    for name, figure in ({} if draw is None else draw(env, agents, seed)).items():
        save(figure, folder / f"{name}.png")


def _table(title: str, caption: str | None = None) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def parts_table(evaluation: Evaluation) -> Table | None:
    """Return the mean parts of the agents' grades as a table, None of a task whose grade has none."""
    names = list(next(iter(evaluation.records.values())).grade_parts)
    if not names:
        return None
    table = _table(title="Parts of the grade")
    for header in ("Agent", *(name.capitalize() for name in names)):
        table.add_column(header, justify="left" if header == "Agent" else "right", no_wrap=True)
    for name, record in evaluation.records.items():
        table.add_row(name, *(f"{float(record.grade_parts[part].double().mean()):.3f}" for part in names))
    return table


def show_evaluation(console: Console, evaluation: Evaluation, verdicts: Sequence[Verdict] = ()) -> None:
    """Print the comparison as tables, and below them a sentence of the verdicts on each agent and part."""
    console.print(evaluation_table(evaluation))
    if (parts := parts_table(evaluation)) is not None:
        console.print(parts)
    for _, told in groupby(verdicts, lambda verdict: (verdict.part, verdict.agent)):
        console.print(verdict_text([*told]), soft_wrap=True)


def evaluation_table(evaluation: Evaluation) -> Table:
    """Return the comparison as a table, one row per agent."""
    scale = [f"Grade: {evaluation.scale}."] if evaluation.scale else []
    table = _table(
        title=f"{evaluation.num_episodes} episodes{evaluation.lengths()}, the same for every agent",
        caption=" ".join([evaluation.caption(), *scale, *evaluation.notes()]),
    )
    table.add_column("Agent", no_wrap=True)
    graders = evaluation.grades[next(iter(evaluation.records))]
    headers = [part for grader in graders for part in (grader.capitalize(), "95%\ninterval")]
    for header in [*headers, *evaluation.headers()]:
        table.add_column(header, justify="right", no_wrap=True)
    for name in evaluation.records:
        intervals = evaluation.grades[name].values()
        grades = [cell for each in intervals for cell in (f"{each.mean:.3f}", interval_text(each, 1.0, 2))]
        table.add_row(name, *grades, *evaluation.cells(name))
    return table


OUTLYING = 100.0
"""Ratio of the largest mean reward of an agent to the median one above which the axis is logarithmic."""


def bands_figure(bands: Mapping[str, Sequence[np.ndarray[Any, Any]]], across: str, upwards: str, title: str) -> Figure:
    """Plot a line in a band by agent: where, low, middle, high, (T,) each; ``across`` and ``upwards`` name the axes."""
    figure, (axis,) = empty_figure(1, 1, 5.0)
    shown = looks(bands)
    for name, (place, low, middle, high) in bands.items():
        axis.fill_between(place, low, high, facecolor=shown[name].colour, alpha=0.15)
        axis.plot(place, middle, **shown[name].line(), label=name)
    axis.set(xlabel=across, ylabel=upwards)
    legend_below(figure)
    entitle(figure, title)
    return figure


@torch.no_grad()
def seen_in_play(
    env: VecEnv, agent: Agent, seed: int, seen: Callable[[int], Sequence[Tensor]]
) -> list[np.ndarray[Any, Any]]:
    """Play the first episode of every row to its end, and stack what ``seen`` returns before each step and after all.

    ``seen`` is given the number of steps so far. Shape of each: (T + 1, ...).
    """
    env.reset_first(seed)
    steps: list[list[np.ndarray[Any, Any]]] = []
    while not steps or not bool(env.rows.done.all()):
        if steps:
            env.advance(agent.act(env), eager=not env.compiled)
        steps.append([part.cpu().numpy() for part in seen(len(steps))])
    return [np.stack(column) for column in zip(*steps, strict=True)]


def rewards_figure(evaluation: Evaluation) -> Figure:
    """Plot the mean reward of an episode by agent, with 95% intervals."""
    return means_figure(evaluation, "reward", {name: record.reward for name, record in evaluation.records.items()})


def means_figure(evaluation: Evaluation, measure: str, values: Mapping[str, Tensor]) -> Figure:
    """Plot the means over episodes of a measure by agent, with 95% intervals. Shape of each of the values: (N,)."""
    figure, (axis,) = empty_figure(1, 1, 1.5 + 0.35 * len(values))
    shown = looks(evaluation.records)
    for place, (name, one) in enumerate(values.items()):
        interval = evaluation.interval(one, name)
        spread = [[interval.mean - interval.low], [interval.high - interval.mean]]
        axis.errorbar([interval.mean], [place], xerr=spread, fmt="o", color=shown[name].colour, capsize=3)
    axis.set_yticks(range(len(values)), list(values))
    axis.invert_yaxis()
    sizes = sorted(abs(float(one.mean())) for one in values.values())
    usual = sizes[len(sizes) // 2]
    if sizes[-1] > OUTLYING * usual > 0:
        axis.set_xscale("symlog", linthresh=usual)
    axis.set_xlabel(f"{measure.capitalize()} of an episode: mean and 95% interval")
    axis.grid(axis="x", alpha=0.3)
    entitle(figure, f"{measure.capitalize()}s", f"{evaluation.title()}, {evaluation.episodes()}")
    return figure


PANELS = {
    "validation_excess_percent": "Validation:\nexcess %",
    "validation_reward": "Validation:\nreward",
    "validation_grade": "Validation:\ngrade",
    "return_percent": "Training:\nreturn %",
    "grade": "Training:\ngrade",
    "samples_per_second": "Samples\nper second",
}
"""Metrics and the labels of their panels. The policy to keep is chosen on the validation: its figures are no test's."""

BOUNDS = {"validation_excess_percent": "validation_excess"}
"""Metrics whose bounds have names of their own: those of the others are called as they are, and `_low` and `_high`."""


def learning_curve_figure(histories: Sequence[History], title: str) -> Figure:
    """Plot validation, return, grade and samples per second of the updates over environment steps (``frames``).

    Of several runs it shows each, and at the steps at which all are measured their median and the band from the lowest
    to the highest: the band ends where the first run stopped early. NaN is not measured.
    """
    from matplotlib.ticker import EngFormatter

    rows = [row for history in histories for row in history]
    measured = {name for row in rows for name, value in row.items() if math.isfinite(value)}
    if "validation_grade" in measured:
        measured.discard("grade")
    if "validation_excess_percent" in measured:
        measured.discard("validation_reward")
    present = {name: label for name, label in PANELS.items() if name in measured}
    figure, axes = empty_figure(len(present), 1, 1.3 + 1.7 * len(present))
    shown = looks(("trained", "buy_and_hold", BEST_RULE))
    for axis, (name, label) in zip(axes, present.items(), strict=True):
        if len(histories) == 1:
            _draw_run(axis, histories[0], name)
        else:
            _draw_runs(axis, histories, name)
        if name == "validation_excess_percent":
            axis.axhline(0.0, **shown["buy_and_hold"].line(), label="buy and hold")
            best = [row.get("validation_attainable_percent", math.nan) for row in rows]
            attainable = np.nanmax([*best, 0.0])
            # A rule of the best Sharpe ratio may earn less than buy and hold: then its excess is no bound.
            if attainable > 0:
                axis.axhline(attainable, **shown[BEST_RULE].line(), label="best attainable")
        references = [row.get("validation_reference_reward", math.nan) for row in rows]
        if name == "validation_reward" and not np.isnan(references).all():
            axis.axhline(
                float(np.nanmean(references)), color="black", linewidth=1, linestyle="--", label="reference agent"
            )
        axis.set_ylabel(label)
        if name == "samples_per_second":
            most = max(row[name] for row in rows)
            if most >= 1000:  # Below, its prefixes are those of thousandths.
                axis.yaxis.set_major_formatter(EngFormatter())
            axis.set_ylim(0.0, 1.1 * most)
    axes[-1].xaxis.set_major_formatter(EngFormatter())
    axes[-1].set_xlabel("Steps of all sub-environments together")
    legend_below(figure)
    entitle(figure, "Learning curve of the trained agent", title)
    return figure


def _draw_run(axis: Axes, history: History, name: str) -> None:
    """Plot a metric of one run, with its 95% interval where that is known."""
    values = np.array([row[name] for row in history], dtype=float)
    frames = np.array([row["frames"] for row in history], dtype=float)
    known = np.isfinite(values)
    axis.plot(frames[known], values[known], color=TRAINED[0], marker="." if known.sum() < 30 else None, label="trained")
    low, high = (
        np.array([row.get(f"{BOUNDS.get(name, name)}_{bound}", math.nan) for row in history])[known]
        for bound in ("low", "high")
    )
    if np.isfinite(low).any():
        axis.fill_between(frames[known], low, high, facecolor=TRAINED[0], alpha=0.15, label="95% interval")


def _draw_runs(axis: Axes, histories: Sequence[History], name: str) -> None:
    """Plot a metric of several runs: each, and their median, lowest and highest where all are measured."""
    runs = [
        {row["frames"]: row[name] for row in history if math.isfinite(row.get(name, math.nan))} for history in histories
    ]
    for run in runs:
        axis.plot(list(run), list(run.values()), color=TRAINED[0], linewidth=0.6, alpha=0.5)
    frames = sorted(set.intersection(*(set(run) for run in runs)))
    if not frames:
        return
    values = np.array([[run[frame] for frame in frames] for run in runs])
    line, band = f"median of {len(runs)} seeds", "lowest to highest seed"
    marker = "." if len(frames) < 30 else None
    axis.plot(frames, np.median(values, 0), color=TRAINED[0], linewidth=2, marker=marker, label=line)
    axis.fill_between(frames, values.min(0), values.max(0), facecolor=TRAINED[0], alpha=0.15, label=band)


GRID = torch.linspace(-2.5, 2.5, 21)
"""Values of a feature in standard deviations from its mean."""

COLUMNS = 2
"""Panels side by side."""

AVERAGED = 256
"""Rows over which curves are averaged, at most: 2,048 take seconds, and draw the same lines."""


@torch.no_grad()
def partial_dependence(policy: ActorPolicy, observation: Tensor) -> Tensor:
    """Return the mean action for an item above that for the others, against each feature of it (Friedman 2001).

    Each row's first item is varied, of observations (B, D), over which the other features are averaged.
    Shape: (F, number of values in `GRID`).
    """
    network = policy.network
    if not isinstance(network, ItemNetwork) or network.num_items < 2:
        raise ValueError("partial dependence needs a policy of two items or more")
    mean, deviation, *actor = policy.parameters
    inputs = network.normalised(observation, mean, deviation)
    curves = torch.empty(network.num_features, len(GRID))
    for feature in range(network.num_features):
        for place, value in enumerate(GRID):
            varied = inputs.clone()
            varied[:, feature] = value
            scores = network.actor_outputs(actor, varied)[:, : network.num_items]
            curves[feature, place] = (scores[:, 0] - scores[:, 1:].mean(-1)).mean()
    return curves


def dependence_figure(policies: Mapping[str, ActorPolicy], env: VecEnv, names: Sequence[str]) -> Figure:
    """Plot `partial_dependence` of policies on an environment's current observations, a panel per feature."""
    observation = flat_view(env.observations())[:AVERAGED]
    rows = -(-len(names) // COLUMNS)
    figure, axes = empty_figure(rows, COLUMNS, 1.2 + 2.1 * rows, "y")
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    axes = axes[: len(names)]
    shown = looks(policies)
    for name, policy in policies.items():
        curves = partial_dependence(policy, observation)
        for axis, curve in zip(axes, curves, strict=True):
            axis.plot(GRID, curve, **shown[name].line(), label=name)
    for axis, name in zip(axes, names, strict=True):
        axis.axhline(0.0, color="grey", linewidth=0.8)
        axis.set_xlabel(name)
    for axis in axes[::COLUMNS]:
        axis.set_ylabel("Action above\nthe others'")
    legend_below(figure)
    entitle(
        figure,
        "What was learned: action for a symbol above that for the others, against each of its features in "
        "standard deviations from its mean",
    )
    return figure
