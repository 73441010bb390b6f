"""Parts of a session that go wrong, for the tests of its schedule; and a session of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from vecenv.benchmarks.device_session import command as device_session
from vecenv.benchmarks.device_session.point import Part, Place, Point
from vecenv.benchmarks.device_session.process import StopSignal
from vecenv.benchmarks.device_session.record import SessionRecord
from vecenv.benchmarks.device_session.schedule import Schedule

PIDS = "SESSION_FAULTS_PIDS"
"""Environment variable of a file to which hanging points write the numbers of their processes."""


def part(name: str, function: str, share: float = 10, least: float = 1, longest: float = 100, needs=()) -> Part:
    return Part(name, "a fault", f"tests.benchmarks.session_faults:{function}", share, least, longest, needs)


def value(number: float) -> dict:
    print(f"measured {number}")
    return {"headline": f"{number} units", "value": number, "process": os.getpid(), "bandwidth_share": 0.5}


def good(place: Place) -> list[Point]:
    return [Point("one", lambda: value(1)), Point("two", lambda: value(place.copy or 2))]


def measures_copy(place: Place) -> list[Point]:
    return [Point("copy", lambda: {"headline": "copies", "copy_bandwidth_bytes_per_second": 17.0})]


def fails(place: Place) -> list[Point]:
    def raises():
        raise ValueError("two lines\nof which one is shown")

    def too_large():
        try:
            raise MemoryError("no room")
        except MemoryError as error:
            raise RuntimeError("within a capture") from error

    def half():
        return {"headline": "1 passed, 1 failed", "faults": ["test_a: assert 0"]}

    return [Point("raises", raises), Point("too large", too_large), Point("half", half), Point("one", lambda: value(1))]


def cannot_be_set_up(place: Place) -> list[Point]:
    raise FileNotFoundError("no weights")


def hangs_before_its_points(place: Place) -> list[Point]:
    time.sleep(1000)
    return []


def hang() -> dict:
    """Hang beside a process of one's own, as a compiler's."""
    other = subprocess.Popen(["sleep", "1000"])
    Path(os.environ[PIDS]).write_text(f"{os.getpid()} {other.pid}")
    time.sleep(1000)
    return {}


def hangs(place: Place) -> list[Point]:
    return [Point("one", lambda: value(1)), Point("hangs", hang), Point("two", lambda: value(2))]


def dies(place: Place) -> list[Point]:
    return [Point("one", lambda: value(1)), Point("dies", lambda: os._exit(7)), Point("two", lambda: value(2))]


if __name__ == "__main__":
    folder, parts = Path(sys.argv[1]), (part("first", "good"), part("second", "hangs", 100), part("third", "good"))
    if sys.argv[2:] == ["bare"]:
        with StopSignal() as stop:
            record = SessionRecord(folder, {}, parts, 4.0, resume=False)
            Schedule(record, "cpu", True, time.monotonic() + 240.0, stop, print).run(parts)
    else:
        device_session.PARTS = parts
        sys.exit(device_session.main(device_session.DeviceSessionConfig(out=folder, minutes=4, device="cpu")))
