"""Parent side of a part's worker process: start, order, reports, and kill at the deadline."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

import vecenv
from vecenv.benchmarks.device_session.point import Part
from vecenv.benchmarks.device_session.record import LOG, SessionRecord

ROOT = Path(vecenv.__file__).parents[1]
"""Root of the packages, for processes started in another folder."""

KILL_SECONDS = 3.0
"""Longest wait for a killed process, whose device memory may take a moment to be released."""

GLANCE_SECONDS = 0.5
"""Polling interval for the end of a silent process."""


class StopSignal:
    """SIGTERM or Ctrl+C, handled only where a session waits, never during a write.

    Attributes:
        number: of the signal, 0 if none was received.
        reader: file descriptor that becomes readable after a signal.
    """

    number = 0

    def __enter__(self) -> StopSignal:
        self.reader, self._writer = os.pipe()
        self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.reader)
        os.close(self._writer)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        os.write(self._writer, b".")

    @property
    def name(self) -> str:
        """Name of the signal."""
        return signal.Signals(self.number).name


class PartProcess:
    """One worker process of a part, whose reports are recorded as they arrive.

    It is started at once, to import its modules, and measures when ordered.

    Args:
        record: of the session; the process's output goes to `LOG` in its folder.
        part: its points without a result are measured.
        stop: of the session.
        say: receives a line after every point.

    Attributes:
        part: as given.
        lost: whether it ended before its last point.
        tried: points that it began.
        error: failure before its points.
    """

    def __init__(self, record: SessionRecord, part: Part, stop: StopSignal, say: Callable[[str], None]) -> None:
        self.part = part
        self._record, self._stop, self._say = record, stop, say
        self.lost, self.tried, self.error = False, set[str](), ""
        self._ends, self._point, self._began = 0.0, "", 0.0
        self._over = False
        self._pending = b""
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        try:
            self._process = self._started(writer)
        finally:
            os.close(writer)

    def run(self, device: str, small: bool, ends: float, tried: Collection[str]) -> None:
        """Run the measurement until its end, its deadline, a point's time limit, or the session's stop.

        Args:
            device: by its name.
            small: sizes.
            ends: deadline, in `time.monotonic` seconds.
            tried: points to skip, besides those with a result.
        """
        self._ends = ends
        order = {
            "device": device,
            "small": small,
            "copy": self._record.figure("machine", "copy", "copy_bandwidth_bytes_per_second"),
            "seconds": ends - time.monotonic(),
            "ended": [*self._record.ended(self.part.name), *tried],
        }
        try:
            # A broken pipe: the exit code of the ended process is reported below.
            with suppress(BrokenPipeError):
                self._input.write((json.dumps(order) + "\n").encode())
                self._input.flush()
            status, error = self._listen()
        finally:
            self._kill()
        # Read reports sent before the end.
        self._read()
        os.close(self._reader)
        self.lost = not (self._over or self.error)
        if self._point:
            self._end_point(status=status, error=error, seconds=time.monotonic() - self._began)
        elif self.lost and status == "failed" and not self.tried:
            self.error = error

    def discard(self) -> None:
        """End a process that is not needed."""
        self._kill()
        os.close(self._reader)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        with suppress(BrokenPipeError):
            self._input.close()

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _started(self, writer: int) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with (self._record.path.parent / LOG).open("a") as log:
            log.write(f"=== {self.part.name}\n")
            log.flush()
            return subprocess.Popen(
                [sys.executable, "-m", "vecenv.benchmarks.device_session.child", self.part.points, str(writer)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(writer,),
                # Kill the process group, compiler processes included.
                process_group=0,
                env=os.environ | {"PYTHONPATH": path},
            )

    def _listen(self) -> tuple[str, str]:
        """Record reports; return status and error of an unfinished point."""
        while True:
            now = time.monotonic()
            limit = min(self._ends, self._began + self.part.longest_point) if self._point else self._ends
            if self._stop.number:
                return "stopped", f"stopped by {self._stop.name}"
            if now >= limit:
                whose = "its part" if limit == self._ends else "a point"
                return "out of time", f"killed at the end of the time of {whose}"
            select.select([self._reader, self._stop.reader], [], [], min(GLANCE_SECONDS, limit - now))
            gone = self._process.poll()
            # Read again after polling: the process may have reported and ended.
            self._read()
            if self._over:
                return "done", ""
            if gone is not None:
                how = f"was killed by {signal.Signals(-gone).name}" if gone < 0 else f"ended with code {gone}"
                return "failed", f"the process {how}"

    def _read(self) -> None:
        """Record all available lines."""
        with suppress(BlockingIOError):
            while block := os.read(self._reader, 1 << 16):
                self._pending += block
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        event = told.pop("event")
        record, part = self._record, self.part.name
        if event == "points":
            for name in told["names"]:
                record.points(part).setdefault(name, {"status": "waiting"})
            record.write()
        elif event == "begins":
            self._point, self._began = told["point"], time.monotonic()
            self.tried.add(self._point)
            record.point(part, self._point, status="running")
        elif event == "ended":
            del told["point"]
            self._end_point(**told)
        elif event == "failed":
            self.error = told["error"]
            record.part(part, traceback=told["traceback"])
        else:
            self._over = True

    def _end_point(self, **known: Any) -> None:  # noqa: ANN401
        name, self._point = self._point, ""
        self._record.point(self.part.name, name, **known)
        headline = known.get("figures", {}).get("headline") or known.get("error", "")
        self._say(f"  {name}: {headline} [{known['status']}, {known['seconds']:.1f} s]")
