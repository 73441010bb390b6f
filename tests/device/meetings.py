"""The log of meetings of host and device: who waited for whom, and the line that caused it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
OWN = {str(Path(__file__)), str(Path(__file__).with_name("pretended.py"))}
OPTIMISERS = ("torch/optim/adam.py", "torch/optim/adamw.py")


class Meeting(NamedTuple):
    """One kind of meeting at one place, of a file and a function.

    Attributes:
        what: "to host", "to device", "host index", "mask", or the operation that waits for the device.
        inside: the call that must not meet the host and did; empty if none.
    """

    place: str
    line: int
    what: str
    inside: str

    def __str__(self) -> str:
        return f"{self.place.partition(' ')[0]}:{self.line} {self.what}" + (f" in {self.inside}" if self.inside else "")


class Log:
    """Counts meetings while it is open."""

    def __init__(self) -> None:
        self.meetings: Counter[Meeting] | None = None
        self.apart: dict[CodeType, str] = {}
        """Code of the calls in which nothing may meet, and what they are called."""

    @contextmanager
    def open(self) -> Iterator[Counter[Meeting]]:
        """Count what meets within; a log within a log takes what meets there."""
        before, self.meetings = self.meetings, Counter()
        try:
            yield self.meetings
        finally:
            self.meetings = before

    def note(self, what: str) -> Meeting:
        """Take in a meeting that the caller's caller causes."""
        place, line, inside = "outside the project", 0, ""
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            if not line and file.startswith(f"{ROOT}/") and file not in OWN:
                # What is within a function counts as its own, comprehensions in any version of Python.
                function = code.co_qualname.partition(".<locals>")[0]
                place, line = f"{file[len(str(ROOT)) + 1 :]} {function}", frame.f_lineno
            if not inside:
                inside = self.apart.get(code, "an optimiser step" if file.endswith(OPTIMISERS) else "")
            frame = frame.f_back
        meeting = Meeting(place, line, what, inside)
        if self.meetings is not None:
            self.meetings[meeting] += 1
        return meeting


log = Log()
