"""Validation reports: JSON, Markdown, and tables on a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import vecenv
from vecenv.worldmodel.validation.acceptance import Bar, Verdict
from vecenv.worldmodel.validation.figures import Figures, to_json
from vecenv.worldmodel.validation.judge import HORIZON, Trial
from vecenv.worldmodel.validation.rows import Row, rows
from vecenv.worldmodel.validation.table import SEES_TEST, Differences, cells, count, difference_cells, markdown, verdict
from vecenv.worldmodel.validation.temperature_sweep import Sweep, sweep_cells

LEGEND = (
    "↓ lower is better, ↑ higher, ≈ nearer to real. Brackets: 95% interval of a block bootstrap over days or origins;"
    " of the median stock's volatility ratio, the 5–95% range over stocks; of figures without one, the range over "
    "several weights or seeds. Discriminators learn from the first half of the test days and are asked about the "
    "second. The real column has a perfect model's value where the real days have none of their own, and of "
    "discriminators real days against other real ones. Discriminators of whole bars see gap, body, wicks and volume "
    "of all generated paths. Surely below: the whole interval of the difference, paired by day, lies below zero; "
    "undecided if it contains zero, which counts as not met. A dash: the model has no such figure, or the run cannot "
    f"tell. {SEES_TEST} draws from the days before each origin, which are days of the test as origins roll on: it sees"
    " the test's own past."
)

TABLE_WIDTH, MODEL_WIDTH = 52, 14
"""Minimum width of the table in characters, and per model, also on a narrower terminal."""


@dataclass(frozen=True, eq=False)
class Report:
    """Results of a validation; models besides the `judged` one, if there is one, are its rivals.

    `sweep` has measures of the judged model by temperature; `differences` are paired, of its scores less the other
    models', and empty without it.
    """

    trial: Trial
    settings: Mapping[str, Any]
    left_out: Sequence[str]
    real: Figures
    models: Mapping[str, Figures]
    judged: str | None
    seconds: Mapping[str, float]
    sweep: Sweep
    differences: Differences

    @property
    def rows(self) -> tuple[Row, ...]:
        return rows(self.settings["long_days"])

    @property
    def summary(self) -> str:
        """Sentences on how many bars the judged model meets, by the present bars and by those of earlier tables."""
        counts = self.to_json()["counts"]
        now, before = counts["bars"], counts["former_bars"]
        undecided = f", {now['undecided']} undecided" if now["undecided"] else ""
        return (
            f"{self.judged} meets {now['met']} of {now['of']} bars{undecided}. Of the lines of earlier tables, by "
            f"their bars, it meets {before['met']} of {before['of']}."
        )

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
        }
        if self.judged is not None:
            present = self._verdicts({row: row.bar for row in self.rows})
            values |= {
                "judged": self.judged,
                "bars": {row.key: _told(bar, met) for row, (bar, met) in present.items()},
                "former_bars": {row.key: _told(bar, met) for row, (bar, met) in self._former().items()},
                "counts": {"bars": _count(present), "former_bars": _count(self._former())},
                "differences": {key: to_json(by_rival) for key, by_rival in self.differences.items()},
            }
        return values

    def _verdicts(self, bars: Mapping[Row, Bar | None]) -> dict[Row, tuple[Bar, Verdict | None]]:
        """Return bars, and the judged model's verdicts, of the rows that have one."""
        assert self.judged is not None
        model = self.models[self.judged]
        rivals = {name: figures for name, figures in self.models.items() if name != self.judged}
        return {
            row: (bar, verdict(bar, row, self.real, model, rivals, self.differences))
            for row, bar in bars.items()
            if bar is not None
        }

    def _former(self) -> dict[Row, tuple[Bar, Verdict | None]]:
        """Return the same of the lines that earlier tables had, by their bars."""
        return self._verdicts({row: row.former or row.bar for row in self.rows if row.earlier})

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
        table = markdown(*cells(self.rows, self.real, self.models, self.judged, differences=self.differences))
        parts = [title, head, LEGEND, *([self.summary] if self.judged else []), table]
        if self.differences:
            parts += [f"## {self.judged} less each other model", markdown(*difference_cells(self.differences))]
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
    printed = [_table("Realism on test days", *cells(report.rows, report.real, report.models, intervals=False))]
    if report.judged is not None:
        good = [row for row in report.rows if row.bar]
        headings, lines = cells(
            good, report.real, report.models, report.judged, intervals=False, differences=report.differences
        )
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


def _count(told: Mapping[Row, tuple[Bar, Verdict | None]]) -> dict[str, int]:
    return count(met for _, met in told.values())._asdict()


def _table(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, box=SIMPLE)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < 2 else "right", no_wrap=not index)
    for line in lines:
        table.add_row(*map(escape, line))
    return table
