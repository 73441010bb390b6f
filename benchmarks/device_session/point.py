"""Data types of a session: parts, places and measurement points."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Part:
    """Points that are measured in one process.

    Attributes:
        name: of the part.
        what: one-line description.
        points: ``module:function`` that takes a `Place` and returns its points in order of priority.
        share: relative share of a session's time.
        least: minimum seconds for the part to be started.
        longest_point: time limit of a point in seconds, after which its process is killed.
        needs: required optional modules.
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
    """Device, size and deadline of a part.

    Attributes:
        device: by its name.
        small: use small sizes that take seconds on a CPU.
        copy: copy bandwidth in bytes per second, read and written; None if not measured yet.
        ends: deadline of the part, in `time.monotonic` seconds.
    """

    device: str
    small: bool
    copy: float | None
    ends: float

    def seconds_left(self) -> float:
        """Return the time until the deadline."""
        return self.ends - time.monotonic()


class Point(NamedTuple):
    """One measurement.

    Attributes:
        name: within its part.
        measure: returns JSON-able figures. ``headline`` and, if present, ``bandwidth_share`` are shown in the table;
            non-empty ``faults`` mark the point as failed.
    """

    name: str
    measure: Callable[[], dict[str, Any]]
