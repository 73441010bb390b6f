"""Parts of a session that go wrong, for the tests of its schedule; and a session of them."""

import os
import subprocess
import sys
import time
from pathlib import Path

from vecenv.benchmarks import device_session
from vecenv.benchmarks.device_session import DeviceSessionConfig, Part
from vecenv.benchmarks.session_child import Job, Place

PIDS = "SESSION_FAULTS_PIDS"
"""Environment variable of a file to which hanging jobs write the numbers of their processes."""


def part(name: str, function: str, share: float = 10, least: float = 1, longest: float = 100) -> Part:
    return Part(name, "a fault", share, least, longest, f"tests.benchmarks.session_faults:{function}")


def job(number: float) -> Job:
    return Job({1: "one"}.get(number, "two"), lambda: {"headline": f"{number} units", "value": number})


def good(place: Place) -> list[Job]:
    print("measured", place.copy)
    return [job(1), job(place.copy or 2)]


def measures_copy(place: Place) -> list[Job]:
    return [Job("copy", lambda: {"headline": "copies", "copy": 17.0})]


def fails(place: Place) -> list[Job]:
    def raises():
        raise ValueError("two lines\nof which one is shown")

    def too_large():
        try:
            raise MemoryError("no room")
        except MemoryError as error:
            raise RuntimeError("within a capture") from error

    half = {"headline": "1 passed, 1 failed", "faults": ["test_a: assert 0"]}
    return [Job("raises", raises), Job("too large", too_large), Job("half", lambda: half), job(1)]


def cannot_be_set_up(place: Place) -> list[Job]:
    raise FileNotFoundError("no weights")


def hangs(place: Place) -> list[Job]:
    """Hang beside a process of one's own, as a compiler's."""

    def hang() -> None:
        other = subprocess.Popen(["sleep", "1000"])
        Path(os.environ[PIDS]).write_text(f"{os.getpid()} {other.pid}")
        time.sleep(1000)

    return [job(1), Job("hangs", hang), job(2)]


def hangs_before_its_jobs(place: Place) -> list[Job]:
    return time.sleep(1000)


def dies(place: Place) -> list[Job]:
    return [job(1), Job("dies", lambda: os._exit(7)), job(2)]


if __name__ == "__main__":
    parts = (part("first", "good"), part("second", "hangs", 100), part("third", "good"))
    sys.exit(device_session.main(DeviceSessionConfig(Path(sys.argv[1]), minutes=4, device="cpu"), parts))
