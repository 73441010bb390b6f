"""Validation reports: verdicts by the criteria, as JSON, as Markdown, and as tables on a terminal."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import vecenv
from vecenv.learn.intervals import Interval
from vecenv.worldmodel.validation.acceptance import Bar, Case, Verdict
from vecenv.worldmodel.validation.criteria import EDITIONS, LAST_YEAR_BOOTSTRAP, criteria
from vecenv.worldmodel.validation.figures import Aim, Criterion, Figures
from vecenv.worldmodel.validation.trial import HORIZON, Trial

SEES_TEST = "†"
"""Mark of a model that sees the test's own past."""

KNOWN = (
    f"{SEES_TEST} draws from earlier days of the test itself as origins advance; the other models have learned from no "
    "day of the test."
)
"""What the marked model knows."""

TOTALS = {"all": "criteria met", "without_auc": "without AUC", "earlier": "of earlier tables, by their criteria"}
"""Names of `EDITIONS`."""

MISSING = "–"

MEASURES = {
    "crps": "CRPS, 1 day, 1e-4 ↓",
    "energy_score": "energy score, 20 days ↓",
    "volatility_ratio": "volatility ratio ≈ 1",
    "market_volatility_ratio": "of the market ≈ 1",
    "ks_1": "KS, 1 day ↓",
    "ks_20": "KS, 20 days ↓",
}
"""Figures by temperature, with their headings."""

Sweep = Mapping[float, Mapping[str, float]]
"""`MEASURES` of a model by temperature."""

Differences = Mapping[str, Mapping[str, Interval]]
"""Differences of a model's scores less those of each other model, by figure and other model."""

Count = Mapping[str, int]
"""Criteria that a model meets, of how many it is judged on (`count`)."""

LEGEND = (
    "↓ lower is better, ↑ higher, ≈ nearer to real. Brackets: 95% interval of a block bootstrap over days or origins;"
    " of the median stock's volatility ratio, the 5–95% range over stocks; of figures without one, the range over "
    "several weights or seeds. Discriminators learn from the first half of the test days and are asked about the "
    "second. The real column has a perfect model's value where the real days have none of their own, and of "
    "discriminators real days against other real ones. Discriminators of whole bars see gap, body, wicks and volume "
    "of all generated paths. AUC: the probability that a generated window ranks above a real one; as far below 0.5 it "
    "tells as much. Surely below: the whole interval of the difference, paired by day, lies below zero; surely x to y: "
    "the figure's whole interval does; undecided if only a part does, which counts as not met. Below all: below all "
    "other models. A dash: the model has no such figure, or the run cannot tell. Criteria met are of those on which a "
    f"model can be judged: that do not name it, and whose figure it has. {KNOWN}"
)

TABLE_WIDTH, MODEL_WIDTH = 52, 14
"""Minimum width of the table in characters, and per model, also on a narrower terminal."""


@dataclass(frozen=True, eq=False)
class Report:
    """Results of a validation; models besides the `judged` one, if there is one, are its rivals.

    `sweep` has measures of the judged model by temperature; `differences` are paired, of each model's scores less the
    others'.
    """

    trial: Trial
    settings: Mapping[str, Any]
    left_out: Sequence[str]
    real: Figures
    models: Mapping[str, Figures]
    judged: str | None
    seconds: Mapping[str, float]
    sweep: Sweep
    differences: Mapping[str, Differences]

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        return criteria(self.settings["long_days"])

    @cached_property
    def counts(self) -> dict[str, dict[str, Count]]:
        """The criteria that each model meets, by `EDITIONS`."""
        return {
            model: {
                total: count(met for _, met in self.verdicts(model, edition).values())
                for total, edition in EDITIONS.items()
            }
            for model in self.models
        }

    @property
    def summary(self) -> str:
        """Sentences on how many criteria the judged model meets, and the bootstrap that sees the test's own past."""
        told = []
        for model in (self.judged, LAST_YEAR_BOOTSTRAP):
            if model in self.counts:
                totals = self.counts[model]
                undecided = f" ({totals['all']['undecided']} undecided)" if totals["all"]["undecided"] else ""
                told.append(
                    f"{heading(model)} meets {met_of(totals['all'])} criteria{undecided}, without those of the AUC "
                    f"{met_of(totals['without_auc'])}; of the lines of earlier tables, by their criteria, "
                    f"{met_of(totals['earlier'])}."
                )
        return " ".join([*told, *([KNOWN] if LAST_YEAR_BOOTSTRAP in self.counts else [])])

    def to_json(self) -> dict[str, Any]:
        dates = self.trial.bars.dates
        test = dates[self.trial.first :]
        values: dict[str, Any] = {
            "vecenv_version": vecenv.__version__,
            "settings": dict(self.settings),
            "symbols": list(self.trial.bars.symbols),
            "left_out": list(self.left_out),
            "train_end": str(dates[self.trial.train_stop - 1]),
            "test": {"first_day": str(test[0]), "last_day": str(test[-1]), "days": len(test)},
            "origins": len(self.trial.origins()),
            "forecast_days": len(self.trial.forecast_days),
            "real": to_json(self.real),
            "models": {name: to_json(figures) for name, figures in self.models.items()},
            "seconds": dict(self.seconds),
            "temperatures": {str(temperature): values for temperature, values in self.sweep.items()},
            "counts": self.counts,
            "verdicts": {
                model: {each.key: met and met.value for each, (_, met) in self.verdicts(model).items()}
                for model in self.models
            },
            "differences": {
                model: {key: to_json(by_rival) for key, by_rival in found.items()}
                for model, found in self.differences.items()
            },
        }
        if self.judged is not None:
            values["judged"] = self.judged
            for name, edition in (("bars", EDITIONS["all"]), ("former_bars", EDITIONS["earlier"])):
                told = self.verdicts(self.judged, edition)
                values[name] = {each.key: _told(bar, met) for each, (bar, met) in told.items()}
        return values

    def verdicts(self, model: str, edition: int = EDITIONS["all"]) -> dict[Criterion, tuple[Bar, Verdict | None]]:
        """Return the bars of an edition of the table, and a model's verdicts.

        All other models are its rivals. A verdict is None of a bar that names the model, or whose figure it lacks.
        """
        rivals = {name: figures for name, figures in self.models.items() if name != model}
        given = self.real, self.models[model], rivals, self.differences.get(model)
        bars = ((each, each.bar_of(edition)) for each in self.criteria)
        return {each: (bar, verdict(bar, each, *given)) for each, bar in bars if bar is not None}

    def to_markdown(self) -> str:
        run, settings = self.to_json(), self.settings
        test = run["test"]
        head = (
            f"{len(run['symbols'])} symbols, {test['days']} test days {test['first_day']} to {test['last_day']}; "
            f"baselines fitted to days up to {run['train_end']}. {settings['paths']} paths of {HORIZON} days after "
            f"each of {run['origins']} origins, {settings['draws']} draws of the day after each of "
            f"{run['forecast_days']} days; {settings['seeds']} seed(s)"
        )
        several = len(settings.get("model", ()))
        head += f"; {self.judged}: means over {several} weights." if several > 1 else "."
        title = f"# Realism on {Path(self.trial.bars.source).name}"
        paired = self.differences.get(self.judged or "")
        table = markdown(
            *cells(self.criteria, self.real, self.models, self.judged, differences=paired, counts=self.counts)
        )
        parts = [title, head, LEGEND, *([self.summary] if self.judged else []), table]
        if paired:
            parts += [f"## {self.judged} less each other model", markdown(*difference_cells(paired))]
        if self.sweep:
            parts += [f"## {self.judged} by temperature", markdown(*sweep_cells(self.sweep))]
        return "\n\n".join(parts) + "\n"


def write_report(report: Report, folder: Path) -> dict[str, Any]:
    """Write ``validation.json`` and ``validation.md``; return the content of the former."""
    values = report.to_json()
    (folder / "validation.json").write_text(json.dumps(values, indent=2, allow_nan=False) + "\n")
    (folder / "validation.md").write_text(report.to_markdown())
    return values


def print_report(report: Report, console: Console) -> None:
    """Print the figures of all models, and the acceptance bars of the judged one."""
    shown = cells(report.criteria, report.real, report.models, intervals=False, counts=report.counts)
    printed = [_table("Realism on test days", *shown)]
    if report.judged is not None:
        good = [criterion for criterion in report.criteria if criterion.bar]
        paired = report.differences.get(report.judged)
        headings, lines = cells(good, report.real, report.models, report.judged, intervals=False, differences=paired)
        columns = len(headings) - len(report.models) + 1
        printed.append(_table("What counts as good", headings[:columns], [line[:columns] for line in lines]))
    if report.sweep:
        printed.append(_table("By temperature", *sweep_cells(report.sweep)))
    wide = Console(width=max(console.width, TABLE_WIDTH + MODEL_WIDTH * len(report.models)))
    for table in printed:
        wide.print(table)
    if report.judged is not None:
        console.print(report.summary)


def _told(bar: Bar, met: Verdict | None) -> dict[str, Any]:
    """Return a bar and its verdict as JSON-able values; undecided counts as not met."""
    return {
        "bar": bar.text,
        "met": None if met is None else met is Verdict.MET,
        "verdict": None if met is None else met.value,
    }


def _table(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, box=SIMPLE)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < 2 else "right", no_wrap=not index)
    for line in lines:
        table.add_row(*map(escape, line))
    return table


def to_json(figures: Mapping[str, Interval]) -> dict[str, dict[str, float | None]]:
    """Return figures with None where there is no number."""
    return {
        name: {part: number if math.isfinite(number) else None for part, number in figure._asdict().items()}
        for name, figure in figures.items()
    }


def verdict(
    bar: Bar | None,
    criterion: Criterion,
    real: Figures,
    model: Figures,
    rivals: Mapping[str, Figures],
    differences: Differences | None = None,
) -> Verdict | None:
    """Return whether a model's figure meets a bar; None if there is no bar, or the run cannot tell."""
    if bar is None or criterion.key not in model or math.isnan(model[criterion.key].mean):
        return None
    known = {name: figures[criterion.key].mean for name, figures in rivals.items() if criterion.key in figures}
    paired = (differences or {}).get(criterion.key, {})
    return bar.judge(Case(model[criterion.key], criterion.reference(real), known, paired))


def count(verdicts: Iterable[Verdict | None]) -> dict[str, int]:
    """Count verdicts that are met, undecided, and all; None, of a bar on which the run cannot tell, is left out."""
    told = Counter(each for each in verdicts if each is not None)
    return {"met": told[Verdict.MET], "undecided": told[Verdict.UNDECIDED], "of": told.total()}


def met_of(total: Count) -> str:
    """Return how many criteria are met as text."""
    return f"{total['met']} of {total['of']}"


def heading(model: str) -> str:
    """Return a model's name, marked if it sees the test's own past."""
    return f"{model} {SEES_TEST}" if model == LAST_YEAR_BOOTSTRAP else model


def cells(
    lines_of: Sequence[Criterion],
    real: Figures,
    models: Mapping[str, Figures],
    judged: str | None = None,
    intervals: bool = True,
    differences: Differences | None = None,
    counts: Mapping[str, Mapping[str, Count]] | None = None,
) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines of the table as text, below them the `TOTALS` of counts."""
    headings = ["figure", "better", "real"]
    names = list(models)
    if judged is not None:
        names.remove(judged)
        headings += [judged, "good", "met"]
    rivals = {name: models[name] for name in names}
    lines = []
    for row in lines_of:
        line = [row.label, row.aim.value, _text(row.reference(real), row.digits, intervals)]
        if judged is not None:
            met = verdict(row.bar, row, real, models[judged], rivals, differences)
            line.append(_text(models[judged].get(row.key), row.digits, intervals))
            line += [row.bar.text, met.value if met else MISSING] if row.bar else ["", ""]
        lines.append(line + [_text(models[name].get(row.key), row.digits, intervals) for name in names])
    for total, label in TOTALS.items():
        met_by = {name: met_of(each[total]) for name, each in (counts or {}).items()}
        if met_by:
            own = [met_by[judged], "", ""] if judged is not None else []
            lines.append([label, Aim.HIGHER.value, MISSING, *own, *(met_by[name] for name in names)])
    return headings + [heading(name) for name in names], lines


def difference_cells(differences: Differences) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines of the paired differences of the judged model less each baseline."""
    labels = {criterion.key: criterion for criterion in criteria()}
    headings = ["score", *(heading(name) for name in next(iter(differences.values())))]
    lines = []
    for key, by_rival in differences.items():
        lines.append([labels[key].label, *(_text(each, labels[key].digits + 1, True) for each in by_rival.values())])
    return headings, lines


def sweep_cells(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines of a table, with the best energy score marked."""
    best = min(sweep, key=lambda temperature: sweep[temperature]["energy_score"])
    lines: list[list[str]] = []
    for temperature, values in sweep.items():
        mark = " (best)" if temperature == best else ""
        lines.append([f"{temperature:g}{mark}", *(f"{values[key]:.4f}" for key in MEASURES)])
    return ["temperature", *MEASURES.values()], lines


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
