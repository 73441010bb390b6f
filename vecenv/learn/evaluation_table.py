"""Evaluation of agents as `rich` tables for the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from vecenv.learn.evaluation import Evaluation
from vecenv.learn.intervals import interval_text


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
