"""The report of a sweep: all trials, the best one, what it owes to luck, and its test: JSON, a table and a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import vecenv
from vecenv.learn.intervals import Interval, expected_maximum, interval_json, interval_text, jackknife
from vecenv.system.figures import COLOURS, empty_figure, entitle, legend_below, save
from vecenv.tasks.sweep.luck import deflated
from vecenv.tasks.sweep.space import Range, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT, PICTURE = "sweep.json", "sweep.png"
"""Files of the report in the folder of a sweep."""

FEWEST = 3
"""Seeds of a trial from which its interval is over seeds; of fewer it is over the episodes of the validation."""

MARKERS = {"complete": ("o", COLOURS[0]), "pruned": ("v", COLOURS[4])}
"""Marks in the picture of trials by state: those that failed have no place."""

COLUMNS = 2
"""Panels side by side."""


@dataclass(frozen=True)
class Trial:
    """A trial that has ended.

    Attributes:
        number: of the trial.
        state: ``complete``, ``pruned`` or ``failed``.
        chosen: values of the options that vary, by name.
        seeds: number of ``validations`` and figures of the best one, of each seed that has begun.
        reason: why it has failed.
        interrupted: attempts at it that were killed.
    """

    number: int
    state: str
    chosen: Mapping[str, Any]
    seeds: Sequence[Mapping[str, Any]]
    reason: str
    interrupted: int

    @cached_property
    def figures(self) -> list[Mapping[str, Any]]:
        """Figures of the seeds that have been validated."""
        return [seed for seed in self.seeds if "reward" in seed]

    @cached_property
    def interval(self) -> Interval:
        """Mean reward with its 95% interval over seeds, or of fewer than `FEWEST` over episodes; NaN of none."""
        count, rewards = len(self.figures), torch.tensor([seed["reward"] for seed in self.figures], dtype=torch.float64)
        if count < FEWEST:
            return Interval(self.mean("reward"), self.mean("reward_low"), self.mean("reward_high"))
        return jackknife(float(rewards.mean()), (rewards.sum() - rewards) / (count - 1))

    def mean(self, name: str) -> float:
        """Return the mean over seeds of a figure, NaN where it is not known of all."""
        values = [seed.get(name, math.nan) for seed in self.figures]
        return sum(values) / len(values) if values else math.nan

    def line(self) -> str:
        """Return what is told of the trial when it ends."""
        reward = f", reward {_digits(self.interval.mean)}" if self.figures else ""
        return f"Trial {self.number:03d} {self.state}{reward}: {self.settings_text()}"

    def settings_text(self) -> str:
        return ", ".join(f"{name} {_text(value)}" for name, value in self.chosen.items())

    def to_json(self) -> dict[str, Any]:
        told = {"trial": self.number, "state": self.state, "settings": dict(self.chosen), "reason": self.reason}
        return told | {
            "validation": interval_json(self.interval), "seeds": list(self.seeds), "interrupted": self.interrupted
        }  # fmt: skip


@dataclass
class Report:
    """What a sweep has come to.

    Attributes:
        sweep: what was tried.
        trials: all, by number.
        test: document of the comparison of the winner.
    """

    sweep: Sweep
    trials: Sequence[Trial]
    test: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def winner(self) -> Trial | None:
        """The complete trial with the best reward on the validation, the first of equals; None if none is complete."""
        complete = [trial for trial in self.trials if trial.state == "complete"]
        return max(complete, key=lambda trial: trial.interval.mean, default=None)

    @property
    def looks(self) -> int:
        """Validations of all trials, any of whose policies could have been the winner's."""
        return sum(seed["validations"] for trial in self.trials for seed in trial.seeds)

    @property
    def over(self) -> str:
        """What the intervals of the trials are over."""
        return "episodes" if self.sweep.training.runs.seeds < FEWEST else "seeds"

    def to_json(self) -> dict[str, Any]:
        states = [trial.state for trial in self.trials]
        counts = {state: states.count(state) for state in ("complete", "pruned", "failed")}
        told = {
            "vecenv_version": vecenv.__version__,
            "command": "sweep",
            **self.sweep.identity(),
            "looked_at": {"trials": len(self.trials), "validations": self.looks, **counts},
            "interval_over": self.over,
            "trials": [trial.to_json() for trial in self.trials],
        }
        if self.winner is not None:
            parts = ("evaluation", "verdicts", "seeds", "generalisation")
            test = {name: self.test[name] for name in parts if name in self.test}
            told["winner"] = {"trial": self.winner.number, "deflated": self._deflated(self.winner), "test": test}
        return told

    def write(self, folder: Path, console: Console, said: str) -> dict[str, Any]:
        """Write the report into the folder of the sweep, print it with what is ``said`` of the test, and return it."""
        document = {"folder": str(folder), **self.to_json()}
        (folder / REPORT).write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
        save(self.figure(), folder / PICTURE)
        console.print(self.table())
        for line in self.lines():
            console.print(line, soft_wrap=True)
        console.print(said, end="", highlight=False, markup=False, soft_wrap=True)
        console.print(f"Written to {folder}: {REPORT}, {PICTURE}, and a folder of each trial", soft_wrap=True)
        return document

    def table(self) -> Table:
        """Return all trials, the best ones first."""
        table = Table(
            title=f"{len(self.trials)} trials by their best validation",
            caption=f"95% intervals over {self.over}. Of many the best is worse than it looks here: see its test.",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for header in ("Trial", "State", "Reward", "95%\ninterval", "Vali-\ndations", *self.sweep.space):
            table.add_column(header, justify="left" if header in ("Trial", "State") else "right")
        for trial in sorted(self.trials, key=_rank):
            cells = [f"{trial.number:03d}", f"{trial.state}: {trial.reason}" if trial.reason else trial.state]
            cells += [_digits(trial.interval.mean), _interval_text(trial.interval)] if trial.figures else ["–", "–"]
            cells.append(str(sum(seed["validations"] for seed in trial.seeds)))
            table.add_row(*cells, *map(_text, trial.chosen.values()))
        return table

    def lines(self) -> list[str]:
        """Return what is to be known of the winner, in lines."""
        if self.winner is None:
            return ["No trial is complete: there is no winner"]
        lines = [
            f"Winner    trial {self.winner.number:03d}: {self.winner.settings_text()}",
            f"Luck      {len(self.trials)} trials were looked at, with {self.looks:,} validations: the best of as many "
            f"without a difference would look {expected_maximum(self.looks):.2f} standard errors better than it is",
        ]
        for name, told in self._deflated(self.winner).items():
            value, luck, left = (_digits(told[part]) for part in ("value", "luck", "deflated"))
            lines.append(f"          {name.replace('_', ' ')} {value} on the validation, less {luck}: {left}")
        return lines

    def figure(self) -> Figure:
        """Plot the rewards of the validations by trial, and over each option that varies."""
        names = ["trial", *self.sweep.space]
        rows, columns = -(-len(names) // COLUMNS), min(COLUMNS, len(names))
        figure, axes = empty_figure(rows, columns, 2.8 * rows + 1.2, "y")
        for number, axis in enumerate(axes):
            if number < len(names):
                self._draw(axis, names[number])
            else:
                axis.set_visible(False)
        legend_below(figure)
        failed = sum(not trial.figures for trial in self.trials)
        told = f", {failed} of which failed before a validation" if failed else ""
        entitle(figure, f"Best validation of {len(self.trials)} trials of {self.sweep.settings.file.name}{told}")
        return figure

    def _draw(self, axis: Axes, name: str) -> None:
        """Plot rewards over an option, or over the trials' numbers."""
        from matplotlib.ticker import MaxNLocator

        space = self.sweep.space.get(name, Range(0, len(self.trials), log=False))
        labels = [] if isinstance(space, Range) else list(map(_text, space.by_label.values()))

        def place(trial: Trial) -> Any:  # noqa: ANN401
            value = trial.number if name == "trial" else trial.chosen[name]
            return labels.index(_text(value)) if labels else value

        for state, (marker, colour) in MARKERS.items():
            found = [trial for trial in self.trials if trial.state == state and trial.figures]
            places, means = [place(trial) for trial in found], [trial.interval.mean for trial in found]
            axis.scatter(places, means, marker=marker, color=colour, label=state)
            lows, highs = ([trial.interval[bound] for trial in found] for bound in (1, 2))
            axis.vlines(places, lows, highs, color=colour, alpha=0.4)
        if self.winner is not None:
            place_of, best = place(self.winner), self.winner.interval.mean
            axis.scatter([place_of], [best], marker="*", s=220, color=COLOURS[1], zorder=3, label="winner")
        references = [trial.mean("reference_reward") for trial in self.trials if trial.figures]
        if references and math.isfinite(references[0]):
            axis.axhline(references[0], color="black", linewidth=1, linestyle="--", label="reference agent")
        if labels:
            axis.set_xticks(range(len(labels)), labels)
        elif isinstance(space, Range) and space.log:
            axis.set_xscale("log")
        elif isinstance(space, Range) and isinstance(space.low, int):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="Trial" if name == "trial" else name, ylabel="Reward of the validation")
        axis.label_outer(remove_inner_ticks=False)

    def _deflated(self, winner: Trial) -> dict[str, Any]:
        sharpes = [trial.mean("sharpe") for trial in self.trials]
        return deflated(winner.figures, [sharpe for sharpe in sharpes if math.isfinite(sharpe)], self.looks)


def _rank(trial: Trial) -> tuple[bool, float]:
    return trial.state != "complete", -trial.interval.mean if trial.figures else math.inf


def _text(value: object) -> str:
    """Return a value of an option, for people: numbers of three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _digits(value: float) -> str:
    return f"{value:.4g}"


def _interval_text(interval: Interval) -> str:
    """Return the bounds with as many decimals as the mean has, of three digits or so."""
    size = math.floor(math.log10(abs(interval.mean))) if interval.mean else 0
    return interval_text(interval, 1.0, min(6, max(2, 2 - size)))
