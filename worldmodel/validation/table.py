"""Table of realism: verdicts on a model, their count, and the figures as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from vecenv.learn.intervals import Interval
from vecenv.worldmodel.validation.acceptance import Bar, Case, Verdict
from vecenv.worldmodel.validation.figures import PERFECT, Figures, point
from vecenv.worldmodel.validation.rows import LAST_YEAR_BOOTSTRAP, Row, rows

SEES_TEST = "†"
"""Mark of a model that sees the test's own past."""

MISSING = "–"

Differences = Mapping[str, Mapping[str, Interval]]
"""Differences of a model's scores less those of each baseline, by figure and baseline."""


class Count(NamedTuple):
    """Numbers of bars that are met, of others whose interval contains zero, and on which the run can tell."""

    met: int
    undecided: int
    of: int


def reference(row: Row, real: Figures) -> Interval:
    """Return the value of the real days, or else of a perfect model; NaN if the figure is only to be small."""
    if row.key in real:
        return real[row.key]
    # A volatility ratio by rollout day uses the reference of the overall ratio.
    return point(PERFECT.get(row.key.partition("_days_")[0], math.nan))


def verdict(
    bar: Bar | None,
    row: Row,
    real: Figures,
    model: Figures,
    rivals: Mapping[str, Figures],
    differences: Differences | None = None,
) -> Verdict | None:
    """Return whether a model's figure meets a bar; None if there is no bar, or the run cannot tell."""
    if bar is None or row.key not in model or math.isnan(model[row.key].mean):
        return None
    known = {name: figures[row.key].mean for name, figures in rivals.items() if row.key in figures}
    paired = (differences or {}).get(row.key, {})
    return bar.judge(Case(model[row.key].mean, reference(row, real), known, paired))


def count(verdicts: Iterable[Verdict | None]) -> Count:
    """Count verdicts; None is of a bar on which the run cannot tell."""
    told = [each for each in verdicts if each is not None]
    return Count(told.count(Verdict.MET), told.count(Verdict.UNDECIDED), len(told))


def heading(model: str) -> str:
    """Return a model's name, marked if it sees the test's own past."""
    return f"{model} {SEES_TEST}" if model == LAST_YEAR_BOOTSTRAP else model


def cells(
    table: Sequence[Row],
    real: Figures,
    models: Mapping[str, Figures],
    judged: str | None = None,
    intervals: bool = True,
    differences: Differences | None = None,
) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines of the table as text."""
    headings = ["figure", "better", "real"]
    names = list(models)
    if judged is not None:
        names.remove(judged)
        headings += [judged, "good", "met"]
    rivals = {name: models[name] for name in names}
    lines = []
    for row in table:
        line = [row.label, row.aim.value, _text(reference(row, real), row.digits, intervals)]
        if judged is not None:
            met = verdict(row.bar, row, real, models[judged], rivals, differences)
            line.append(_text(models[judged].get(row.key), row.digits, intervals))
            line += [row.bar.text, met.value if met else MISSING] if row.bar else ["", ""]
        lines.append(line + [_text(models[name].get(row.key), row.digits, intervals) for name in names])
    return headings + [heading(name) for name in names], lines


def difference_cells(differences: Differences) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines of the paired differences of the judged model less each baseline."""
    labels = {row.key: row for row in rows()}
    headings = ["score", *(heading(name) for name in next(iter(differences.values())))]
    lines = []
    for key, by_rival in differences.items():
        lines.append([labels[key].label, *(_text(each, labels[key].digits + 1, True) for each in by_rival.values())])
    return headings, lines


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rules = ["---" if index < 2 else "---:" for index in range(len(headings))]
    return "\n".join(
        "| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in (headings, rules, *lines)
    )


def _text(figure: Interval | None, digits: int, interval: bool) -> str:
    if figure is None or math.isnan(figure.mean):
        return MISSING
    text = f"{figure.mean:.{digits}f}"
    if interval and not math.isnan(figure.low):
        text += f" [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"
    return text
