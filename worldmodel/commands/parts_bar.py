"""Progress of a command in parts: a bar for each, with the time left of the part that runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vecenv.worldmodel.training.calibration import Advance


class PartsBar(Progress):
    """Progress bars of the parts of a command.

    Args:
        console: where they are shown.
        parts: names of the parts, in their order.
    """

    def __init__(self, console: Console, parts: Sequence[str]) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
        )
        self._rows = {name: self.add_task(name, total=1.0, state="") for name in parts}

    @contextmanager
    def part(self, name: str) -> Iterator[Advance]:
        """Run a part within the context, which is told the share of the work that is done; at its end all is."""
        row = self._rows[name]
        # Speed is measured from the first sample.
        self.advance(row, 0.0)
        yield partial(self.advance, row)
        self.update(row, completed=1.0)

    def tell(self, name: str, state: str, completed: float | None = None) -> None:
        """Show a part's state in words, and set the share that is done."""
        row: TaskID = self._rows[name]
        self.update(row, state=state, completed=completed)
