"""What a walk-forward comes to: one out-of-sample curve, a table by span, a picture and a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from vecenv.system.figures import DPI, WIDTH
from vecenv.system.files import replacing
from vecenv.system.report_page import word_table
from vecenv.tasks.backtest.report import equity_figure, report_page
from vecenv.tasks.backtest.result import Backtest
from vecenv.tasks.backtest.run import REPORT, told_of, write_json, write_tables
from vecenv.tasks.experiment.run_files import WALK
from vecenv.tasks.walk_forward.spans import Span

PICTURE = "walk_forward.png"


@dataclass(frozen=True)
class WalkForward:
    """A walk-forward.

    Attributes:
        joined: the account over all spans, none of whose days any policy knew when it traded on it.
        parts: the spans.
        told: settings and folder, JSON-able.
    """

    joined: Backtest
    parts: Sequence[Span]
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def returns(self) -> pd.Series:
        """Simple daily returns, as quantstats and pyfolio take them."""
        return self.joined.returns

    @cached_property
    def spans(self) -> pd.DataFrame:
        """A row for each span that was traded, by its ``first`` day.

        ``last`` is the day of the last close, from which the next span goes on; ``trained_from`` and ``trained_until``
        bound the days of the training, its validation included; ``days`` are returns. Then the returns of the agent and
        of the benchmarks, by name, the ``difference`` to the first benchmark, ``turnover`` a year as in
        `vecenv.tasks.backtest.result.summarised`, and the ``costs``.
        """
        found, rows = self.joined, []
        for part in self.parts:
            days = found.daily.loc[str(part.first) : str(part.last)]
            if len(days) < 2:
                continue
            earned = days[["value", *found.benchmarks]].iloc[[0, -1]].pct_change().iloc[-1]
            # Of the orders of the span's policy: what fills at the open is told on the day after.
            late = found.told["config"]["fill"] == "next_open"
            paid = days[["traded", "costs"]].iloc[1:] if late else days[["traded", "costs"]].iloc[:-1]
            traded, held = paid["traded"].sum(), days["value"].iloc[:-1].mean()
            year, count = found.told["market"]["periods_per_year"], len(days) - 1
            rows.append(
                {
                    **{name: pd.Timestamp(value) for name, value in vars(part).items()},
                    "days": count,
                    **earned.rename({"value": found.agent}).to_dict(),
                    "difference": earned["value"] - earned[found.benchmarks[0]],
                    "turnover": traded / held * year / count if held > 0 else np.nan,
                    "costs": paid["costs"].sum(),
                }
            )
        return pd.DataFrame(rows).set_index("first")

    def to_json(self) -> dict[str, Any]:
        rows = self.spans.reset_index()
        dates = {name: rows[name].dt.date.astype(str) for name in ("first", "last", "trained_from", "trained_until")}
        spans = rows.assign(**dates).astype(object).where(rows.notna(), None)
        return {**told_of(self.joined), "spans": spans.to_dict("records"), **self.told}

    def write(self, folder: Path) -> dict[str, Any]:
        """Write tables, picture, report and `WALK`, and return the content of the latter."""
        write_tables({**self.joined.tables(), "spans": self.spans.reset_index()}, folder)
        with replacing(folder / PICTURE) as partial:
            equity_figure(self.joined, WIDTH).savefig(partial, format="png", dpi=DPI)
        with replacing(folder / REPORT) as partial:
            partial.write_text(self.page(), encoding="utf-8")
        document = self.to_json()
        # Last, as it says that the walk is finished.
        write_json(document, folder / WALK)
        return document

    def words(self) -> tuple[list[str], list[list[str]]]:
        """Return heads and rows of the table of spans."""
        found = self.joined
        names = [found.agent, *found.benchmarks, "difference"]
        heads = ["first", "last", "trained until", *(f"{name.replace('_', ' ')}, %" for name in names), "turnover"]
        rows = [
            [
                *(str(day.date()) for day in (first, row["last"], row["trained_until"])),
                *(f"{100 * row[name]:+.1f}" for name in names),
                f"{row['turnover']:.2f}",
            ]
            for first, row in self.spans.iterrows()
        ]
        return heads, rows

    def table(self) -> Table:
        """Return the table of spans for a terminal."""
        heads, rows = self.words()
        table = Table(title=f"{len(rows)} spans, out of sample", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for place, head in enumerate(heads):
            table.add_column(head, justify="right" if place > 2 else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        return table

    def page(self) -> str:
        """Return the report."""
        more = {"Spans": word_table(*self.words())}
        return report_page(self.joined, f"Walk-forward over {len(self.spans)} spans", more)
