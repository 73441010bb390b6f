"""Progress display of commands: bars on a terminal, plain lines in a log."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINES = 10
"""Number of progress lines per training run without a terminal."""

RECENT = 10
"""Steps by which the time left is told: other work on the machine begins and ends."""


def working(console: Console, text: str) -> AbstractContextManager[object]:
    """Show a status message within the context: a spinner on a terminal, else a line on the standard error.

    So a command that fails after making its market leaves the standard output empty.
    """
    if console.is_interactive:
        return console.status(text)
    Console(stderr=True, quiet=console.quiet).print(text, soft_wrap=True)
    return nullcontext()


def loading_torch(purpose: str) -> AbstractContextManager[object]:
    """Show what for PyTorch is imported within the context, which takes seconds; of several ranks the first does."""
    if "torch" in sys.modules or os.environ.get("RANK", "0") != "0":
        return nullcontext()
    return working(wide_console(), f"Loading PyTorch, to {purpose} …")


class _Bar(Progress):
    """Progress bar of a training run, or of other work, with a one-line state.

    Without a terminal it prints a line after the first step and after every tenth of the work. It tells the time left
    by the last `RECENT` steps, without the first one, which may have compiled.
    """

    def __init__(self, console: Console, total: float | None, state: str, name: str = "Training") -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_interactive,
        )
        self._name = f"{name:<9}"
        self._bar = self.add_task(self._name, total=total, state=state)
        self._shown = -1
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT + 1)

    def _move(self, completed: float, total: float, state: str) -> None:
        self.update(self._bar, completed=completed, total=total, state=state)
        task = self.tasks[0]
        part, elapsed = int(LINES * task.percentage / 100), task.elapsed or 0.0
        self._recent.append((completed, elapsed))
        if part > self._shown:
            self._shown = part
            done, began = completed - self._recent[0][0], self._recent[0][1]
            known = done > 0 and completed < total
            left = f", {(total - completed) * (elapsed - began) / done:,.0f} s left" if known else ""
            self._line(f"{task.percentage:3.0f}% {state} · after {elapsed:,.0f} s{left}")

    def _line(self, text: str) -> None:
        if not self.console.is_interactive:
            self.console.print(f"{self._name} {text}", soft_wrap=True)


class StepBar(_Bar):
    """Progress bar over a known number of steps, with one metric."""

    def __init__(self, console: Console, watched: str) -> None:
        super().__init__(console, None, "")
        self._watched = watched

    def show(self, step: int, steps: int, value: float) -> None:
        self._move(step, steps, f"{self._watched} {value:.3f}")


class TextBar(_Bar):
    """Progress bar over texts that are scored."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, None, "", "Scoring")

    def show(self, done: int, total: int) -> None:
        self._move(done, total, f"{done:,} of {total:,} texts")


class TrainingBar(_Bar):
    """Progress bar with samples per second, and return and grade of the most recently ended episodes.

    Of a language model also the shares of invalid answers and of groups without spread.
    """

    def __init__(self, console: Console, total_frames: int, state: str) -> None:
        super().__init__(console, total_frames, state)
        self._total, self._outcome, self._answers, self._validation = total_frames, "", "", ""
        self._said: set[str] = set()
        self._line(state)

    def say(self, state: str) -> None:
        """Show a message until the next update; without a terminal only the first time."""
        self.update(self._bar, state=state)
        if state not in self._said:
            self._said.add(state)
            self._line(state)

    def show(self, metrics: dict[str, float]) -> None:
        if not math.isnan(metrics.get("return_percent", math.nan)):
            self._outcome = f" · training return {metrics['return_percent']:+.1f}% · grade {metrics['grade']:.2f}"
        elif not math.isnan(metrics.get("grade", math.nan)):
            self._outcome = f" · training grade {metrics['grade']:.2f}"
        if "invalid_answers" in metrics:
            answers, groups = metrics["invalid_answers"], metrics["no_spread"]
            self._answers = f" · {answers:.0%} of answers invalid · {groups:.0%} of groups without spread"
        if math.isfinite(excess := metrics.get("validation_excess_percent", math.nan)):
            self._validation = f" · validation excess {excess:+.2f} points"
        state = f"{metrics['samples_per_second']:,.0f} samples/s" + self._outcome + self._answers + self._validation
        self._move(metrics["frames"], self._total, state)


def wide_console() -> Console:
    """Return a console that is wide enough for tables if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=150)
