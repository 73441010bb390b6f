"""Time-limited benchmark session of a device: ``python -m vecenv.benchmarks.device_session``.

``--minutes 9 --out FOLDER`` measures the hardware limits, runs the tests marked ``gpu``, and then the benchmarks in
order of priority, each part in a process that is killed at the end of its time share. After every point the folder's
`summary.json` is replaced atomically, so that an interruption loses only the current point; ``--resume`` measures
missing points. All output and tracebacks are in `log.txt`.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import vecenv
from vecenv.benchmarks.device_session.point import Part
from vecenv.benchmarks.device_session.process import StopSignal
from vecenv.benchmarks.device_session.record import LOG, SessionRecord
from vecenv.benchmarks.device_session.schedule import Schedule

_PARTS = "vecenv.benchmarks.device_session.parts"

PARTS = (
    Part("machine", "bandwidth and matrix products", "vecenv.benchmarks.device_session.ceilings:points", 25, 25, 40),
    Part("tests", "the tests marked gpu", "vecenv.benchmarks.device_session.gpu_tests:points", 85, 20, 60, ("pytest",)),
    Part("throughput", "stock_trading, all columns", f"{_PARTS}:throughput", 110, 20, 60),
    Part("rollouts", "days of a neural market", f"{_PARTS}:rollouts", 45, 15, 45),
    Part("training", "a minute of training it", f"{_PARTS}:training", 80, 25, 120),
    Part("tiers", "the trading tiers", f"{_PARTS}:tiers", 60, 25, 90),
    Part("turns", "turns of groups, canned answers", f"{_PARTS}:turns", 30, 20, 60),
    Part("language", "GRPO, tiny model", f"{_PARTS}:language", 30, 20, 60, ("transformers",)),
    Part("books", "messages to order books", f"{_PARTS}:books", 25, 20, 60),
    Part("text", "observations and answers", f"{_PARTS}:texts", 20, 15, 30),
    Part("curve", "the other counts and modes", f"{_PARTS}:curve", 30, 15, 60),
)
"""Name, description, points, time share (seconds of nine minutes), minimum seconds, longest point, required modules."""

LAST_SECONDS = 6.0
"""Seconds reserved for killing a process and for the final output."""
BAD_INPUT, FAILED, SIGNALLED = 2, 1, 128
"""Exit codes: bad input, a failed part, and, added to the signal number, a stopped session."""


@dataclass(frozen=True)
class DeviceSessionConfig:
    """Measure a device within a time limit."""

    out: Path
    """Folder for summary.json and log.txt."""
    minutes: float = 9.0
    """Time limit of the session."""
    device: str = "auto"
    """Device: cpu, cuda, one GPU such as cuda:1, or auto for cuda if available."""
    small: bool | None = None
    """Use small sizes that take seconds; by default only on a CPU."""
    parts: tuple[str, ...] = ()
    """Parts to run, by default all, always in the session's order."""
    resume: bool = False
    """Resume the session in the folder: measure points without a result."""

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ValueError(f"minutes must be positive, got {self.minutes}")
        unknown = sorted(set(self.parts) - {part.name for part in PARTS})
        if unknown:
            known = ", ".join(part.name for part in PARTS)
            raise ValueError(f"unknown parts {', '.join(unknown)}; there are {known}")

    def chosen(self) -> list[Part]:
        """Return the parts to run."""
        return [part for part in PARTS if not self.parts or part.name in self.parts]


def main(config: DeviceSessionConfig) -> int:
    """Run a session, print its table, and return its exit code: 0, or 1 if something failed, or 128 + a signal.

    Raises:
        ValueError: the device is not available, or the folder's session is of another machine.
        OSError: the folder cannot be written, has a session, or has none to resume.
    """
    ends = time.monotonic() + 60.0 * config.minutes - LAST_SECONDS
    from vecenv.core.device import device_named

    device = str(device_named(config.device))
    small = device == "cpu" if config.small is None else config.small
    parts = config.chosen()
    console = Console(width=None if Console().is_terminal else 150, highlight=False, soft_wrap=True)
    with StopSignal() as stop:
        record = SessionRecord(config.out, machine_facts(device, small), parts, config.minutes, config.resume)
        Schedule(record, device, small, ends, stop, lambda line: console.print(line, markup=False)).run(parts)
        record.close(f"stopped by {stop.name}" if stop.number else "finished")
        console.print(summary_table(record.data))
        console.print(f"{record.path} has all figures, {config.out / LOG} what was printed", markup=False)
        if stop.number:
            return SIGNALLED + stop.number
        return FAILED if record.failed() else 0


def machine_facts(device: str, small: bool) -> dict[str, Any]:
    """Return facts of the machine and software, which must be equal to resume a session."""
    import torch

    from vecenv.benchmarks.device import nvidia_smi

    gpu, driver = (None, None)
    if device != "cpu":
        # Without PyTorch, so that the session process takes no memory on the device.
        gpu, driver = nvidia_smi(torch.device(device), "name", "driver_version")
    return {
        "device": device,
        "small": small,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vecenv": vecenv.__version__,
        "gpu": gpu,
        "driver": driver,
    }


def summary_table(data: dict[str, Any]) -> Table:
    """Return a table of all points of a session, with a line for every part without points."""
    machine = data["machine"]
    table = Table(
        title=f"{machine['gpu'] or machine['device']}, torch {machine['torch']}, {data['sessions'][-1]['started']}"
    )
    for heading in ("part", "point", "figure"):
        table.add_column(heading, overflow="fold")
    for heading in ("of copy", "s"):
        table.add_column(heading, justify="right")
    table.add_column("status")
    for name, part in data["parts"].items():
        reason = f": {part['reason']}" if part.get("reason") else ""
        table.add_row(name, "", f"{part['what']}{reason}", "", f"{part['seconds']:.0f}", part["status"], style="bold")
        for point, found in part["points"].items():
            figures = found.get("figures", {})
            share = figures.get("bandwidth_share")
            table.add_row(
                "",
                point,
                figures.get("headline") or found.get("error", ""),
                "" if share is None else f"{share:.3%}" if share < 0.001 else f"{share:.1%}",
                f"{found['seconds']:.1f}" if "seconds" in found else "",
                found["status"],
            )
    return table


def command(words: Sequence[str] | None = None) -> int:
    """Run a session from command-line arguments, by default the process's, and return its exit code."""
    import tyro

    try:
        return main(tyro.cli(DeviceSessionConfig, prog="python -m vecenv.benchmarks.device_session", args=words))
    except (ValueError, OSError) as error:
        print(f"device_session: error: {error}", file=sys.stderr)
        return BAD_INPUT
