"""Everything a device can be asked, within minutes: ``python -m vecenv.benchmarks.device_session``.

``--minutes 9 --out FOLDER`` measures the limits of the hardware, runs the tests marked ``gpu``, and then the benchmarks
in order of priority, each part in a process that is killed at the end of its time. Every figure is on the disk when it
is known (`points.jsonl`), after each part the whole `summary.json` replaces the one before, and ``--resume`` measures
what is missing. What is printed is in `log.txt`.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import vecenv
from vecenv.benchmarks.result_files import markdown, write_text
from vecenv.system.settings import Positive, Settings


class Part(NamedTuple):
    """Jobs that are measured in one process.

    `share` is relative, of a session's time; `least` are seconds without which the part is not started, `longest` those
    of a job before its process is killed; `jobs` returns those of a `Place` in order of priority, as
    ``module:function``.
    """

    name: str
    what: str
    share: float
    least: float
    longest: float
    jobs: str


_JOBS = "vecenv.benchmarks.session_parts"

PARTS = (
    Part("machine", "bandwidth and matrix products", 15, 15, 40, f"{_JOBS}:ceilings"),
    Part("tests", "the tests marked gpu", 75, 20, 90, f"{_JOBS}:gpu_tests"),
    Part("throughput", "stock_trading, all columns", 140, 20, 60, f"{_JOBS}:throughput"),
    Part("precision", "PPO in bfloat16 beside float32", 45, 25, 90, f"{_JOBS}:precisions"),
    Part("rollouts", "a neural market: days drawn, training", 75, 25, 90, f"{_JOBS}:rollouts"),
    Part("tiers", "the trading tiers", 50, 25, 90, f"{_JOBS}:tiers"),
    Part("turns", "turns of language agents, a tiny model", 50, 20, 60, f"{_JOBS}:turns"),
    Part("peers", "stock_trading and PPO beside JAX", 35, 25, 90, f"{_JOBS}:peers"),
    Part("books", "markets of agents, order books", 20, 20, 60, f"{_JOBS}:books"),
    Part("text", "observations and answers", 15, 15, 30, f"{_JOBS}:texts"),
    Part("curve", "the other counts and modes", 20, 15, 60, f"{_JOBS}:curve"),
)
"""Time shares are seconds of nine minutes."""


POINTS, SUMMARY, LOG = "points.jsonl", "summary.json", "log.txt"

FINAL = ("done", "does not fit", "failed")
"""States of a job that a resumed session keeps."""

LAST_SECONDS = 6.0
"""Kept for killing a process and for the table."""
ANOTHER_START = 15.0
"""Least seconds of a part for another process, after one that crashed."""
GLANCE_SECONDS = 0.2
KILL_SECONDS = 3.0
"""Longest wait for a killed process, whose device memory may take a moment to be released."""

BAD_INPUT, FAILED, SIGNALLED = 2, 1, 128
"""Exit codes: bad input, a failed part, and, added to the signal's number, a session that was stopped."""


@dataclass(frozen=True)
class DeviceSessionConfig(Settings):
    """Measure a device within a time limit."""

    out: Path
    """Folder for summary.json, points.jsonl and log.txt."""
    minutes: Positive = 9.0
    """Time limit of the session."""
    device: str = "auto"
    """Device: cpu, cuda, one GPU such as cuda:1, or auto for cuda if available."""
    small: bool | None = None
    """Use small sizes that take seconds; by default only on a CPU."""
    parts: tuple[str, ...] = ()
    """Parts to run, by default all, always in the session's order."""
    resume: bool = False
    """Resume the session in the folder: measure what has no result."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = [part.name for part in PARTS]
        if unknown := sorted(set(self.parts) - set(known)):
            raise ValueError(f"unknown parts {', '.join(unknown)}; there are {', '.join(known)}")


def allowance(parts: Sequence[Part], seconds: float) -> float:
    """Return the seconds for the first of the parts: its share, at least its minimum; 0 if there are too few."""
    first = parts[0]
    if seconds < first.least:
        return 0.0
    return min(seconds, max(first.least, seconds * first.share / sum(part.share for part in parts)))


@dataclass
class Session:
    """Runs parts and keeps their record; `ends` is in `time.monotonic` seconds, `stop` the number of a signal, or 0."""

    folder: Path
    machine: dict[str, Any]
    parts: Sequence[Part]
    ends: float
    stop: int = 0
    data: dict[str, Any] = field(default_factory=dict)

    def open(self, resume: bool) -> None:
        """Make the record, or read it; raise if there is one already, or none, or one of another machine."""
        path = self.folder / SUMMARY
        if resume and not path.exists():
            raise FileNotFoundError(f"{path}: there is no session to resume")
        if path.exists() and not resume:
            raise FileExistsError(f"{path} exists: give another folder, or --resume to measure what it lacks")
        self.data = {"benchmark": "device_session", "machine": self.machine, "sessions": 0, "parts": {}}
        if resume:
            try:
                self.data = json.loads(path.read_text())
                known = self.data["machine"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} is no record of a session: {error!r}") from error
            for name, value in self.machine.items():
                if known.get(name) != value:
                    told = f"{name} is {value!r} here and {known.get(name)!r} in {path}"
                    raise ValueError(f"{told}: a record holds figures of one machine only")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data["sessions"] += 1
        for part in self.parts:
            self.data["parts"].setdefault(part.name, {"status": "waiting", "what": part.what, "seconds": 0.0})
        self.write()

    def jobs(self, part: Part) -> dict[str | None, dict[str, Any]]:
        """Return the last that is known of every job of a part by name; under None of the whole part."""
        path, found = self.folder / POINTS, dict[str | None, dict[str, Any]]()
        for line in path.read_text().splitlines() if path.exists() else ():
            # A process that was killed may have left half of a line.
            with suppress(ValueError):
                told = json.loads(line)
                if told.pop("part") == part.name:
                    found[told.pop("job")] = told
        return found

    def write(self) -> None:
        for part in self.parts:
            jobs = self.jobs(part)
            self.data["parts"][part.name]["jobs"] = {name: told for name, told in jobs.items() if name is not None}
        write_text(self.folder / SUMMARY, json.dumps(self.data, indent=1) + "\n")

    def run(self) -> None:
        waiting = [part for part in self.parts if not self._whole(part)]
        for place, part in enumerate(waiting):
            left = self.ends - time.monotonic()
            seconds = allowance(waiting[place:], left)
            if self.stop or not seconds:
                short = f"{max(0.0, left):.0f} s were left, it needs {part.least:.0f}"
                self._end(part, "skipped", f"stopped by {self.signal}" if self.stop else short, 0.0)
                continue
            began = time.monotonic()
            print(f"{part.name}: {part.what}, at most {seconds:.0f} s", flush=True)
            error = self._run_part(part, began + seconds)
            self._end(part, *self._outcome(part, error), time.monotonic() - began)

    @property
    def signal(self) -> str:
        return signal.Signals(self.stop).name

    def _whole(self, part: Part) -> bool:
        states = [told["status"] for name, told in self.jobs(part).items() if name is not None]
        return bool(states) and all(state in FINAL for state in states)

    def _end(self, part: Part, status: str, reason: str, seconds: float) -> None:
        known = self.data["parts"][part.name]
        known |= {"status": status, "reason": reason, "seconds": known["seconds"] + seconds}
        self.write()
        print(f"{part.name}: {': '.join(filter(None, (status, reason)))}, {seconds:.1f} s", flush=True)

    def _run_part(self, part: Part, ends: float) -> str:
        """Run the processes of a part: after one that crashed another for the jobs that follow. Return what failed."""
        tried = set[str | None]()
        while True:
            final = {name for name, told in self.jobs(part).items() if told["status"] in FINAL}
            left_out = tried | final
            status, error = self._run_process(part, ends, [name for name in left_out if name is not None])
            jobs = {name: told for name, told in self.jobs(part).items() if name is not None}
            for name, told in jobs.items():
                if told["status"] == "running":
                    self._tell(part, name, {"status": status, "error": error})
            new = {name for name, told in jobs.items() if told["status"] != "waiting"} - left_out
            for label, told in self.jobs(part).items():
                if label in new:
                    figure = told.get("figures", {}).get("headline") or told.get("error")
                    print(f"  {label}: {figure} [{told['status']}]", flush=True)
            tried |= new
            over = status == "done" or self.stop or ends - time.monotonic() < ANOTHER_START
            if over or not new or not jobs.keys() - tried - final:
                return error if status == "failed" and not new else ""

    def _run_process(self, part: Part, ends: float, left_out: Sequence[str]) -> tuple[str, str]:
        """Run one process of a part; return the state of what it had not ended, and why."""
        copy = self.data["parts"].get("machine", {}).get("jobs", {}).get("copy", {}).get("figures", {}).get("copy")
        order: dict[str, Any] = {"part": part.name, "jobs": part.jobs, "file": str((self.folder / POINTS).absolute())}
        order |= {"device": self.machine["device"], "small": self.machine["small"], "copy": copy, "leave_out": left_out}
        path = os.pathsep.join(filter(None, (str(Path(vecenv.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        with (self.folder / POINTS).open("a") as points:
            # After half a line of a process that was killed.
            points.write("\n")
        with (self.folder / LOG).open("a") as log:
            log.write(f"=== {part.name}\n")
            log.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", "vecenv.benchmarks.session_child", json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Killed as a group, with processes of a compiler.
                process_group=0,
                env=os.environ | {"PYTHONPATH": path},
            )
        try:
            return self._watched(process, part, ends)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)
            with suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()

    def _watched(self, process: subprocess.Popen[bytes], part: Part, ends: float) -> tuple[str, str]:
        path, since, started = self.folder / POINTS, 0.0, False
        size = path.stat().st_size if path.exists() else 0
        while (code := process.poll()) is None:
            now = time.monotonic()
            if path.exists() and path.stat().st_size != size:
                size, since, started = path.stat().st_size, now, True
            if self.stop:
                return "stopped", f"stopped by {self.signal}"
            if now >= ends:
                return "out of time", "killed at the end of the time of its part"
            if started and now >= since + part.longest:
                return "out of time", "killed at the end of the time of a point"
            time.sleep(GLANCE_SECONDS)
        if code == 0:
            return "done", ""
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return "failed", f"the process {how}"

    def _tell(self, part: Part, name: str | None, told: dict[str, Any]) -> None:
        with (self.folder / POINTS).open("a") as file:
            file.write(json.dumps({"part": part.name, "job": name, **told}) + "\n")

    def _outcome(self, part: Part, error: str) -> tuple[str, str]:
        """Return status and reason of a finished part."""
        jobs = self.jobs(part)
        whole = jobs.pop(None, {})
        states = [told["status"] for told in jobs.values()]
        lacking = sum(state not in FINAL for state in states)
        if whole.get("status") == "failed" or error:
            return "failed", whole.get("error", error)
        if failed := states.count("failed"):
            return "failed", f"{failed} of {len(states)} points failed"
        if self.stop:
            return "stopped", f"by {self.signal}"
        if not states:
            return "out of time", "nothing was measured"
        return ("out of time", f"{lacking} of {len(states)} points have no result") if lacking else ("done", "")

    def failed(self) -> bool:
        return any(part["status"] == "failed" for part in self.data["parts"].values())


@contextmanager
def stopping(session: Session) -> Iterator[None]:
    """Let SIGTERM and Ctrl+C stop a session, where it waits."""

    def stop(number: int, frame: object) -> None:
        session.stop = number

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(config: DeviceSessionConfig, parts: Sequence[Part] = PARTS) -> int:
    """Run a session, print its table, and return its exit code: 0, or 1 if something failed, or 128 + a signal.

    Raises:
        ValueError: the device is not available, or the folder's session is of another machine.
        OSError: the folder cannot be written, has a session, or has none to resume.
    """
    from vecenv.core.checks import device_named

    ends = time.monotonic() + 60.0 * config.minutes - LAST_SECONDS
    device = str(device_named(config.device))
    small = device == "cpu" if config.small is None else config.small
    chosen = [part for part in parts if not config.parts or part.name in config.parts]
    session = Session(config.out, machine_facts(device, small), chosen, ends)
    with stopping(session):
        session.open(config.resume)
        session.run()
        print(summary_table(session.data))
        print(f"{config.out / SUMMARY} has all figures, {config.out / LOG} what was printed")
        return SIGNALLED + session.stop if session.stop else FAILED if session.failed() else 0


def machine_facts(device: str, small: bool) -> dict[str, Any]:
    import torch

    from vecenv.benchmarks.device import nvidia_smi

    # Without PyTorch, so that the session process takes no memory on the device.
    gpu, driver = (None, None) if device == "cpu" else nvidia_smi(torch.device(device), "name", "driver_version")
    software = {"python": platform.python_version(), "torch": version("torch"), "vecenv": vecenv.__version__}
    return {"device": device, "small": small, **software, "gpu": gpu, "driver": driver}


def summary_table(data: dict[str, Any]) -> str:
    rows = []
    for name, part in data["parts"].items():
        told = ": ".join(filter(None, (part["what"], part.get("reason"))))
        rows.append((f"**{name}**", told, f"{part['seconds']:.0f}", part["status"]))
        for job, found in part["jobs"].items():
            figure = found.get("figures", {}).get("headline") or found.get("error", "")
            rows.append((job, figure, f"{found.get('seconds', 0):.1f}", found["status"]))
    return markdown(("part or point", "figure", "s", "status"), rows)


def command(words: Sequence[str] | None = None) -> int:
    """Run a session from command-line arguments, by default the process's, and return its exit code."""
    import tyro

    try:
        return main(tyro.cli(DeviceSessionConfig, prog="python -m vecenv.benchmarks.device_session", args=words))
    except (ValueError, OSError) as error:
        print(f"device_session: error: {error}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(command())
