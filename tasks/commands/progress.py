"""What a command shows while it works: something that moves on a terminal, lines where there is none, as in a log."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINES = 10
"""Parts of a training after each of which a line is written where there is no terminal."""


def working(console: Console, text: str) -> AbstractContextManager[object]:
    """Say what is done within the context: on a terminal, or else in a line of the standard error.

    A command that is refused after its market was made then still leaves its output empty.
    """
    if console.is_interactive:
        return console.status(text)
    Console(stderr=True).print(text, soft_wrap=True)
    return nullcontext()


class _Bar(Progress):
    """A progress bar over a training with a state of one line.

    Where the console is no terminal, a line after the first step and after every tenth of the training.
    """

    def __init__(self, console: Console, total: float | None, state: str) -> None:
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
        self._bar = self.add_task("Training ", total=total, state=state)
        self._shown = -1

    def _move(self, completed: float, total: float, state: str) -> None:
        """Move to what is done."""
        self.update(self._bar, completed=completed, total=total, state=state)
        task = self.tasks[0]
        part = int(LINES * task.percentage / 100)
        if part > self._shown:
            self._shown = part
            self._line(f"{task.percentage:3.0f}% {state} · after {task.elapsed or 0.0:,.0f} s")

    def _line(self, text: str) -> None:
        if not self.console.is_interactive:
            self.console.print(f"Training  {text}", soft_wrap=True)


class StepBar(_Bar):
    """A progress bar over steps of known number with one number that is watched.

    Args:
        console: where it appears.
        watched: name of the number.
    """

    def __init__(self, console: Console, watched: str) -> None:
        super().__init__(console, None, "")
        self._watched = watched

    def show(self, step: int, steps: int, value: float) -> None:
        """Move the bar to a step that is done."""
        self._move(step, steps, f"{self._watched} {value:.3f}")


class TrainingBar(_Bar):
    """A progress bar with samples per second, return and grade of the episodes that ended last.

    Args:
        console: where it appears.
        total_frames: steps of the whole run.
        state: what is said until the first update.
    """

    def __init__(self, console: Console, total_frames: int, state: str) -> None:
        super().__init__(console, total_frames, state)
        self._total, self._outcome = total_frames, ""
        self._said: set[str] = set()
        self._line(state)

    def say(self, state: str) -> None:
        """Say what is being done until the next update; without a terminal the first time only."""
        self.update(self._bar, state=state)
        if state not in self._said:
            self._said.add(state)
            self._line(state)

    def show(self, metrics: dict[str, float]) -> None:
        """Move the bar to the state after an update."""
        if not math.isnan(metrics["return_percent"]):
            self._outcome = f" · return {metrics['return_percent']:+.1f}% · grade {metrics['grade']:.2f}"
        state = f"{metrics['samples_per_second']:,.0f} samples/s" + self._outcome
        self._move(metrics["frames"], self._total, state)
