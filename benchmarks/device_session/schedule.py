"""Sequential schedule of parts in processes with deadlines, so that a session ends on time.

The remaining time is divided among the remaining parts, so that unused time of a part benefits the later ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from vecenv.benchmarks.device_session.point import Part
from vecenv.benchmarks.device_session.process import PartProcess, StopSignal
from vecenv.benchmarks.device_session.record import SessionRecord

ANOTHER_START = 15.0
"""Minimum remaining seconds of a part to restart its process after a crash."""


def allowance(parts: Sequence[Part], seconds: float) -> float:
    """Return the seconds allotted to the first of the parts, 0 if they are too few for it.

    Its share of the remaining time, but at least its minimum.
    """
    first = parts[0]
    if seconds < first.least:
        return 0.0
    return min(seconds, max(first.least, seconds * first.share / sum(part.share for part in parts)))


@dataclass
class Schedule:
    """Runs parts.

    Attributes:
        record: of the session.
        device: by its name.
        small: sizes.
        ends: end of the session, in `time.monotonic` seconds.
        stop: stop signal.
        say: receives a line after every point.
    """

    record: SessionRecord
    device: str
    small: bool
    ends: float
    stop: StopSignal
    say: Callable[[str], None]

    def run(self, parts: Sequence[Part]) -> None:
        """Run all incomplete parts in order."""
        waiting = []
        for part in parts:
            missing = [name for name in part.needs if find_spec(name) is None]
            if missing:
                self._skip(part, f"not installed: {', '.join(missing)}")
            elif not self.record.whole(part.name):
                waiting.append(part)
        prepared = None
        for index, part in enumerate(waiting):
            left = self.ends - time.monotonic()
            seconds = allowance(waiting[index:], left)
            if self.stop.number:
                self._skip(part, f"stopped by {self.stop.name}")
            elif not seconds:
                self._skip(part, f"{max(0.0, left):.0f} s were left, it needs {part.least:.0f}")
            else:
                process, prepared = prepared or self._process(part), None
                # On a CPU starting the next process early would disturb the measurement.
                if self.device != "cpu" and index + 1 < len(waiting):
                    prepared = self._process(waiting[index + 1])
                self._run_part(process, seconds)
                continue
            if prepared is not None:
                prepared.discard()
                prepared = None

    def _process(self, part: Part) -> PartProcess:
        return PartProcess(self.record, part, self.stop, self.say)

    def _skip(self, part: Part, reason: str) -> None:
        self.record.part(part.name, status="skipped", reason=reason)
        self.say(f"{part.name}: skipped, {reason}")

    def _run_part(self, process: PartProcess, seconds: float) -> None:
        """Run a part; after a point that crashed its process, continue with the next point in a new process."""
        part = process.part
        began = time.monotonic()
        before = self.record.data["parts"][part.name]["seconds"]
        self.record.part(part.name, status="running", reason="", allowed_seconds=seconds)
        self.say(f"{part.name}: {part.what}, at most {seconds:.0f} s")
        ends = began + seconds
        tried: set[str] = set()
        while True:
            process.run(self.device, self.small, ends, tried)
            tried |= process.tried
            left = ends - time.monotonic()
            if not (process.lost and process.tried) or left < ANOTHER_START or self.stop.number:
                break
            if tried >= self.record.points(part.name).keys() - set(self.record.ended(part.name)):
                break
            process = self._process(part)
        status, reason = self._outcome(part, process.error)
        taken = time.monotonic() - began
        self.record.part(part.name, status=status, reason=reason, seconds=before + taken)
        self.say(f"{part.name}: {': '.join(filter(None, (status, reason)))}, {taken:.1f} s")

    def _outcome(self, part: Part, error: str) -> tuple[str, str]:
        """Return status and reason of a finished part."""
        points = self.record.points(part.name)
        failed = sum(point["status"] == "failed" for point in points.values())
        lacking = len(points) - len(self.record.ended(part.name))
        if error:
            return "failed", error
        if failed:
            return "failed", f"{failed} of {len(points)} points failed"
        if self.stop.number:
            return "stopped", f"by {self.stop.name}"
        if not points:
            return "out of time", "nothing was measured"
        return ("out of time", f"{lacking} of {len(points)} points have no result") if lacking else ("done", "")
