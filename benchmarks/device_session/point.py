"""What a session measures: parts, and the points of a part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Part:
    """Points that run in a process of their own.

    Attributes:
        name: of the part.
        what: is measured, in a line.
        points: ``module:function`` that takes a `Place` and returns its points, most valuable first.
        share: of a session's time, in the unit of the other parts' shares.
        least: seconds below which the part is not begun.
        longest_point: seconds after which a point is given up, with its process.
        needs: modules that a project may lack.
    """

    name: str
    what: str
    points: str
    share: float
    least: float
    longest_point: float
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where and how long a part measures.

    Attributes:
        device: by its name.
        small: sizes that a CPU is done with in seconds.
        copy: bandwidth in bytes per second read and written; None if nobody has measured it yet.
        ends: when the part is killed, as `time.monotonic` tells it.
    """

    device: str
    small: bool
    copy: float | None
    ends: float

    def seconds_left(self) -> float:
        """Return the time until the part is killed."""
        return self.ends - time.monotonic()


class Point(NamedTuple):
    """One measurement.

    Attributes:
        name: within its part.
        measure: returns its figures, which JSON can hold. ``headline`` is shown in the table; ``bandwidth_share`` too,
            where there is one; ``faults``, if not empty, makes the point a failed one.
    """

    name: str
    measure: Callable[[], dict[str, Any]]
