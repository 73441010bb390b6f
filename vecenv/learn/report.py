"""Report of a run: tables for the terminal, ``metrics.json`` and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent
from vecenv.learn.domain import domain_of
from vecenv.learn.evaluation import Evaluation
from vecenv.learn.figures import History, learning_curve_figure
from vecenv.learn.intervals import interval_text


def write_run_folder(
    folder: Path | str,
    metadata: Mapping[str, Any],
    evaluation: Evaluation,
    histories: Sequence[History] = (),
    agent: str | None = None,
    beside: Sequence[str] = (),
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
    (folder / "metrics.json").write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    if histories:
        pictures["learning_curve"] = learning_curve_figure(histories, evaluation.title())
    for name, figure in pictures.items():
        figure.savefig(folder / f"{name}.png", dpi=120)
    return document


def write_task_figures(folder: Path, env: VecEnv, agents: Mapping[str, Agent], seed: int) -> None:
    """Write the pictures of a task's family, if it has any; the rows of ``env`` are overwritten."""
    draw = domain_of(env).pictures
    for name, figure in ({} if draw is None else draw(env, agents, seed)).items():
        figure.savefig(folder / f"{name}.png", dpi=120)


def parts_table(evaluation: Evaluation) -> Table | None:
    """Return the mean parts of the agents' grades as a table, None of a task whose grade has none."""
    names = list(next(iter(evaluation.records.values())).grade_parts)
    if not names:
        return None
    table = Table(title="Parts of the grade", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("Agent", *(name.capitalize() for name in names)):
        table.add_column(header, justify="left" if header == "Agent" else "right", no_wrap=True)
    for name, record in evaluation.records.items():
        table.add_row(name, *(f"{float(record.grade_parts[part].double().mean()):.3f}" for part in names))
    return table


def evaluation_table(evaluation: Evaluation) -> Table:
    """Return the comparison as a table, one row per agent."""
    scale = [f"Grade: {evaluation.scale}."] if evaluation.scale else []
    table = Table(
        title=f"{evaluation.num_episodes} episodes, the same for every agent",
        caption=" ".join([evaluation.caption(), *scale, *evaluation.notes()]),
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
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
